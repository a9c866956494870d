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

# Relative to the largest logit: rounding of float32 through a hundred layers stays below, another GELU or epsilon above.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Comparison:
    reader: str
    """Who read what was written."""
    max_difference: float
    """Of any logit (or feature, where there is no head) of any image."""
    max_logit: float
    same_answers: int
    """Images whose first class is the same."""
    num_images: int

    @property
    def is_equal(self) -> bool:
        return self.max_difference <= TOLERANCE * max(1.0, self.max_logit)


@torch.no_grad()
def verify_checkpoint(checkpoint: Checkpoint, path: str | Path, images: Tensor, device: str = "cpu") -> list[Comparison]:
    """Compare `checkpoint` with what lies at `path`, on bytes or normalised images (B, C, H, W)."""
    normalised = (checkpoint.preprocessing.normalise(images) if images.dtype == torch.uint8 else images).to(device)
    expected = checkpoint.model.to(device).eval()(normalised).cpu()
    reloaded = load_checkpoint(path)
    again = reloaded.preprocessing.normalise(images) if images.dtype == torch.uint8 else images
    comparisons = [compare("vitrine", reloaded.model.to(device)(again.to(device)).cpu(), expected)]
    peer = load_peer(Path(path), checkpoint)
    if peer is not None:
        comparisons.append(compare("transformers", run_peer(peer.to(device), normalised, checkpoint).cpu(), expected))
    return comparisons


def draw_images(checkpoint: Checkpoint, count: int, seed: int) -> Tensor:
    """Bytes (B, C, H, W) that look a little like photographs: noise at several scales, so that all frequencies occur."""
    height, width = checkpoint.model.config.image_size
    generator = torch.Generator().manual_seed(seed)
    images = torch.zeros(count, checkpoint.model.config.num_channels, height, width)
    for cells in (2, 8, 32, max(height, width)):
        noise = torch.rand(count, images.shape[1], cells, cells, generator=generator)
        images += torch.nn.functional.interpolate(noise, (height, width), mode="bilinear") / 4
    return (images * 255).round().to(torch.uint8)


def compare(reader: str, actual: Tensor, expected: Tensor) -> Comparison:
    return Comparison(
        reader=reader,
        max_difference=float((actual - expected).abs().max()),
        max_logit=float(expected.abs().max()),
        same_answers=int((actual.argmax(dim=1) == expected.argmax(dim=1)).sum()),
        num_images=len(expected),
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


def run_peer(peer: Any, images: Tensor, checkpoint: Checkpoint) -> Tensor:
    output = peer(images)
    config = checkpoint.model.config
    if config.num_classes > 0:
        return output.logits
    if isinstance(config, ViTConfig) and not config.hidden_head:
        return output.last_hidden_state[:, : config.num_readout_tokens].mean(dim=1)
    return output.pooler_output.flatten(1)
