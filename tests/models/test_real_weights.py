"""DeiT-Tiny's released weights on real photographs, compared with Hugging Face's network."""

import copy
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
from vitrine.data.preprocessing import build_imagenet_preprocessing
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.load import load_checkpoint
from vitrine.formats.save import save_checkpoint
from vitrine.models.config import Readout
from vitrine.models.model import Model, PatchSubset
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
    """Read one validation image per label, centre-cropped to 224; the short side is 256 already."""
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
    """Check positions resized to a grid the weights never saw; without resizing, predictions would be chance."""
    labels = range(0, 1000, 20)
    images = torch.nn.functional.interpolate(read_photographs(assets, labels), 288, mode="bicubic", antialias=True)
    larger = build_model(model.config)
    larger.load_state_dict(model.state_dict())
    larger.eval().resize(288)
    assert (larger(images).argmax(dim=1) == torch.tensor(labels)).float().mean() > 0.5


@torch.no_grad()
def test_dropped_patches_are_those_hugging_faces_layers_never_see(
    model: Model[Any], peer: ViTForImageClassification, assets: Path
) -> None:
    """Compare with the peer's layers, run on the embeddings of the patches that are left, both in double precision."""
    model, peer = copy.deepcopy(model).double(), copy.deepcopy(peer).double()
    images = read_photographs(assets, range(0, 400, 100)).double()
    generator = torch.Generator().manual_seed(0)
    left = torch.stack([torch.randperm(196, generator=generator)[:50] for _ in images])
    encoded = model.encode(images, edit=lambda tokens: PatchSubset(take(tokens, left), left))
    hidden = peer.vit.embeddings(images)
    hidden = torch.cat([hidden[:, :1], take(hidden[:, 1:], left)], dim=1)
    for layer in peer.vit.layers:
        hidden = layer(hidden)
    expected = peer.vit.layernorm(hidden)
    torch.testing.assert_close(encoded.tokens, expected, rtol=1e-9, atol=1e-9)
    assert torch.equal(encoded.patches, encoded.tokens[:, 1:])
    torch.testing.assert_close(model.forward_heads(encoded)[0], peer.classifier(expected[:, 0]), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_dropping_no_patch_changes_nothing(model: Model[Any], assets: Path) -> None:
    images, order = read_photographs(assets, range(2)), torch.arange(196).expand(2, -1)
    encoded = model.encode(images, edit=lambda tokens: PatchSubset(tokens, order))
    assert torch.equal(encoded.tokens, model.encode(images).tokens)


def take(tokens: Tensor, indices: Tensor) -> Tensor:
    return tokens[torch.arange(len(tokens))[:, None], indices]


@pytest.mark.parametrize("readout", ["class", "mean", "both"])
def test_readout_of_several_layers_is_trained_saved_and_loaded(
    readout: Readout, model: Model[Any], peer: ViTForImageClassification, assets: Path, tmp_path: Path
) -> None:
    """Compare with the peer's layers, each normalised by its last norm, as in DINOv2's linear heads."""
    images = read_photographs(assets, range(3))
    deeper = build_model(model.config).eval()
    deeper.load_state_dict(model.state_dict())
    deeper.reset_head(3, readout_layers=(2, 9, 11), readout=readout)
    assert deeper.config.feature_dim == deeper.head.in_features == 3 * 192 * (2 if readout == "both" else 1)

    optimizer = torch.optim.SGD(deeper.head.parameters(), lr=0.1)
    torch.nn.functional.cross_entropy(deeper(images), torch.arange(3)).backward()
    assert all(parameter.grad is not None for parameter in deeper.parameters())
    optimizer.step()

    hidden, features = peer.vit.embeddings(images), []
    for index, layer in enumerate(peer.vit.layers):
        hidden = layer(hidden)
        if index in (2, 9, 11):
            tokens = peer.vit.layernorm(hidden)
            features += [tokens[:, 0]] * (readout != "mean") + [tokens[:, 1:].mean(dim=1)] * (readout != "class")
    with torch.no_grad():
        expected = torch.cat(features, dim=1) @ deeper.head.weight.T + deeper.head.bias
        logits = deeper(images)
    assert expected.std() > 0.1
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-4)

    save_checkpoint(Checkpoint(deeper, build_imagenet_preprocessing((224, 224)), None, {}), tmp_path / "model")
    loaded = load_checkpoint(tmp_path / "model").model.eval()
    assert loaded.config == deeper.config
    with torch.no_grad():
        assert torch.equal(loaded(images), logits)
