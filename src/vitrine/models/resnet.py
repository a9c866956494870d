"""ResNets with group norm and standardised convolutions, in the two styles of the paper's code.

Pre-activation is BiT (arXiv:1912.11370), the paper's baseline; post-activation is the stem of its hybrids. They differ in
more than the order of the norms: padding, both epsilons and where the second is added (`docs/paper.md`).

Shapes: B batch, C channels, R rows and S columns of a feature map.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.models.config import ResizeMethod, ResNetConfig, as_image_size, needs_projection
from vitrine.models.intermediates import IntermediateRecorder
from vitrine.models.model import Encoded, Model
from vitrine.models.weight_init import init_lecun_normal


class ResNet(Model[ResNetConfig]):
    """A ResNet whose `blocks` are its stages, as in the released names; their outputs are recorded as (B, C, R, S)."""

    before_blocks = ("root",)

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.config = config
        self.root = Root(config)
        self.blocks = nn.ModuleList(build_stage(config, stage) for stage in range(len(config.stages)))
        has_final_norm = config.style == "pre-activation"
        self.norm = build_group_norm(config.feature_dim, config) if has_final_norm else None
        self.head = self.build_head()

    @property
    def intermediates(self) -> tuple[str, ...]:
        return ("root", *(f"blocks.{stage}.output" for stage in range(len(self.blocks))))

    def embed_images(self, images: Tensor, recorder: IntermediateRecorder | None) -> tuple[Tensor, tuple[int, int]]:
        """Compute the cells of the root's feature map as tokens: the nearest thing to patches that a ResNet has."""
        return flatten_map(self.embed_map(images, recorder)), self.config.root_grid

    def encode_tokens(self, tokens: Tensor, patch_indices: Tensor | None, recorder: IntermediateRecorder | None) -> Encoded:
        """Run the stages on a feature map given as tokens, for `Model.encode`."""
        features = tokens.transpose(1, 2).unflatten(2, self.config.root_grid)
        tokens_out = flatten_map(self.encode_map(features, recorder))
        return Encoded(tokens_out, self.config.grid, {} if recorder is None else recorder.kept)

    def embed_map(self, images: Tensor, recorder: IntermediateRecorder | None) -> Tensor:
        """Run the root: images to its feature map."""
        features = self.root(images)
        if recorder is not None:
            recorder("root", features)
        return features

    def encode_map(self, features: Tensor, recorder: IntermediateRecorder | None) -> Tensor:
        """Run the stages and the last norm on the root's feature map."""
        for stage, units in enumerate(self.blocks):
            assert isinstance(units, nn.Sequential)
            for unit in units:
                features = self.run_block(unit, features)
            if recorder is not None:
                recorder(f"blocks.{stage}.output", features)
        return features if self.norm is None else F.relu(self.norm(features))

    def pool(self, encoded: Encoded) -> Tensor:
        return encoded.tokens.mean(dim=1)

    def resize(self, image_size: int | tuple[int, int], method: ResizeMethod = "paper") -> None:
        """Take images of another size: a ResNet has no positions to interpolate."""
        if method != "paper":
            raise ValueError(f"method={method!r} is for positions, which a ResNet does not have: leave it out.")
        self.config = replace(self.config, image_size=as_image_size(image_size))


class Root(nn.Module):
    """First convolution and max pool, with a total stride of 4."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.pads_zeros = config.pool_padding == "zeros"
        self.conv = StandardisedConv(config.num_channels, config.root_dim, 7, 2, config)
        self.norm = build_group_norm(config.root_dim, config) if config.style == "post-activation" else None

    def forward(self, images: Tensor) -> Tensor:
        """Run the root: convolution and max-pooling."""
        features = self.conv(images)
        if self.norm is None:
            # BiT pads its pool with zeros, which are not neutral for values that may be negative; big_vision's does not.
            padded = F.pad(features, (1, 1, 1, 1), value=0.0 if self.pads_zeros else -math.inf)
        else:
            features = F.relu(self.norm(features))
            padded = pad_same(features, 3, 2)  # zeros are neutral after a ReLU
        return F.max_pool2d(padded, kernel_size=3, stride=2)


class PreActivationUnit(nn.Module):
    """Bottleneck unit of BiT: norm and ReLU before each convolution; the projection reads the first normed input."""

    def __init__(self, in_dim: int, mid_dim: int, stride: int, config: ResNetConfig) -> None:
        super().__init__()
        out_dim = 4 * mid_dim
        self.norm1 = build_group_norm(in_dim, config)
        self.conv1 = StandardisedConv(in_dim, mid_dim, 1, 1, config)
        self.norm2 = build_group_norm(mid_dim, config)
        self.conv2 = StandardisedConv(mid_dim, mid_dim, 3, stride, config)
        self.norm3 = build_group_norm(mid_dim, config)
        self.conv3 = StandardisedConv(mid_dim, out_dim, 1, 1, config)
        self.projection = None
        if needs_projection(in_dim, mid_dim, stride):
            self.projection = StandardisedConv(in_dim, out_dim, 1, stride, config)

    def forward(self, x: Tensor) -> Tensor:
        """Run a pre-activation bottleneck unit (BiT)."""
        y = F.relu(self.norm1(x))
        shortcut = x if self.projection is None else self.projection(y)
        y = self.conv1(y)
        y = self.conv2(F.relu(self.norm2(y)))
        return shortcut + self.conv3(F.relu(self.norm3(y)))


class PostActivationUnit(nn.Module):
    """Bottleneck unit of the hybrids' stem: convolution, norm, ReLU, and a ReLU after the sum."""

    def __init__(self, in_dim: int, mid_dim: int, stride: int, config: ResNetConfig) -> None:
        super().__init__()
        out_dim = 4 * mid_dim
        self.conv1 = StandardisedConv(in_dim, mid_dim, 1, 1, config)
        self.norm1 = build_group_norm(mid_dim, config)
        self.conv2 = StandardisedConv(mid_dim, mid_dim, 3, stride, config)
        self.norm2 = build_group_norm(mid_dim, config)
        self.conv3 = StandardisedConv(mid_dim, out_dim, 1, 1, config)
        self.norm3 = build_group_norm(out_dim, config)
        nn.init.zeros_(self.norm3.weight)  # each unit starts as its shortcut
        self.projection = self.norm_projection = None
        if needs_projection(in_dim, mid_dim, stride):
            self.projection = StandardisedConv(in_dim, out_dim, 1, stride, config)
            self.norm_projection = build_group_norm(out_dim, config)

    def forward(self, x: Tensor) -> Tensor:
        """Run a post-activation bottleneck unit (stem of hybrids)."""
        shortcut = x
        if self.projection is not None and self.norm_projection is not None:
            shortcut = self.norm_projection(self.projection(x))
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(shortcut + self.norm3(self.conv3(y)))


class StandardisedConv(nn.Conv2d):
    """Convolution with weight standardisation: a kernel of mean 0 and deviation 1 per output channel, and no bias."""

    def __init__(self, in_dim: int, out_dim: int, kernel: int, stride: int, config: ResNetConfig) -> None:
        # With stride 1, TF's SAME is the symmetric padding that torch and BiT use; with stride 2 it is in `forward`.
        pads_same = config.style == "post-activation"
        self.pads_itself = pads_same and stride > 1
        super().__init__(in_dim, out_dim, kernel, stride, padding=0 if self.pads_itself else kernel // 2, bias=False)
        self.eps = config.epsilons[1]
        self.eps_on_deviation = pads_same
        init_lecun_normal(self)

    def forward(self, input: Tensor) -> Tensor:
        """Convolve with standardised weights."""
        if self.pads_itself:
            input = pad_same(input, self.kernel_size[0], self.stride[0])
        return self._conv_forward(input, self.standardise(), None)

    def standardise(self) -> Tensor:
        """Compute the standardised kernel."""
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), correction=0, keepdim=True)
        # Post-activation adds epsilon to the deviation, BiT to the variance: the two are not the same network.
        deviation = variance.sqrt() + self.eps if self.eps_on_deviation else (variance + self.eps).sqrt()
        return (self.weight - mean) / deviation


def build_stage(config: ResNetConfig, stage: int) -> nn.Sequential:
    """Build the residual units of one stage in the config's style."""
    unit = PreActivationUnit if config.style == "pre-activation" else PostActivationUnit
    return nn.Sequential(*(unit(*shape, config) for shape in config.unit_shapes(stage)))


def build_group_norm(num_channels: int, config: ResNetConfig) -> nn.GroupNorm:
    """Build a GroupNorm with the largest number of groups up to `num_groups` that divides the channels."""
    num_groups = next(groups for groups in range(config.num_groups, 0, -1) if num_channels % groups == 0)
    return nn.GroupNorm(num_groups, num_channels, eps=config.epsilons[0])


def pad_same(features: Tensor, kernel: int, stride: int) -> Tensor:
    """Pad like TF's SAME: an odd zero goes to the right and bottom, where symmetric padding would shift the image."""
    rows, columns = (max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in features.shape[2:])
    if rows == columns == 0:
        return features
    return F.pad(features, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))


def flatten_map(features: Tensor) -> Tensor:
    """Flatten a feature map (B, C, R, S) to tokens (B, R * S, C) in raster order."""
    return features.flatten(2).transpose(1, 2)
