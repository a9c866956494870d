"""The second list of planted bugs, written from the code alone: whoever wrote it had not read the tests and ran none.

`planted_bugs.py --list second` plants these.
"""

from planted_bug import Bug

SECOND_BUGS: tuple[Bug, ...] = (
    Bug(
        "lock-is-shared",
        "core",
        "open_locked takes a shared lock, which several processes may hold: two runs write into the same folder at once.",
        "core/locks.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
    ),
    Bug(
        "verified-by-size-alone",
        "core",
        "verify_once remembers size and checksum of a file without its times: one damaged later, at the same size, is not "
        "verified again, and its values are used.",
        "core/checksums.py",
        "{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {checksum}",
        "{status.st_size} {checksum}",
    ),
    Bug(
        "empty-member-ends-check",
        "core",
        "check_members skips the whole archive if any member has checksum 0, as an empty one has, instead of only if all "
        "have: damage in the other members is not found.",
        "core/checksums.py",
        "if not any(member.CRC for member",
        "if not all(member.CRC for member",
    ),
    Bug(
        "clears-every-cache",
        "core",
        "resolve_kinds ignores the kinds that were asked for: clearing one kind of cache deletes all of them, and listing one "
        "lists all.",
        "core/caches.py",
        "[kind for kind in FOLDERS if kind in kinds or not kinds]",
        "[*FOLDERS]",
    ),
    Bug(
        "nan-is-a-number",
        "core",
        "find_expected_type accepts NaN for a number, as no comparison with it is true: learning_rate=nan is not refused "
        "before the run, which then diverges.",
        "core/config_checks.py",
        "and abs(value) <= sys.float_info.max",
        "and not abs(value) > sys.float_info.max",
    ),
    Bug(
        "fingerprint-without-values",
        "data",
        "digest_items hashes names without labels or file sizes: a resumed run does not notice images that were relabelled or "
        "files that were replaced.",
        "data/fingerprint.py",
        r'f"{name}\0{value}\0"',
        r'f"{name}\0"',
    ),
    Bug(
        "skipped-image-shifts-pixels",
        "data",
        "load_into_memory stores an image at its index in the source, not behind those loaded so far: after one that was "
        "skipped, all images have the labels and names of their neighbours.",
        "data/wrappers.py",
        "pixels[len(loaded)] = image",
        "pixels[index] = image",
    ),
    Bug(
        "packed-images-blurred",
        "data",
        "resize_to_short_side lets the JPEG decoder shrink an image to half of the wanted size and enlarges it again: packed "
        "photographs are blurred, at the right size.",
        "data/pack.py",
        "at_least=(height, width)",
        "at_least=((height + 1) // 2, (width + 1) // 2)",
    ),
    Bug(
        "resize-kept-at-other-size",
        "data",
        "Preprocessing.resized keeps the short side of the resize for another image size: at 384 pixels images are no longer "
        "resized to 439 and cropped, and at 32 pixels only the middle of each is left.",
        "data/preprocessing.py",
        "return replace(changed, resize=scale_side(self.resize, min(image_size), min(self.crop)))",
        "return changed",
    ),
    Bug(
        "exif-quarter-turns-swapped",
        "data",
        "EXIF_TRANSPOSE turns orientations 6 and 8 the wrong way: photographs taken upright with a phone are upside down.",
        "data/image.py",
        "    6: Image.Transpose.ROTATE_270,\n    7: Image.Transpose.TRANSVERSE,\n    8: Image.Transpose.ROTATE_90,\n",
        "    6: Image.Transpose.ROTATE_90,\n    7: Image.Transpose.TRANSVERSE,\n    8: Image.Transpose.ROTATE_270,\n",
    ),
    Bug(
        "test-prefers-val",
        "data",
        "choose_test_split takes val before test: data with both is evaluated on its validation images.",
        "data/open_data.py",
        'for split in ("test", "val") if split in data.splits',
        'for split in ("val", "test") if split in data.splits',
    ),
    Bug(
        "held-out-by-smallest-remainder",
        "data",
        "apportion gives the left-over images to the classes with the smallest remainders, not the largest: the held-out part "
        "is less proportional to the classes than it could be.",
        "data/subsets.py",
        "np.argsort(parts - quotas, ",
        "np.argsort(quotas - parts, ",
    ),
    Bug(
        "json-before-cls",
        "data/sources",
        "read_label prefers the .json of a WebDataset sample to its .cls: samples with both get another label, or none.",
        "data/sources/webdataset_samples.py",
        'for field in (".cls", ".json") if field in fields',
        'for field in (".json", ".cls") if field in fields',
    ),
    Bug(
        "last-shard-left-out",
        "data/sources",
        "list_choices ends a range before its last number: train-{000..099}.tar opens 99 shards.",
        "data/sources/shards.py",
        "range(first, last + 1)",
        "range(first, last)",
    ),
    Bug(
        "flower-names-sorted-as-text",
        "data/sources",
        "load_class_names of Flowers-102 orders the numbers of cat_to_name.json as text (1, 10, 100, 101, ..): most classes "
        "have the name of another one.",
        "data/sources/flowers.py",
        "tuple(names[number] for number in numbers)",
        "tuple(names[number] for number in sorted(numbers))",
    ),
    Bug(
        "real-labels-in-file-order",
        "data/sources",
        "order_real leaves ReaL labels in the order of their file: where val is in class folders, images have the labels of "
        "others.",
        "data/sources/imagenet.py",
        "[sorted(set(labels[image - 1])) for image in images]",
        "[sorted(set(each)) for each in labels]",
    ),
    Bug(
        "vtab-val-in-train",
        "data/sources",
        "assign_parts lets train of undivided data begin where val begins: the 200 images that choose the setting are among "
        "the 800 that are trained on.",
        "data/sources/vtab.py",
        '"train": Part(None, val + test)',
        '"train": Part(None, test)',
    ),
    Bug(
        "crop-retries-repeat",
        "data/augment",
        "draw_crop_boxes draws the same numbers in every attempt: an image whose first box does not fit is taken whole.",
        "data/augment/crops.py",
        "uniforms(RngStream.CROP, 4, attempt)",
        "uniforms(RngStream.CROP, 4)",
    ),
    Bug(
        "last-operation-never-drawn",
        "data/augment",
        "RandAugment draws from fifteen of its sixteen operations: SolarizeAdd is never used.",
        "data/augment/rand_augment.py",
        "int(choice * len(operations))",
        "int(choice * (len(operations) - 1))",
    ),
    Bug(
        "block-not-resized",
        "data/augment",
        "EvalTransform.prepare takes images in memory that have the size of the crop as they are, though the preprocessing "
        "enlarges before it crops: predictions differ from those for the same images in files.",
        "data/augment/transforms.py",
        "if self.preprocessing.compute_resized_size(*images.shape[1:3]) == images.shape[1:3] == crop:",
        "if images.shape[1:3] == crop:",
    ),
    Bug(
        "inner-view-is-whole",
        "data/quality",
        "resize_to_views makes both views of the whole image: cropped copies are found less often.",
        "data/quality/perceptual_hash.py",
        "Image.Resampling.BILINEAR, box)",
        "Image.Resampling.BILINEAR)",
    ),
    Bug(
        "crop-found-one-way",
        "data/quality",
        "compute_similarity compares crops of the first image with the second and not the reverse: whether a cropped copy is "
        "found depends on which of the two comes first.",
        "data/quality/edge_map.py",
        "max(correlate_with_crops(first, second.whole), correlate_with_crops(second, first.whole))",
        "correlate_with_crops(first, second.whole)",
    ),
    Bug(
        "unreadable-index-in-chunk",
        "data/quality",
        "ImageStats.join keeps the index of an unreadable image within its chunk: the check names another file, and several "
        "unreadable files count as one.",
        "data/quality/image_stats.py",
        "{start + index: reason for index, reason",
        "{index: reason for index, reason",
    ),
    Bug(
        "sincos-without-minus-one",
        "models",
        "SinCos2d divides the exponents by the number of frequencies, as other sin-cos positions do, not by one less: models "
        "of big_vision get other positions.",
        "models/positions.py",
        "/ (self.num_frequencies - 1)",
        "/ self.num_frequencies",
    ),
    Bug(
        "kernel-variance-unbiased",
        "models",
        "StandardisedConv.standardise divides the variance of a kernel by n - 1: features of BiT and of hybrids differ "
        "slightly from those of the released code.",
        "models/resnet.py",
        "dim=(1, 2, 3), correction=0, keepdim=True",
        "dim=(1, 2, 3), keepdim=True",
    ),
    Bug(
        "head-bias-ignored",
        "models",
        "build_linear_head starts every bias at 0: head_bias=-10 has no effect, and the sigmoid loss starts far too high.",
        "models/heads.py",
        "nn.init.constant_(head.bias, bias)",
        "nn.init.zeros_(head.bias)",
    ),
    Bug(
        "axial-columns-as-rows",
        "models",
        "AxialAttention does not transpose back after attention along columns: each patch gets the output of another one.",
        "models/axial.py",
        "y.view_as(lines).transpose(1, 2).flatten(1, 2)",
        "y.view_as(x)",
    ),
    Bug(
        "position-tables-counted-once",
        "models",
        "count_embedding counts one position table where every layer has its own: `vitrine models` shows too few parameters "
        "and bytes.",
        "models/cost.py",
        'positions = table * (config.depth if config.position_insertion == "every-layer" else 1)',
        "positions = table",
    ),
    Bug(
        "hybrid-stem-not-frozen",
        "models",
        "Hybrid leaves its stem out of before_blocks, so it counts as lying above the blocks: optim.frozen_blocks trains it, "
        "and optim.layer_decay gives it the head's learning rate.",
        "models/hybrid.py",
        'before_blocks = ("stem", *VisionTransformer.before_blocks)',
        "before_blocks = VisionTransformer.before_blocks",
    ),
    Bug(
        "torch-archive-unchecked",
        "formats",
        "open_torch does not compare the checksums of a .pth archive, which torch does not either: damaged weights load.",
        "formats/tensor_files.py",
        "check_members(archive)  # torch does not",
        "pass",
    ),
    Bug(
        "torchvision-bicubic",
        "formats",
        "Torchvision.infer_model takes the bicubic filter of DeiT for models of torchvision, which were trained with bilinear.",
        "formats/torchvision.py",
        'replace(build_imagenet_preprocessing(config.image_size, channels), interpolation="bilinear")',
        "build_imagenet_preprocessing(config.image_size, channels)",
    ),
    Bug(
        "origin-lost-on-saving",
        "formats",
        "save_checkpoint drops the provenance of the checkpoint: a converted or trained model does not say where its weights "
        "came from.",
        "formats/save.py",
        '{**checkpoint.provenance, "written_by": f"vitrine {__version__}"}',
        '{"written_by": f"vitrine {__version__}"}',
    ),
    Bug(
        "sigmoid-loss-by-classes",
        "objectives",
        "compute_losses averages the sigmoid loss over classes instead of adding it up: with 21,000 classes the gradient is "
        "21,000 times smaller, and the loss depends on their number.",
        "objectives/supervised.py",
        'reduction="none").sum(dim=1)',
        'reduction="none").mean(dim=1)',
    ),
    Bug(
        "uneven-colour-levels",
        "objectives",
        "ColourTarget.compute scales 0..255 to 0..7 and rounds down: the highest level is for 255 alone, and the others are "
        "too wide.",
        "objectives/masked_patches.py",
        "means * (LEVELS / 256)",
        "means * ((LEVELS - 1) / 255)",
    ),
    Bug(
        "one-frozen-block-fewer",
        "training",
        "freeze trains the last of the blocks that optim.frozen_blocks freezes.",
        "training/optimizer.py",
        "objective.block_index(name) <= config.frozen_blocks",
        "objective.block_index(name) < config.frozen_blocks",
    ),
    Bug(
        "loss-divided-by-parts",
        "training",
        "MetricAverager.add counts a part of a batch as a whole one: with 4 accumulation steps the logged loss and accuracy "
        "are a quarter of the true ones.",
        "training/loop.py",
        "self.weights.get(name, 0.0) + weight",
        "self.weights.get(name, 0.0) + 1.0",
    ),
    Bug(
        "average-restarts-on-resume",
        "training",
        "restore starts the Polyak average from the weights, not from the saved average: a resumed run ends with another "
        "model.",
        "training/state.py",
        "{**weights, **encoder, **select(training, AVERAGE)}",
        "{**encoder, **weights}",
    ),
    Bug(
        "time-left-after-resume",
        "training",
        "Progress.describe_time counts the steps of earlier attempts as done in this one: after a resume far too little time "
        "is said to be left.",
        "training/progress.py",
        "num_done = self.step - self.start_step",
        "num_done = self.step",
    ),
    Bug(
        "probabilities-of-five",
        "evaluation",
        "predict_batch takes the softmax over the top five logits, not over all: probabilities are too high, and the "
        "calibration error is wrong.",
        "evaluation/topk.py",
        "(best.values - logits.logsumexp(dim=1, keepdim=True)).exp()",
        "best.values.softmax(dim=1)",
    ),
    Bug(
        "folds-scored-by-own-fit",
        "evaluation",
        "predict_held_out fits each discriminant to all images, those it scores too: a fitted head has too little shrinkage "
        "and too large a scale.",
        "evaluation/linear_heads.py",
        "Discriminant.fit(features[~held_out], labels[~held_out], num_classes)",
        "Discriminant.fit(features, labels, num_classes)",
    ),
    Bug(
        "mean-of-batch-means",
        "evaluation",
        "measure_objective gives every batch the same weight: a small last batch counts as much as a full one.",
        "evaluation/evaluators.py",
        "sums += len(batch) * torch.cat(",
        "sums += torch.cat(",
    ),
    Bug(
        "last-of-equal-names",
        "evaluation",
        "match_classes matches names that several classes of the model share, e.g. ImageNet's two cranes, with the last of "
        "them instead of refusing: correct predictions count as wrong.",
        "evaluation/class_mapping.py",
        "if all(counts[name] == 1 for name in data_classes):",
        "if all(name in numbers for name in data_classes):",
    ),
    Bug(
        "suspect-among-readable",
        "evaluation",
        "find_label_issues counts images without the unreadable ones: after one of these it names the wrong file as suspect.",
        "evaluation/label_issues.py",
        "ImageRef(split, int(readable[index]))",
        "ImageRef(split, index)",
    ),
    Bug(
        "resumes-with-other-batch-size",
        "",
        "RESUMABLE_FIELDS names the whole group loader: a run is resumed with another batch size or last batch, not refused.",
        "recipe.py",
        '*("loader.num_workers", "loader.prefetch", "loader.stuck_after_s"),',
        '"loader",',
    ),
    Bug(
        "only-last-setting-dropped",
        "",
        "drop_unused starts each field from the unchanged group: of several settings of a group without an effect, "
        "recipe.json still has all but the last.",
        "field_effects.py",
        "changes.get(group, getattr(recipe, group))",
        "getattr(recipe, group)",
    ),
    Bug(
        "imagenet-decay-of-21k",
        "recipes",
        "The pre-training recipes on ImageNet have the weight decay of ImageNet-21k, 0.03, where table 3 has 0.3.",
        "recipes/pretrain.py",
        "weight_decay=0.3,",
        "weight_decay=0.03,",
    ),
    Bug(
        "area-of-first-images",
        "recipes",
        "compute_median_area measures the first hundred images, often of one class, not a hundred over all: hyperrule may "
        "choose the resolution for the wrong size.",
        "recipes/registry.py",
        "range(0, len(source), max(1, len(source) // NUM_AREA_SAMPLES))",
        "range(min(len(source), NUM_AREA_SAMPLES))",
    ),
    Bug(
        "schedule-of-changed-data",
        "run",
        "RunFolder.check_data gives a run with accepted changes the length of the new data: the learning rate jumps in the "
        "middle of its schedule.",
        "run/folder.py",
        "return replace(data, total_steps=saved.total_steps)  # the",
        "return data  # the",
    ),
    Bug(
        "window-mean-unweighted",
        "run",
        "MetricWindow.take_mean gives pieces of different numbers of steps the same weight: the logged loss is wrong where "
        "the run evaluated or saved between two lines.",
        "run/callbacks.py",
        "sum(steps * metrics[name] for steps, metrics in self.pieces) / num_steps",
        "sum(metrics[name] for _, metrics in self.pieces) / len(self.pieces)",
    ),
    Bug(
        "tested-where-chosen",
        "run",
        "open_run_data tests on the val split even if the best weights were chosen on it: the summary has a test accuracy "
        "that is too high, where it should have none.",
        "run/build.py",
        "evaluation.test and test_split != chosen_on and spec.needs_labels",
        "evaluation.test and spec.needs_labels",
    ),
    Bug(
        "positions-normalised-by-column",
        "inspection",
        "compare_added normalises the features of all positions, not each position: what is shown is not a cosine similarity, "
        "and a position's with itself is not 1.",
        "inspection/positions.py",
        "compute_table(like).double(), dim=1)",
        "compute_table(like).double(), dim=0)",
    ),
    Bug(
        "distance-weighted-by-patches",
        "inspection",
        "DistanceMeter.add divides the mean distance by the mean attention among patches instead of query by query: patches "
        "that attend to the class token count for less.",
        "inspection/distance.py",
        "(distances / weights.clamp(min=torch.finfo(weights.dtype).tiny)).mean(dim=-1)",
        "distances.mean(dim=-1) / weights.mean(dim=-1).clamp(min=torch.finfo(weights.dtype).tiny)",
    ),
    Bug(
        "strongest-attention-dropped",
        "inspection",
        "fuse_heads sets the strongest attention to zero, where dropped_share says the weakest.",
        "inspection/rollout.py",
        "fused.topk(num_dropped, dim=-1, largest=False)",
        "fused.topk(num_dropped, dim=-1)",
    ),
    Bug(
        "variance-of-lengths",
        "inspection",
        "compute_filters divides singular values by their sum instead of their squares: the explained variance is too even.",
        "inspection/filters.py",
        "variance = lengths.square() / lengths.square().sum()",
        "variance = lengths / lengths.sum()",
    ),
    Bug(
        "held-out-option-ignored",
        "studies",
        "search_learning_rate holds out its own fraction of the images, whatever data.held_out of the recipe is.",
        "studies/sweeps.py",
        "build_trials(recipe, learning_rates, recipe.data.held_out or held_out)",
        "build_trials(recipe, learning_rates, held_out)",
    ),
    Bug(
        "vtab-warmup-unscaled",
        "studies",
        "apply_setting keeps the number of warm-up steps for a shorter run: of 1,000 steps, half are warm-up instead of a "
        "fifth.",
        "studies/vtab/protocol.py",
        "round(recipe.optim.warmup_steps * setting.total_steps / recipe.total_steps)",
        "min(recipe.optim.warmup_steps, setting.total_steps - 1)",
    ),
    Bug(
        "demo-command-without-subset",
        "demo",
        "plan_demo leaves --subset out of the command shown for few-shot: who runs it fits to all images and gets another "
        "accuracy than the report.",
        "demo/plan.py",
        '        *(["--subset", data.subset] if data.subset != "all" else []),\n',
        "",
    ),
    Bug(
        "no-cache-ignored",
        "commands",
        "FeatureOptions.arguments always uses the cache: --no-cache of few-shot and probe has no effect.",
        "commands/options.py",
        '{**named, "use_cache": not self.no_cache}',
        '{**named, "use_cache": True}',
    ),
    Bug(
        "suspicion-is-an-error",
        "commands",
        "`vitrine data check` exits with status 1 for anything it found, where only errors count: a dataset with one "
        "suspicious label fails in a script.",
        "commands/data_check.py",
        "if not check.is_clean:",
        "if check.issues:",
    ),
    Bug(
        "gmacs-of-1024",
        "commands",
        "`vitrine models` prints binary giga-MACs under GMACs: 16.36 for ViT-B/16 instead of 17.56.",
        "commands/models.py",
        "cost.macs / 1e9",
        "cost.macs / 2**30",
    ),
)
