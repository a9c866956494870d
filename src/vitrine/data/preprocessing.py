"""What is done to an image before a model sees it, as a frozen dataclass that travels with the weights.

No torch and no Pillow before they are needed, so configurations and `--help` answer at once. Shapes: C channels,
H x W pixels.
"""

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitrine.core.config_checks import is_whole, require_field_types

if TYPE_CHECKING:
    import torch
    from PIL import Image
    from torch import Tensor

Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

MAX_SIDE = 65_535  # of a JPEG; beyond it a size is a mistake, or an attempt on our memory
MAX_RESIZED_PIXELS = 2**25  # far above any photograph's; a strip of 1 x 9000 pixels would have 590 million

# Between these a number is neither infinite nor zero in float32, in which images are normalised.
SMALLEST_NUMBER, LARGEST_NUMBER = 1e-37, 1e37


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Resize, centre crop, normalise. The first two have no default: they come with the model."""

    resize: tuple[int, int] | int | None
    """One number: the short side gets it, the aspect is kept; two: height and width, whatever the aspect; None: neither."""
    crop: tuple[int, int]
    """Height and width of the centre that is cut out: what the model takes."""
    interpolation: Interpolation = "bilinear"
    """Pillow's filter of that name, which widens when it scales down."""
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    """Of each channel, with values in 0..1."""
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    """Of each channel, with values in 0..1."""

    def __post_init__(self) -> None:
        require_field_types(self)
        if not is_size(self.crop):
            raise ValueError(f"crop={self.crop!r} must be height and width, 1 to {MAX_SIDE} pixels, as (224, 224).")
        if not (self.resize is None or is_side(self.resize) or is_size(self.resize)):
            raise ValueError(
                f"resize={self.resize!r} must be the short side, as 256, or height and width, as (224, 224), of 1 to "
                f"{MAX_SIDE} pixels, or None."
            )
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if not isinstance(numbers, tuple) or not all(is_number(number) for number in numbers):
                raise ValueError(f"{name}={numbers!r} must be a tuple of finite numbers, one for each channel.")
        if len(self.mean) not in (1, 3) or len(self.std) != len(self.mean):
            raise ValueError(
                f"mean={self.mean} and std={self.std} must both have 1 or both have 3 numbers, one for each channel."
            )
        if min(self.std) < SMALLEST_NUMBER:
            raise ValueError(f"std={self.std} must be above 0 in every channel.")

    @property
    def num_channels(self) -> int:
        return len(self.mean)

    def load(self, path: Path) -> "Tensor":
        """What `prepare` makes of the image in the file."""
        from vitrine.data.image import read_image

        return self.prepare(read_image(path, self.num_channels))

    def prepare(self, image: "Image.Image") -> "Tensor":
        """The transform of evaluation: bytes of (C, H, W) with H x W = `crop`, not yet normalised.

        An image that did not come from `read_image` is turned upright and converted as it would have been there.
        """
        import numpy as np
        import torch

        from vitrine.data.image import convert_image

        cropped = self.resize_and_crop(convert_image(image, self.num_channels))
        pixels = torch.from_numpy(np.array(cropped)).view(*self.crop, self.num_channels)  # (H, W, C)
        return pixels.permute(2, 0, 1).contiguous()

    def resize_and_crop(self, image: "Image.Image") -> "Image.Image":
        from PIL import Image

        resample = Image.Resampling[self.interpolation.upper()]
        height, width = self.compute_resized_size(image.height, image.width)
        # The smaller half of an odd margin is at the top and left, as in Hugging Face and TF; torchvision rounds a half to the
        # even side, and the pixel shows: 0.7 points of DeiT-Tiny's accuracy on a thousand photographs (docs/log.md).
        top, left = (height - self.crop[0]) // 2, (width - self.crop[1]) // 2
        bottom, right = top + self.crop[0], left + self.crop[1]
        if height * width > MAX_RESIZED_PIXELS:
            # Of a long strip only what will be left is computed. Not for every image: Pillow keeps the box in float32,
            # so up to one value in a hundred would be one off what resizing first gives everybody else.
            return image.resize((self.crop[1], self.crop[0]), resample, box=self.compute_box(image.height, image.width))
        if image.size != (width, height):
            image = image.resize((width, height), resample)
        return image if (height, width) == self.crop else image.crop((left, top, right, bottom))

    def compute_box(self, height: int, width: int) -> tuple[float, float, float, float]:
        """What the model sees of an image of this size: left, top, right and bottom in its own pixels."""
        resized = self.compute_resized_size(height, width)
        down, across = height / resized[0], width / resized[1]
        top, left = (resized[0] - self.crop[0]) // 2, (resized[1] - self.crop[1]) // 2
        right, bottom = min((left + self.crop[1]) * across, width), min((top + self.crop[0]) * down, height)
        return left * across, top * down, right, bottom

    def compute_resized_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width before the crop, which always fits: where it would not, the image is scaled until it does."""
        start = self.resize if isinstance(self.resize, tuple) else (height, width)
        size = start
        if isinstance(self.resize, int):
            short = min(height, width)
            size = height * self.resize // short, width * self.resize // short  # the long side truncated, as in torchvision
        if size[0] >= self.crop[0] and size[1] >= self.crop[1]:
            return size
        # The side that lacks more becomes the crop's; the other follows, and truncated it is still long enough.
        if self.crop[0] * start[1] >= self.crop[1] * start[0]:
            return self.crop[0], start[1] * self.crop[0] // start[0]
        return start[0] * self.crop[1] // start[1], self.crop[1]

    def build_constants(
        self, dtype: "torch.dtype | None" = None, device: "torch.device | None" = None
    ) -> tuple["Tensor", "Tensor"]:
        """Mean and deviation (C, 1, 1), of float32 unless another is asked for."""
        import torch

        mean, std = (torch.tensor(each, dtype=dtype, device=device).view(-1, 1, 1) for each in (self.mean, self.std))
        return mean, std

    def normalise(self, images: "Tensor", constants: tuple["Tensor", "Tensor"] | None = None) -> "Tensor":
        """(x - mean) / std over (.., C, H, W), where they are: bytes give float32, and are divided by 255 first.

        Floating-point images are in 0..1 already and keep their dtype; half precision is left for the arithmetic, because
        the means themselves would lose digits in it. `constants` are those of `build_constants` where the
        images are, for callers who normalise often.
        """
        import torch

        is_bytes = images.dtype == torch.uint8
        if images.ndim < 3 or images.shape[-3] != self.num_channels:
            shape = tuple(images.shape)
            raise ValueError(f"images of shape {shape} must be (.., {self.num_channels}, H, W): mean={self.mean} says so.")
        if not is_bytes and not images.is_floating_point():
            raise ValueError(f"images of {images.dtype} must be uint8, in 0..255, or floating-point, in 0..1: convert them.")
        values = images.float() if images.element_size() < 4 else images
        mean, std = constants or self.build_constants(values.dtype, values.device)
        if is_bytes:  # what was made of them is ours alone: in place it takes half the time and less
            return values.div_(255).sub_(mean).div_(std)
        return ((values - mean) / std).to(images.dtype)

    def resized(self, image_size: tuple[int, int]) -> "Preprocessing":
        """The same for a model of another input size: what is cut away stays the same part of the picture."""
        changed = replace(self, crop=image_size)  # which checks it
        if self.resize is None:
            return changed
        if isinstance(self.resize, int):
            return replace(changed, resize=scale_side(self.resize, min(image_size), min(self.crop)))
        height, width = map(scale_side, self.resize, image_size, self.crop)
        return replace(changed, resize=(height, width))

    def to_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, content: object) -> "Preprocessing":
        """What `to_json` wrote, and nothing else: a missing field is not given its default, because then it was not ours."""
        if not isinstance(content, dict):
            raise ValueError(f"The preprocessing is a {type(content).__name__}; an object as `to_json` writes it was needed.")
        names = [field.name for field in fields(cls)]
        faults = [f"{name} is missing" for name in names if name not in content]
        faults += [f"{name!r} is unknown" for name in content if name not in names]
        if faults:
            raise ValueError(f"The preprocessing's {'; '.join(faults)}: write exactly the fields {', '.join(names)}.")
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in content.items()}
        return cls(**values)


def build_imagenet_preprocessing(image_size: tuple[int, int], num_channels: int = 3) -> Preprocessing:
    """Short side 256 for a crop of 224, and in that ratio for others: how DeiT and most that followed are evaluated."""
    at_224 = Preprocessing(
        resize=256,
        crop=(224, 224),
        interpolation="bicubic",
        mean=fit_to_channels(IMAGENET_MEAN, num_channels),
        std=fit_to_channels(IMAGENET_STD, num_channels),
    )
    return at_224.resized(image_size)


def build_inception_preprocessing(image_size: tuple[int, int], num_channels: int = 3) -> Preprocessing:
    """The whole image, its aspect given up, in -1..1: how the code released with arXiv:2010.11929 evaluates.

    Its bilinear filter is TensorFlow's, which skips pixels when it scales down; ours, as Hugging Face's, is Pillow's.
    """
    half = fit_to_channels((0.5, 0.5, 0.5), num_channels)
    return Preprocessing(resize=image_size, crop=image_size, interpolation="bilinear", mean=half, std=half)


def fit_to_channels(numbers: tuple[float, float, float], num_channels: int) -> tuple[float, ...]:
    """For grey images the three become their average."""
    if num_channels not in (1, 3):
        raise ValueError(f"num_channels={num_channels!r} must be 1 (grey) or 3 (red, green, blue): images have no other.")
    return numbers if num_channels == 3 else (sum(numbers) / 3,)


def scale_side(side: int, new: int, old: int) -> int:
    return max(1, round(side * new / old))


def is_side(value: object) -> bool:
    return isinstance(value, int) and is_whole(value) and 1 <= value <= MAX_SIDE


def is_size(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(is_side(side) for side in value)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER
