"""Verify a written checkpoint: read it back, run both models on the same images, and transformers' own model on its format."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrine.core.precision import computing_in
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.load import load_checkpoint
from vitrine.models.config import ViTConfig

# Largest difference relative to the largest logit, and to the largest feature. Float32 rounding through a hundred layers stays
# below; another GELU, other heads or another mean are far above, another LayerNorm epsilon a little.
TOLERANCE = 1e-5
Outputs = tuple[Tensor, Tensor]
"""Features and logits."""


@dataclass(frozen=True)
class Comparison:
    """Differences between a model and its written copy, as computed by one reader."""

    reader: str
    """The program that read the written copy."""
    max_difference: float
    """Largest difference of any logit of any image."""
    max_logit: float
    max_feature_difference: float
    """Largest difference of the head's inputs; a head of zeros would hide any difference of logits."""
    max_feature: float
    same_answers: int
    """Images with the same top-1 class."""
    num_images: int
    same_description: bool
    """Equal preprocessing, class names and calibration; not checked for transformers."""

    @property
    def is_equal(self) -> bool:
        """Whether logits, features and description of both models agree."""
        logits_agree = self.max_difference <= TOLERANCE * self.max_logit
        features_agree = self.max_feature_difference <= TOLERANCE * self.max_feature
        return logits_agree and features_agree and self.same_description


@torch.no_grad()
def verify_checkpoint(checkpoint: Checkpoint, path: str | Path, images: Tensor, device: str = "cpu") -> list[Comparison]:
    """Compare a checkpoint with what was written to `path`, on images as bytes (B, C, H, W), once for each reader."""
    with computing_in(torch.float32, torch.device(device)):  # TF32 alone would differ by more than the tolerance
        return compare_readers(checkpoint, path, images, device)


def compare_readers(checkpoint: Checkpoint, path: str | Path, images: Tensor, device: str) -> list[Comparison]:
    """Return the comparisons of `verify_checkpoint`."""
    expected = compute_outputs(checkpoint, images, device)
    reloaded = load_checkpoint(path)
    described = [(each.preprocessing, each.class_names, each.calibration) for each in (checkpoint, reloaded)]
    same = described[0] == described[1]
    comparisons = [compare_outputs("vitrine", compute_outputs(reloaded, images, device), expected, same)]
    peer = load_transformers_model(Path(path), checkpoint)
    if peer is not None:
        normalised = checkpoint.preprocessing.normalise(images.to(device))
        actual = compute_transformers_outputs(peer.to(device), normalised, checkpoint)
        comparisons.append(compare_outputs("transformers", actual, expected, True))
    return comparisons


def compute_outputs(checkpoint: Checkpoint, images: Tensor, device: str) -> Outputs:
    """Return features and logits of raw images."""
    model = checkpoint.model.to(device).eval()
    encoded = model.encode(checkpoint.preprocessing.normalise(images.to(device)))
    logits = model.forward_heads(encoded)
    return model.pool(encoded).cpu(), torch.stack(logits).mean(dim=0).cpu()


def compare_outputs(reader: str, actual: Outputs, expected: Outputs, same_description: bool) -> Comparison:
    """Build the Comparison of two models' features and logits."""
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


def draw_images(checkpoint: Checkpoint, count: int, seed: int) -> Tensor:
    """Draw random images as bytes (B, C, H, W): noise at several scales, so that all frequencies occur as in photographs."""
    height, width = checkpoint.model.config.image_size
    generator = torch.Generator().manual_seed(seed)
    images = torch.zeros(count, checkpoint.model.config.num_channels, height, width)
    for cells in (2, 8, 32, max(height, width)):
        noise = torch.rand(count, images.shape[1], cells, cells, generator=generator)
        images += torch.nn.functional.interpolate(noise, (height, width), mode="bilinear") / 4
    return (images * 255).round().to(torch.uint8)


def load_transformers_model(path: Path, checkpoint: Checkpoint) -> Any:
    """Load a folder in Hugging Face's format with transformers; None for other formats or if it is not installed."""
    is_hf_folder = path.is_dir() and (path / "preprocessor_config.json").is_file()
    if not is_hf_folder or find_spec("transformers") is None:
        return None
    import transformers

    transformers.logging.disable_progress_bar()  # it would be drawn over our table
    config = checkpoint.model.config
    if config.num_classes == 0:
        options = {"add_pooling_layer": config.hidden_head} if isinstance(config, ViTConfig) else {}
        return transformers.AutoModel.from_pretrained(path, **options).eval()
    if isinstance(config, ViTConfig) and config.distillation_token:
        return transformers.DeiTForImageClassificationWithTeacher.from_pretrained(path).eval()
    return transformers.AutoModelForImageClassification.from_pretrained(path).eval()


def compute_transformers_outputs(peer: Any, images: Tensor, checkpoint: Checkpoint) -> Outputs:
    """Return features and logits of normalised images, computed by transformers."""
    config = checkpoint.model.config
    base = peer.base_model(images)
    if isinstance(config, ViTConfig) and not config.hidden_head:
        features = base.last_hidden_state[:, : config.num_readout_tokens].mean(dim=1)
    else:
        features = base.pooler_output.flatten(1)
    return features.cpu(), (peer(images).logits if config.num_classes > 0 else features).cpu()
