"""One network built by us and by each peer, configured for the same arithmetic as far as the peer allows.

All have a class token, learned positions, erf GELU, LayerNorm with eps 1e-6 and no dropout, and map images to logits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from vitrine.models.config import ViTConfig
from vitrine.models.registry import build_model

OURS = "vitrine"
NORM_EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class Network:
    """Sizes of a ViT, from which each contestant is built."""

    image_size: int
    patch_size: int
    width: int
    depth: int
    num_heads: int
    mlp_dim: int
    num_classes: int

    @property
    def num_patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2


@dataclass(frozen=True)
class Peer:
    """Another implementation of ViT: its package, the module to import, and a function that builds a network."""

    name: str
    package: str
    module: str
    build: Callable[[Network], nn.Module]


def build_ours(network: Network) -> nn.Module:
    """Build our ViT with the peers' GELU and epsilon."""
    config = ViTConfig(
        image_size=(network.image_size, network.image_size),
        patch_size=network.patch_size,
        width=network.width,
        depth=network.depth,
        num_heads=network.num_heads,
        mlp_dim=network.mlp_dim,
        num_classes=network.num_classes,
        gelu="erf",
        norm_eps=NORM_EPS,
    )
    return build_model(config)


def build_timm(network: Network) -> nn.Module:
    """Build timm's ViT, whose defaults are erf GELU and eps 1e-6."""
    return load_module("timm.models.vision_transformer").VisionTransformer(
        img_size=network.image_size,
        patch_size=network.patch_size,
        embed_dim=network.width,
        depth=network.depth,
        num_heads=network.num_heads,
        mlp_ratio=network.mlp_dim / network.width,
        num_classes=network.num_classes,
    )


def build_timm_explicit(network: Network) -> nn.Module:
    """Build timm's ViT with unfused attention, which can be faster than fused attention for few tokens."""
    model: Any = build_timm(network)
    for block in model.blocks:
        block.attn.fused_attn = False
    return model


def build_transformers(network: Network, attention: str = "sdpa") -> nn.Module:
    """Build the ViT of transformers with one of its attention implementations."""
    package = load_module("transformers")
    config = package.ViTConfig(
        image_size=network.image_size,
        patch_size=network.patch_size,
        hidden_size=network.width,
        num_hidden_layers=network.depth,
        num_attention_heads=network.num_heads,
        intermediate_size=network.mlp_dim,
        num_labels=network.num_classes,
        layer_norm_eps=NORM_EPS,
        attn_implementation=attention,
    )
    return LogitsOnly(package.ViTForImageClassification(config))


def build_transformers_eager(network: Network) -> nn.Module:
    return build_transformers(network, attention="eager")


def build_vit_pytorch(network: Network) -> nn.Module:
    """Build vit-pytorch's ViT, which differs a little.

    Its query, key and value have no bias, and its patches have a LayerNorm before and after projection.
    """
    model = load_module("vit_pytorch").ViT(
        image_size=network.image_size,
        patch_size=network.patch_size,
        dim=network.width,
        depth=network.depth,
        heads=network.num_heads,
        dim_head=network.width // network.num_heads,
        mlp_dim=network.mlp_dim,
        num_classes=network.num_classes,
    )
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = NORM_EPS
    return model


PEERS = (
    Peer("timm, fused", "timm", "timm.models.vision_transformer", build_timm),
    Peer("timm, explicit", "timm", "timm.models.vision_transformer", build_timm_explicit),
    Peer("transformers, sdpa", "transformers", "transformers.models.vit.modeling_vit", build_transformers),
    Peer("transformers, eager", "transformers", "transformers.models.vit.modeling_vit", build_transformers_eager),
    Peer("vit-pytorch", "vit-pytorch", "vit_pytorch", build_vit_pytorch),
)


class LogitsOnly(nn.Module):
    """Wrapper that returns the logits tensor of a transformers model instead of its output object."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).logits


def find_peers() -> tuple[list[Peer], dict[str, str]]:
    """Return the peers that can be imported, and for each package that cannot, the reason in one line."""
    found, missing = [], {}
    for peer in PEERS:
        try:
            load_module(peer.module)
        except Exception as error:  # a peer that fails is reported and does not stop the others
            missing[peer.package] = describe_absence(error)
        else:
            found.append(peer)
    return found, missing


def describe_absence(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def compute_versions(peers: list[Peer]) -> dict[str, str]:
    return {package: metadata.version(package) for package in (OURS, *(peer.package for peer in peers))}


def build_contestants(network: Network, peers: list[Peer]) -> dict[str, nn.Module]:
    """Build all models, ours first, with random weights everywhere: zero heads would give zero gradients to their network."""
    models = {OURS: build_ours(network)} | {peer.name: peer.build(network) for peer in peers}
    for model in models.values():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)
    return models


def load_module(name: str) -> Any:
    """Import a peer's module, working around a torchvision whose compiled operators do not load."""
    if find_spec("torchvision") is not None:
        load_torchvision()
    return import_module(name)


def load_torchvision() -> None:
    """Import torchvision, which timm and transformers import, even if its compiled operators do not load.

    Without them, its Python part fails because two operators are not registered. timm's ViT uses neither, so declaring them
    is enough. Declaring operators that did load would be an error, so this is done only after the import has failed.
    """
    try:
        import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        declare_operators()
        import_module("torchvision")


@cache  # keeps the library alive: its declarations end when it is deleted
def declare_operators() -> torch.library.Library:
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library
