"""The files that the fuzz tests damage: one small checkpoint in every kind of file that we read."""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.filling import build_filled
from vitrine.core.console import VitrineWarning
from vitrine.data.preprocessing import build_imagenet_preprocessing
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.config import FormatName
from vitrine.formats.save import save_checkpoint
from vitrine.models.config import ViTConfig

# Two heads where the default is one: metadata that is lost without an error shows as another model.
CONFIG = ViTConfig(width=64, depth=1, num_heads=2, mlp_dim=8, patch_size=2, image_size=(4, 4), num_classes=3, gelu="erf")
FORMATS: dict[str, FormatName] = {
    "own": "vitrine",
    "timm.safetensors": "timm",
    "timm.pth": "timm",
    "google.npz": "google-2020",
    "transformers": "hf",
}
INDEX = "shards/model.safetensors.index.json"
SHARDS = ("shards/model-00001-of-00002.safetensors", "shards/model-00002-of-00002.safetensors")


def save_originals(folder: Path) -> None:
    checkpoint = Checkpoint(build_filled(CONFIG), build_imagenet_preprocessing(CONFIG.image_size), ("cat", "dog", "eel"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VitrineWarning)  # erf is not the default of google-2020
        for name, form in FORMATS.items():
            save_checkpoint(checkpoint, folder / name, form)
    torch.save(torch.load(folder / "timm.pth", weights_only=True), folder / "old.pth", _use_new_zipfile_serialization=False)
    shutil.copy(folder / "timm.pth.vitrine.json", folder / "old.pth.vitrine.json")
    with np.load(folder / "google.npz") as arrays:
        np.savez_compressed(folder / "packed.npz", **arrays)
    shutil.copy(folder / "google.npz.vitrine.json", folder / "packed.npz.vitrine.json")
    # As others write them, without our metadata.
    weights = folder / "transformers" / "model.safetensors"
    save_file(load_file(weights), weights, metadata={"format": "pt"})
    save_shards(folder, load_file(folder / "timm.safetensors"))


def save_shards(folder: Path, state: dict[str, torch.Tensor]) -> None:
    (folder / "shards").mkdir()
    shard_of = {name: shard for i, shard in enumerate(SHARDS) for name in sorted(state)[i::2]}
    for shard in SHARDS:
        save_file({name: state[name] for name, file in shard_of.items() if file == shard}, folder / shard)
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in state.values())},
        "weight_map": {name: Path(file).name for name, file in shard_of.items()},
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2))
    pretrained = {"input_size": [3, 4, 4], "interpolation": "bicubic", "crop_pct": 0.9, "mean": [0.5] * 3, "std": [0.5] * 3}
    config = {"architecture": "vit", "num_classes": 3, "pretrained_cfg": pretrained}
    (folder / "shards" / "config.json").write_text(json.dumps(config))


def find_source(file: str) -> str:
    """Return the source that reads a file: its folder, or the weights that it lies beside."""
    return file.split("/")[0].removesuffix(".vitrine.json")
