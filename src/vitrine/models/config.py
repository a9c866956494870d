"""Configs of all model families as frozen dataclasses, without torch, so that names, costs and `--help` answer at once.

Section, table and appendix numbers are those of arXiv:2010.11929.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from vitrine.core.config_checks import require_at_least, require_counts, require_field_types, require_positive, require_rates

Pool = Literal["class", "mean", "map", "first"]
Gelu = Literal["tanh", "erf", "quick"]
Readout = Literal["class", "mean", "both"]
Position = Literal["none", "learned-1d", "learned-2d", "relative", "sincos-2d"]
PositionInsertion = Literal["stem", "every-layer", "shared"]
ResNetStyle = Literal["pre-activation", "post-activation"]
PoolPadding = Literal["zeros", "none"]
ResizeMethod = Literal["paper", "timm", "hf"]
"""How learned positions are interpolated to another grid: corner-aligned bilinear as in the paper's code, or bicubic as in
timm (antialiased) and Hugging Face (not antialiased)."""

# The combinations of table 8. Sin-cos positions are not in the paper; its successors add them at the stem only.
POSITION_INSERTIONS: dict[Position, tuple[PositionInsertion, ...]] = {
    "none": ("stem",),
    "learned-1d": ("stem", "every-layer", "shared"),
    "learned-2d": ("stem", "every-layer", "shared"),
    "relative": ("stem",),
    "sincos-2d": ("stem",),
}

# GroupNorm's and weight standardisation's epsilons in the released code of each style.
RELEASED_EPSILONS = {"pre-activation": (1e-5, 1e-10), "post-activation": (1e-6, 1e-5)}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Fields of every model family."""

    num_classes: int = 1000
    """Classes of the head; 0: no head, the model returns its features."""
    image_size: tuple[int, int] = (224, 224)
    """Height and width in pixels."""
    num_channels: int = 3
    head_bias: float = 0.0
    """Initial bias of the head; -10 for sigmoid pre-training, so that training starts from "no label"."""
    gradient_checkpointing: bool = False
    """Recompute each block in the backward pass: less memory for about a third more compute."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 0, "num_classes")
        require_at_least(self, 1, "num_channels")
        require_counts(self, "image_size", "height and width, e.g. (224, 224)")
        if len(self.image_size) != 2:
            raise ValueError(f"image_size={self.image_size} must be two numbers, height and width.")

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the patches, or of the last feature map."""
        raise NotImplementedError

    @property
    def feature_dim(self) -> int:
        """Number of features that `pool` returns and the head reads."""
        raise NotImplementedError

    @property
    def can_drop_patches(self) -> bool:
        """True if the network can run on some of the patches, as an `edit` of `Model.encode` may ask."""
        return False


@dataclass(frozen=True, kw_only=True)
class ViTConfig(ModelConfig):
    """Config of a Vision Transformer. The four sizes have no default: VARIANTS in registry.py has them."""

    width: int
    depth: int
    num_heads: int
    mlp_dim: int
    patch_size: int = 16

    mlp: Literal["gelu", "swiglu"] = "gelu"
    """swiglu has two input projections of `mlp_dim` each, one gating the other."""
    gelu: Gelu = "tanh"
    """tanh approximation as in the paper's code, erf as in timm, Hugging Face and torchvision, or quick as in OpenAI's CLIP:
    x * sigmoid(1.702 x)."""
    norm_eps: float = 1e-6
    pre_norm: bool = False
    """Normalise the tokens before the first block, as in CLIP (timm's `norm_pre`)."""
    patch_bias: bool = True
    """Whether the patch embedding has a bias; CLIP's has none."""
    qkv_bias: bool = True
    """Whether queries, keys and values of the blocks have a bias."""

    pool: Pool = "class"
    """Features for the head: class token, mean of the patches, attention pooling (map), or the first patch, as in models of
    big_vision with pool_type "0"."""
    norm_after_pool: bool = False
    """Normalise the mean of the tokens instead of each token (timm's `fc_norm`)."""
    readout_layers: tuple[int, ...] = ()
    """Blocks, counted from 0 and ending with the last, whose normalised outputs are concatenated for the head, as in DINOv2's
    linear heads; (): the pool of the last block only."""
    readout: Readout | None = None
    """Features of each of `readout_layers`: class token, mean of the patches, or both; None: as `pool`."""
    hidden_head: bool = False
    """The pre-training head: a hidden layer and tanh before the linear layer (section 3.1)."""
    hidden_head_dim: int | None = None
    """Width of that hidden layer; None: the model's width."""
    class_token: bool | None = None
    """Whether there is a class token; None: only if the pool reads it."""
    num_registers: int = 0
    distillation_token: bool = False
    """A second token with a second head; `forward` returns the mean of both heads' logits."""

    position: Position = "learned-1d"
    position_insertion: PositionInsertion = "stem"
    class_position: bool | None = None
    """Whether class and distillation tokens have positions of their own; None: if the kind of position can give them one."""
    register_position: bool = False
    """Whether registers have learned positions too, as in some models of timm."""

    layer_scale: float | None = None
    """Initial value of a learned factor on each residual branch; None: no such factor."""
    dropout_rate: float = 0.0
    stochastic_depth_rate: float = 0.0
    """Rate at the last block; it grows linearly from 0 at the first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "width", "depth", "num_heads", "mlp_dim", "patch_size", "hidden_head_dim")
        require_at_least(self, 0, "num_registers")
        require_rates(self, "dropout_rate", "stochastic_depth_rate")
        require_positive(self, "norm_eps")
        if self.layer_scale is not None:
            require_at_least(self, 0, "layer_scale")
        if self.width % self.num_heads != 0:
            near = " or ".join(nearest_divisors(self.width, self.num_heads))
            raise ValueError(f"width={self.width} must be divisible by num_heads={self.num_heads}: take num_heads={near}.")
        self._check_grid()
        self._check_pool()
        self._check_readout()
        self._check_positions()

    def _check_grid(self) -> None:
        """Raise a ValueError if the image does not hold a patch."""
        if min(self.grid) < 1:
            patch = f"a patch of {self.patch_size} x {self.patch_size} pixels"
            raise ValueError(f"image_size={self.image_size} must hold {patch}: take larger images or a smaller patch_size.")

    def _check_pool(self) -> None:
        """Raise a ValueError if pool, tokens and heads do not go together."""
        if self.pool == "class" and not self.has_class_token:
            raise ValueError("pool='class' needs the class token: leave class_token out, or take pool='mean' or 'map'.")
        if self.pool == "first" and self.has_class_token:
            raise ValueError("pool='first' reads the first patch of a model without a class token: take pool='class'.")
        if self.norm_after_pool and self.pool != "mean":
            raise ValueError(f"norm_after_pool belongs to pool='mean', not to pool={self.pool!r}.")
        if self.distillation_token and self.pool != "class":
            raise ValueError(f"distillation_token needs pool='class' beside it, not pool={self.pool!r}.")
        if self.hidden_head and self.distillation_token:
            raise ValueError("hidden_head and distillation_token exclude each other: the two heads are linear.")
        if self.hidden_head_dim is not None and not self.hidden_head:
            raise ValueError(f"hidden_head_dim={self.hidden_head_dim} needs hidden_head=True: leave it out, or set both.")

    def _check_readout(self) -> None:
        """Raise a ValueError if the head cannot read `readout_layers` as `readout` says."""
        layers = self.readout_layers
        if layers == ():
            if self.readout is not None:
                raise ValueError(f"readout={self.readout!r} needs readout_layers, e.g. ({self.depth - 1},): give them too.")
            return
        is_ascending = isinstance(layers, tuple) and {*map(type, layers)} == {int} and sorted(set(layers)) == [*layers]
        if not is_ascending or layers[0] < 0 or layers[-1] != self.depth - 1:
            expected = f"ascending block numbers from 0 that end with the last block, {self.depth - 1}"
            raise ValueError(f"readout_layers={layers!r} must be {expected}: later blocks would not be read.")
        if self.pool in ("map", "first") or self.hidden_head or self.distillation_token:
            combined = f"pool={self.pool!r}" if self.pool in ("map", "first") else "hidden_head or distillation_token"
            raise ValueError(f"readout_layers cannot be combined with {combined}.")
        if "class" in self.readout_parts and not self.has_class_token:
            raise ValueError(f"readout={self.readout!r} needs the class token: take readout='mean', or class_token=True.")

    def _check_positions(self) -> None:
        """Raise a ValueError if the kind of position does not go with its insertion, the class token or the width."""
        allowed = POSITION_INSERTIONS[self.position]
        if self.position_insertion not in allowed:
            expected = f"position={self.position!r} can be inserted: {', '.join(allowed)}"
            raise ValueError(f"{expected}; not {self.position_insertion!r}.")
        if self.class_position and not self._position_has_class_row:
            found = f"position={self.position!r} with class_token={self.has_class_token}"
            raise ValueError(f"class_position needs a class token and learned or relative positions, not {found}: omit it.")
        if self.register_position:
            self._check_register_position()
        divisor = {"learned-2d": 2, "sincos-2d": 4}.get(self.position, 1)
        if self.width % divisor != 0:
            raise ValueError(f"width={self.width} must be divisible by {divisor} for position={self.position!r}.")
        if self.position == "sincos-2d" and self.width < 8:
            raise ValueError(f"width={self.width} must be at least 8 for position='sincos-2d': it needs two frequencies.")

    def _check_register_position(self) -> None:
        """Raise a ValueError if registers cannot have positions: rows of a table go to the first tokens, registers last."""
        if self.num_registers == 0 or self.position not in ("learned-1d", "learned-2d"):
            found = f"num_registers={self.num_registers} with position={self.position!r}"
            raise ValueError(f"register_position needs registers and learned positions, not {found}: leave it out.")
        if self.class_position is False and self.num_readout_tokens > 0:
            raise ValueError("register_position needs positions of the class token too: leave class_position out.")

    @property
    def _position_has_class_row(self) -> bool:
        return self.has_class_token and self.position in ("learned-1d", "learned-2d", "relative")

    @property
    def has_class_token(self) -> bool:
        return self.pool == "class" if self.class_token is None else self.class_token

    @property
    def readout_parts(self) -> tuple[str, ...]:
        """What is read of each of `readout_layers`: "class", "mean" or both."""
        readout = self.readout or self.pool
        return ("class", "mean") if readout == "both" else (readout,)

    @property
    def num_readout_tokens(self) -> int:
        """Number of class and distillation tokens."""
        return int(self.has_class_token) + int(self.distillation_token)

    @property
    def num_position_rows(self) -> int:
        """Number of prefix tokens that have a position: class and distillation tokens, then registers."""
        wanted = self._position_has_class_row if self.class_position is None else self.class_position
        return (self.num_readout_tokens if wanted else 0) + (self.num_registers if self.register_position else 0)

    @property
    def num_positions(self) -> int:
        """Number of tokens that have a position: rows of a learned table."""
        return self.num_position_rows + self.num_patches

    @property
    def num_prefix_tokens(self) -> int:
        return self.num_readout_tokens + self.num_registers

    @property
    def num_patches(self) -> int:
        rows, columns = self.grid
        return rows * columns

    @property
    def num_tokens(self) -> int:
        return self.num_prefix_tokens + self.num_patches

    @property
    def patch_channels(self) -> int:
        """Channels of the image or feature map that patches are cut from."""
        return self.num_channels

    @property
    def patch_dim(self) -> int:
        """Numbers in one patch before the linear embedding: P * P * C (eq. 1)."""
        return self.patch_size * self.patch_size * self.patch_channels

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the patches."""
        # Like a VALID convolution: pixels at the right and bottom that do not fill a patch are dropped.
        height, width = self.image_size
        return height // self.patch_size, width // self.patch_size

    @property
    def feature_dim(self) -> int:
        """Number of features that the head reads."""
        if not self.readout_layers:
            return self.hidden_head_dim or self.width
        return self.width * len(self.readout_layers) * len(self.readout_parts)

    @property
    def can_drop_patches(self) -> bool:
        return self.position != "relative"  # its table of offsets is for the whole grid


@dataclass(frozen=True, kw_only=True)
class AxialConfig(ViTConfig):
    """Config of an Axial-ViT, whose blocks attend along rows, then along columns (appendix D.6)."""

    pool: Pool = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_prefix_tokens > 0:
            raise ValueError("Axial models cannot have class, distillation or register tokens: take pool='mean' or 'map'.")
        if self.position == "relative":
            raise ValueError("Axial models cannot use position='relative'; take learned-1d, learned-2d, sincos-2d or none.")

    @property
    def can_drop_patches(self) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class ResNetConfig(ModelConfig):
    """Config of a ResNet with group norm and standardised convolutions: the paper's baseline and the stem of its hybrids."""

    stages: tuple[int, ...]
    """Residual units in each stage. No default: RESNET_STAGES in registry.py has them."""
    width_factor: float = 1.0
    style: ResNetStyle = "pre-activation"
    """pre-activation as in BiT, or post-activation with TF's asymmetric SAME padding as in the hybrids."""
    num_groups: int = 32
    """Most groups of each norm: the largest divisor of the channels up to this number."""
    norm_eps: float | None = None
    """Epsilon of the norms; None: as released, 1e-5 (pre-activation) or 1e-6 (post-activation)."""
    standardise_eps: float | None = None
    """Epsilon of standardised convolutions; None: as released, 1e-10 added to the variance (pre-activation) or 1e-5 to the
    standard deviation (post-activation)."""
    pool_padding: PoolPadding = "zeros"
    """What the root's max pool sees beyond the edges: zeros as in BiT, or nothing as in big_vision's version of BiT. After a
    ReLU, i.e. in the post-activation style, the two are the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "num_groups")
        if self.pool_padding != "zeros" and self.style == "post-activation":
            raise ValueError(f"pool_padding={self.pool_padding!r} has no effect in the post-activation style: leave it out.")
        require_positive(self, "width_factor", "norm_eps", "standardise_eps")
        require_counts(self, "stages", "units in each stage, e.g. (3, 4, 6, 3)")

    @property
    def root_dim(self) -> int:
        return max(1, round(64 * self.width_factor))

    def bottleneck_dim(self, stage: int) -> int:
        return self.root_dim * 2**stage

    def unit_shapes(self, stage: int) -> Iterator[tuple[int, int, int]]:
        """Yield input channels, bottleneck channels and stride of each unit of a stage; only the first changes the size."""
        mid_dim = self.bottleneck_dim(stage)
        in_dim = self.root_dim if stage == 0 else 4 * self.bottleneck_dim(stage - 1)
        for unit in range(self.stages[stage]):
            yield (in_dim if unit == 0 else 4 * mid_dim), mid_dim, (2 if unit == 0 and stage > 0 else 1)

    def units(self) -> Iterator[tuple[int, int, bool]]:
        """Yield stage and number of every unit, and whether its shortcut is projected."""
        for stage in range(len(self.stages)):
            for unit, shape in enumerate(self.unit_shapes(stage)):
                yield stage, unit, needs_projection(*shape)

    @property
    def feature_dim(self) -> int:
        return 4 * self.bottleneck_dim(len(self.stages) - 1) if self.stages else self.root_dim

    @property
    def epsilons(self) -> tuple[float, float]:
        """Epsilons of the norms and of the standardised convolutions, None replaced by the released value."""
        norm_eps, standardise_eps = RELEASED_EPSILONS[self.style]
        return self.norm_eps or norm_eps, self.standardise_eps or standardise_eps  # neither can be 0

    @property
    def root_grid(self) -> tuple[int, int]:
        """Size of the feature map after the root's convolution and pool, both of stride 2."""
        return halve(self.image_size, 2)

    @property
    def grid(self) -> tuple[int, int]:
        return resnet_grid(self.image_size, len(self.stages))


@dataclass(frozen=True, kw_only=True)
class HybridConfig(ViTConfig):
    """Config of a ViT whose patches are cut from the feature map of a ResNet (section 3.1, "Hybrid architecture")."""

    patch_size: int = 1
    """Side of a patch in cells of the feature map, not in pixels."""
    stem_stages: tuple[int, ...]
    """Residual units in each stage of the stem. No default: the model's name gives them (registry.py)."""
    stem_width_factor: float = 1.0
    stem_num_groups: int = 32
    stem_norm_eps: float | None = None
    stem_standardise_eps: float | None = None

    def _check_grid(self) -> None:
        """Raise a ValueError if the stem is wrong or its feature map does not hold a patch."""
        # The grid follows from the stem, whose fields are checked first, under the names they have here.
        require_at_least(self, 1, "stem_num_groups")
        require_positive(self, "stem_width_factor", "stem_norm_eps", "stem_standardise_eps")
        require_counts(self, "stem_stages", "units in each stage, e.g. (3, 4, 9)")
        if min(self.grid) < 1:
            rows, columns = self.stem.grid
            found = f"image_size={self.image_size} gives a feature map of {rows} x {columns}, less than a patch"
            raise ValueError(f"{found} of {self.patch_size} x {self.patch_size}: take larger images or a smaller patch_size.")

    @property
    def stem(self) -> ResNetConfig:
        """Config of the ResNet before the patch embedding."""
        return ResNetConfig(
            num_classes=0,
            image_size=self.image_size,
            num_channels=self.num_channels,
            gradient_checkpointing=self.gradient_checkpointing,
            stages=self.stem_stages,
            width_factor=self.stem_width_factor,
            style="post-activation",
            num_groups=self.stem_num_groups,
            norm_eps=self.stem_norm_eps,
            standardise_eps=self.stem_standardise_eps,
        )

    @property
    def patch_channels(self) -> int:
        return self.stem.feature_dim

    @property
    def grid(self) -> tuple[int, int]:
        rows, columns = resnet_grid(self.image_size, len(self.stem_stages))
        return rows // self.patch_size, columns // self.patch_size


def as_image_size(image_size: int | tuple[int, int]) -> tuple[int, int]:
    """Return height and width; one number is the side of a square."""
    return (image_size, image_size) if isinstance(image_size, int) else image_size


def halve(size: tuple[int, int], times: int = 1) -> tuple[int, int]:
    """Return the output size of convolutions or pools of stride 2, padded as in either ResNet style."""
    for _ in range(times):
        size = (size[0] + 1) // 2, (size[1] + 1) // 2
    return size


def resnet_grid(image_size: tuple[int, int], num_stages: int) -> tuple[int, int]:
    """Return the size of the last feature map: the root halves twice, and each stage after the first once."""
    return halve(image_size, 2 + max(0, num_stages - 1))


def needs_projection(in_dim: int, mid_dim: int, stride: int) -> bool:
    """Return whether a residual unit's input must be projected to be added to its output, which has 4 * mid_dim channels."""
    return in_dim != 4 * mid_dim or stride != 1


def nearest_divisors(number: int, target: int) -> list[str]:
    """Return the two divisors of `number` nearest to `target`, to suggest in a message."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    divisors = {*small, *(number // divisor for divisor in small)}
    return [str(divisor) for divisor in sorted(sorted(divisors, key=lambda d: abs(d - target))[:2])]
