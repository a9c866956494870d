"""The contestants: one network, built by us and by each peer, with the same arithmetic wherever the peer can be set.

Everyone has a class token, learned positions, erf GELU, LayerNorm with eps 1e-6, no dropout, and takes images to logits.
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
    name: str
    package: str
    module: str
    build: Callable[[Network], nn.Module]


def build_ours(network: Network) -> nn.Module:
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
    # Left as they come: erf GELU and eps 1e-6.
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
    """Softmax between two matrix products, which can win over the fused attention where there are few tokens."""
    model: Any = build_timm(network)
    for block in model.blocks:
        block.attn.fused_attn = False
    return model


def build_transformers(network: Network, attention: str = "sdpa") -> nn.Module:
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
    """Nearly the same: its query, key and value have no bias, and its patches have a LayerNorm before and after projection."""
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
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).logits


def find_peers() -> tuple[list[Peer], dict[str, str]]:
    """The peers that can be imported, and for each package that cannot, the reason in one line."""
    found, missing = [], {}
    for peer in PEERS:
        try:
            load_module(peer.module)
        except Exception as error:  # whatever stops a peer is to be named, not to stop the others
            missing[peer.package] = describe_absence(error)
        else:
            found.append(peer)
    return found, missing


def describe_absence(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def compute_versions(peers: list[Peer]) -> dict[str, str]:
    return {package: metadata.version(package) for package in (OURS, *(peer.package for peer in peers))}


def build_contestants(network: Network, peers: list[Peer]) -> dict[str, nn.Module]:
    """Ours first. All weights are drawn alike: heads that start at zero would hand zero gradients to their network."""
    models = {OURS: build_ours(network)} | {peer.name: peer.build(network) for peer in peers}
    for model in models.values():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)
    return models


def load_module(name: str) -> Any:
    if find_spec("torchvision") is not None:
        load_torchvision()
    return import_module(name)


def load_torchvision() -> None:
    """Import torchvision, which timm and transformers import, also where its compiled operators do not load.

    Its Python part then stops at describing two operators that nobody registered. Timm's ViT uses neither, so declaring
    them is enough. Where the operators do load, declaring them again would be an error: hence only after the failure.
    """
    try:
        import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        declare_operators()
        import_module("torchvision")


@cache  # which also keeps the library alive: its declarations end with it
def declare_operators() -> torch.library.Library:
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library
