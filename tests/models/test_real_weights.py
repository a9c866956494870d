"""DeiT-Tiny's released weights on real photographs: the network is right where it matters, not only on random numbers."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from transformers import ViTConfig, ViTForImageClassification

from tests.peers import copy_peer_weights
from vitrine.models.model import Model
from vitrine.models.registry import build_model

# From timm's names, which the file has, to Hugging Face's.
RENAMES = [
    (r"^cls_token$", "vit.embeddings.cls_token"),
    (r"^pos_embed$", "vit.embeddings.position_embeddings"),
    (r"^patch_embed\.proj\.", "vit.embeddings.patch_embeddings.projection."),
    (r"^blocks\.", "vit.layers."),
    (r"\.attn\.proj\.", ".attention.o_proj."),
    (r"\.norm1\.", ".layernorm_before."),
    (r"\.norm2\.", ".layernorm_after."),
    (r"^norm\.", "vit.layernorm."),
    (r"^head\.", "classifier."),
]
MEAN = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
STD = torch.tensor([0.229, 0.224, 0.225])[:, None, None]


@pytest.fixture(scope="module")
def peer(assets: Path) -> ViTForImageClassification:
    state = {}
    for name, value in load_file(assets / "deit-tiny" / "model.safetensors").items():
        for pattern, theirs in RENAMES:
            name = re.sub(pattern, theirs, name)
        if ".attn.qkv." in name:
            for part, piece in zip("qkv", value.chunk(3), strict=True):
                state[name.replace(".attn.qkv.", f".attention.{part}_proj.")] = piece
        else:
            state[name] = value
    config = ViTConfig(hidden_size=192, num_attention_heads=3, intermediate_size=768, layer_norm_eps=1e-6, num_labels=1000)
    peer = ViTForImageClassification(config).eval()
    peer.load_state_dict(state)
    return peer


@pytest.fixture(scope="module")
def model(peer: ViTForImageClassification) -> Model[Any]:
    model = build_model("ViT-Ti/16", gelu="erf").eval()
    model.load_state_dict(copy_peer_weights(peer))
    return model


def read_photographs(assets: Path, labels: range) -> Tensor:
    """One validation image for each label. Their short side is 256 already: a centre crop of 224 is left to do."""
    images = []
    for label in labels:
        (path,) = (assets / "imagenet-val-1000" / f"{label:03d}").iterdir()
        with Image.open(path) as image:
            left, top = ((side - 224) // 2 for side in image.size)
            pixels = np.array(image.convert("RGB").crop((left, top, left + 224, top + 224)))
        images.append((torch.from_numpy(pixels).permute(2, 0, 1) / 255 - MEAN) / STD)
    return torch.stack(images)


@torch.no_grad()
def test_logits_equal_hugging_face_on_photographs(model: Model[Any], peer: ViTForImageClassification, assets: Path) -> None:
    images = read_photographs(assets, range(0, 1000, 100))
    expected = peer(images).logits
    assert expected.std() > 1
    # Logits reach 15 here: a hundred thousandth of that.
    torch.testing.assert_close(model(images), expected, rtol=1e-5, atol=1e-4)


@torch.no_grad()
def test_photographs_are_recognised_at_a_higher_resolution(model: Model[Any], assets: Path) -> None:
    """Positions resized to a grid the weights never saw: without the resizing the answers would be chance."""
    labels = range(0, 1000, 20)
    images = torch.nn.functional.interpolate(read_photographs(assets, labels), 288, mode="bicubic", antialias=True)
    larger = build_model(model.config)
    larger.load_state_dict(model.state_dict())
    larger.eval().resize(288)
    assert (larger(images).argmax(dim=1) == torch.tensor(labels)).float().mean() > 0.5
