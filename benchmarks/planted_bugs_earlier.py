"""Bugs that the tests had missed in an earlier round of planting, and must catch: a list of `planted_bugs.py`."""

from planted_bug import Bug

EARLIER_BUGS = (
    Bug(
        "no-dropout-after-embedding",
        "models",
        "ViT.encode_tokens does not drop tokens after positions were added: a dropout rate acts in the blocks only.",
        "models/vit.py",
        "        tokens = self.dropout(tokens)\n",
        "",
    ),
    Bug(
        "no-dropout-of-branches",
        "models",
        "ResidualBranch does not drop the outputs of attention and MLP.",
        "models/blocks.py",
        "            x = F.dropout(x, self.dropout_rate)\n",
        "            x = x * 1\n",
    ),
    Bug(
        "verify-tolerates-a-tenth",
        "formats",
        "Verification of a written checkpoint accepts logits that differ by a tenth.",
        "formats/verify.py",
        "\nTOLERANCE = 1e-5\n",
        "\nTOLERANCE = 1e-1\n",
    ),
    Bug(
        "verify-ignores-logits",
        "formats",
        "Verification of a written checkpoint does not compare the logits.",
        "formats/verify.py",
        "logits_agree = self.max_difference <= TOLERANCE * self.max_logit",
        "logits_agree = True",
    ),
    Bug(
        "duplicates-too-easily",
        "data/quality",
        "Images whose edges correlate by 0.55 count as duplicates.",
        "data/quality/edge_map.py",
        "MIN_SIMILARITY = 0.75",
        "MIN_SIMILARITY = 0.55",
    ),
    Bug(
        "duplicates-too-strictly",
        "data/quality",
        "Images whose edges correlate by 0.9 do not count as duplicates.",
        "data/quality/edge_map.py",
        "MIN_SIMILARITY = 0.75",
        "MIN_SIMILARITY = 0.92",
    ),
    Bug(
        "bad-image-replaced-by-the-next",
        "data",
        "A bad image is replaced by the one after it in every epoch, not by a random one: that image counts double.",
        "data/loader.py",
        "yield int(hash_keys(self.sampler.seed, RngStream.REPLACEMENT, epoch, index, attempt)) % len(self.source)",
        "yield (index + attempt + 1) % len(self.source)",
    ),
    Bug(
        "folder-renamed-before-its-files-are-on-disk",
        "core",
        "atomic_folder does not sync the files before the folder gets its name: after a power loss they may be empty.",
        "core/files.py",
        "                    sync_to_disk(written)  # a rename may reach the disk before the data it names\n",
        "",
    ),
)
