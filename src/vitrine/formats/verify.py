"""Is what was written the same network? Read it back, run both on the same images, and the peer's own program too."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.load import load_checkpoint
from vitrine.models.config import ViTConfig

# Of the largest logit, and of the largest feature: rounding of float32 through a hundred layers stays below; another GELU,
# other heads or another mean are far above, another epsilon of the norms a little.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Comparison:
    reader: str
    """Who read what was written."""
    max_difference: float
    """Of any logit of any image."""
    max_logit: float
    max_feature_difference: float
    """Of what the head reads; without it, a head of zeros would prove anything."""
    max_feature: float
    same_answers: int
    """Images whose first class is the same."""
    num_images: int
    same_description: bool
    """Preprocessing and class names; the peer's are not asked."""

    @property
    def is_equal(self) -> bool:
        logits_agree = self.max_difference <= TOLERANCE * self.max_logit
        features_agree = self.max_feature_difference <= TOLERANCE * self.max_feature
        return logits_agree and features_agree and self.same_description


@torch.no_grad()
def verify_checkpoint(checkpoint: Checkpoint, path: str | Path, images: Tensor, device: str = "cpu") -> list[Comparison]:
    """Compare `checkpoint` with what lies at `path`, on images as bytes (B, C, H, W)."""
    expected = run(checkpoint, images, device)
    reloaded = load_checkpoint(path)
    comparisons = [compare("vitrine", run(reloaded, images, device), expected, is_same_description(checkpoint, reloaded))]
    peer = load_peer(Path(path), checkpoint)
    if peer is not None:
        normalised = checkpoint.preprocessing.normalise(images.to(device))
        comparisons.append(compare("transformers", run_peer(peer.to(device), normalised, checkpoint), expected, True))
    return comparisons


Outputs = tuple[Tensor, Tensor]


def run(checkpoint: Checkpoint, images: Tensor, device: str) -> Outputs:
    """Features and logits."""
    model = checkpoint.model.to(device).eval()
    encoded = model.encode(checkpoint.preprocessing.normalise(images.to(device)))
    logits = model.forward_heads(encoded)
    return model.pool(encoded).cpu(), torch.stack(logits).mean(dim=0).cpu()


def is_same_description(one: Checkpoint, other: Checkpoint) -> bool:
    return (one.preprocessing, one.class_names) == (other.preprocessing, other.class_names)


def draw_images(checkpoint: Checkpoint, count: int, seed: int) -> Tensor:
    """Bytes (B, C, H, W) that look a little like photographs: noise at several scales, so that all frequencies occur."""
    height, width = checkpoint.model.config.image_size
    generator = torch.Generator().manual_seed(seed)
    images = torch.zeros(count, checkpoint.model.config.num_channels, height, width)
    for cells in (2, 8, 32, max(height, width)):
        noise = torch.rand(count, images.shape[1], cells, cells, generator=generator)
        images += torch.nn.functional.interpolate(noise, (height, width), mode="bilinear") / 4
    return (images * 255).round().to(torch.uint8)


def compare(reader: str, actual: Outputs, expected: Outputs, same_description: bool) -> Comparison:
    (features, logits), (expected_features, expected_logits) = actual, expected
    return Comparison(
        reader=reader,
        max_difference=float((logits - expected_logits).abs().max()),
        max_logit=float(expected_logits.abs().max()),
        max_feature_difference=float((features - expected_features).abs().max()),
        max_feature=float(expected_features.abs().max()),
        same_answers=int((logits.argmax(dim=1) == expected_logits.argmax(dim=1)).sum()),
        num_images=len(logits),
        same_description=same_description,
    )


def load_peer(path: Path, checkpoint: Checkpoint) -> Any:
    """transformers' own model on a folder written for it, where transformers is installed."""
    is_its_folder = path.is_dir() and (path / "preprocessor_config.json").is_file()
    if not is_its_folder or find_spec("transformers") is None:
        return None
    import transformers

    transformers.logging.disable_progress_bar()  # it would draw over our table
    config = checkpoint.model.config
    if config.num_classes == 0:
        options = {"add_pooling_layer": config.hidden_head} if isinstance(config, ViTConfig) else {}
        return transformers.AutoModel.from_pretrained(path, **options).eval()
    if isinstance(config, ViTConfig) and config.distillation_token:
        return transformers.DeiTForImageClassificationWithTeacher.from_pretrained(path).eval()
    return transformers.AutoModelForImageClassification.from_pretrained(path).eval()


def run_peer(peer: Any, images: Tensor, checkpoint: Checkpoint) -> Outputs:
    config = checkpoint.model.config
    base = peer.base_model(images)
    if isinstance(config, ViTConfig) and not config.hidden_head:
        features = base.last_hidden_state[:, : config.num_readout_tokens].mean(dim=1)
    else:
        features = base.pooler_output.flatten(1)
    return features.cpu(), (peer(images).logits if config.num_classes > 0 else features).cpu()
