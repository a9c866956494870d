"""Preprocessing: resize, framing, mean and std, as a frozen dataclass that is stored with each checkpoint.

torch and Pillow are imported on first use, so that configs and `--help` load fast. Letters: C channels, H x W pixels.
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
Framing = Literal["crop", "letterbox", "squash"]
"""How an image that is not square becomes one: its centre; all of it between bars; all of it, at another aspect ratio."""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

MAX_SIDE = 65_535  # of a JPEG; a larger size is a mistake or an attack on memory
MAX_RESIZED_PIXELS = 2**25  # far above any photograph; a strip of 1 x 9000 pixels would need 590 million

# Bounds of mean and std that are neither 0 nor infinite in float32, in which images are normalised.
MIN_NUMBER, MAX_NUMBER = 1e-37, 1e37


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Resize, framing and normalisation of images. The sizes have no default: they come with the model."""

    resize: tuple[int, int] | int | None
    """New short side, keeping the aspect ratio; or new height and width; or None: no resize."""
    crop: tuple[int, int]
    """Height and width of the centre crop: the image size of the model."""
    interpolation: Interpolation = "bilinear"
    """Pillow's filter of this name, which is antialiased."""
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    """Mean of each channel, for values in 0..1."""
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    """Standard deviation of each channel, for values in 0..1."""
    letterbox: bool = False
    """Fit the whole image into `crop` at its own aspect ratio, between bars in the mean colour; `resize` is `crop` then."""

    def __post_init__(self) -> None:
        require_field_types(self)
        if not is_size(self.crop):
            raise ValueError(f"crop={self.crop!r} must be height and width of 1 to {MAX_SIDE} pixels, e.g. (224, 224).")
        if not (self.resize is None or is_side(self.resize) or is_size(self.resize)):
            expected = f"the short side, or height and width, of 1 to {MAX_SIDE} pixels"
            raise ValueError(f"resize={self.resize!r} must be {expected}, e.g. 256 or (224, 224), or None.")
        if self.letterbox and self.resize != self.crop:
            raise ValueError(f"letterbox fits images into crop={self.crop}: resize must be the same, not {self.resize!r}.")
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if not isinstance(numbers, tuple) or not all(is_number(number) for number in numbers):
                raise ValueError(f"{name}={numbers!r} must be a tuple of finite numbers, one for each channel.")
        if len(self.mean) not in (1, 3) or len(self.std) != len(self.mean):
            raise ValueError(f"mean={self.mean} and std={self.std} must both have 1 or 3 numbers, one for each channel.")
        if min(self.std) < MIN_NUMBER:
            raise ValueError(f"std={self.std} must be above 0 in every channel.")

    @property
    def num_channels(self) -> int:
        return len(self.mean)

    @property
    def framing(self) -> Framing:
        """How images that are not square become so."""
        return "letterbox" if self.letterbox else "squash" if self.resize == self.crop else "crop"

    def with_framing(self, framing: Framing) -> "Preprocessing":
        """Return the preprocessing with another framing; a crop keeps all of the short side unless this crops already."""
        if framing == self.framing:
            return self
        resize = min(self.crop) if framing == "crop" else self.crop
        return replace(self, resize=resize, letterbox=framing == "letterbox")

    def load(self, path: str | Path) -> "Tensor":
        """Read an image file and `prepare` it."""
        from vitrine.data.image import read_image

        return self.prepare(read_image(Path(path), self.num_channels))

    def prepare(self, image: "Image.Image") -> "Tensor":
        """Convert (as `read_image` does), resize and crop a PIL image to uint8 (C, H, W), as in evaluation; not normalised."""
        import numpy as np
        import torch

        from vitrine.data.image import convert_image

        cropped = self.resize_and_crop(convert_image(image, self.num_channels))
        pixels = torch.from_numpy(np.array(cropped)).view(*self.crop, self.num_channels)  # (H, W, C)
        return pixels.permute(2, 0, 1).contiguous()

    def resize_and_crop(self, image: "Image.Image") -> "Image.Image":
        """Resize an upright image, then cut out its centre, or add bars to it."""
        from PIL import Image

        resample = Image.Resampling[self.interpolation.upper()]
        height, width = self.compute_resized_size(image.height, image.width)
        # Half of an odd margin is rounded down, as in Hugging Face and TF; torchvision rounds it to even. One pixel of shift is
        # worth 0.7 points of DeiT-Tiny's accuracy on a thousand photographs (docs/log.md).
        top, left = (height - self.crop[0]) // 2, (width - self.crop[1]) // 2
        bottom, right = top + self.crop[0], left + self.crop[1]
        if self.letterbox:
            framed = Image.new(image.mode, (self.crop[1], self.crop[0]), tuple(round(255 * mean) for mean in self.mean))
            framed.paste(image.resize((width, height), resample), (-left, -top))
            return framed
        if height * width > MAX_RESIZED_PIXELS:
            # Resize only what the crop keeps of a long strip. Not for all images: Pillow stores the box in float32, so up to
            # one value in a hundred would differ by one from resizing first, as everybody else does.
            return image.resize((self.crop[1], self.crop[0]), resample, box=self.compute_box(image.height, image.width))
        if image.size != (width, height):
            image = image.resize((width, height), resample)
        return image if (height, width) == self.crop else image.crop((left, top, right, bottom))

    def compute_box(self, height: int, width: int) -> tuple[float, float, float, float]:
        """Return what the model sees of an image of this size: left, top, right and bottom in original pixels.

        With a letterbox that is more than the image.
        """
        resized = self.compute_resized_size(height, width)
        down, across = height / resized[0], width / resized[1]
        top, left = (resized[0] - self.crop[0]) // 2, (resized[1] - self.crop[1]) // 2
        right, bottom = (left + self.crop[1]) * across, (top + self.crop[0]) * down
        if not self.letterbox:  # rounding may give a little more than there is
            right, bottom = min(right, width), min(bottom, height)
        return left * across, top * down, right, bottom

    def compute_resized_size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width after the resize: within the crop with a letterbox, else large enough to hold it."""
        if self.letterbox:
            scale = min(self.crop[0] / height, self.crop[1] / width)
            return max(1, round(height * scale)), max(1, round(width * scale))
        start = self.resize if isinstance(self.resize, tuple) else (height, width)
        size = start
        if isinstance(self.resize, int):
            short = min(height, width)
            size = height * self.resize // short, width * self.resize // short  # long side rounded down, as in torchvision
        if size[0] >= self.crop[0] and size[1] >= self.crop[1]:
            return size
        # Scale the relatively shorter side to the crop; the other one, rounded down, is still long enough.
        if self.crop[0] * start[1] >= self.crop[1] * start[0]:
            return self.crop[0], start[1] * self.crop[0] // start[0]
        return start[0] * self.crop[1] // start[1], self.crop[1]

    def build_constants(
        self, dtype: "torch.dtype | None" = None, device: "torch.device | None" = None
    ) -> tuple["Tensor", "Tensor"]:
        """Return mean and std as tensors (C, 1, 1), float32 by default."""
        import torch

        mean, std = (torch.tensor(each, dtype=dtype, device=device).view(-1, 1, 1) for each in (self.mean, self.std))
        return mean, std

    def normalise(self, images: "Tensor", constants: tuple["Tensor", "Tensor"] | None = None) -> "Tensor":
        """Return (x - mean) / std of images (.., C, H, W) on their device; uint8 becomes float32 and is divided by 255 first.

        Floating-point images are in 0..1 already and keep their dtype, but half precision is normalised in float32, because
        the means would lose digits. Callers that normalise often pass `build_constants` as `constants`.
        """
        import torch

        is_bytes = images.dtype == torch.uint8
        if images.ndim < 3 or images.shape[-3] != self.num_channels:
            shape = tuple(images.shape)
            raise ValueError(f"images of shape {shape} must be (.., {self.num_channels}, H, W), to fit mean={self.mean}.")
        if not is_bytes and not images.is_floating_point():
            raise ValueError(f"images of {images.dtype} must be uint8 in 0..255 or floating-point in 0..1.")
        values = images.float() if images.element_size() < 4 else images
        mean, std = constants or self.build_constants(values.dtype, values.device)
        if is_bytes:  # `values` is a new tensor: in place takes half the time
            return values.div_(255).sub_(mean).div_(std)
        return ((values - mean) / std).to(images.dtype)

    def resized(self, image_size: tuple[int, int]) -> "Preprocessing":
        """Return the preprocessing for another image size, with the same ratio of resize to crop."""
        if self.resize == self.crop:
            return replace(self, crop=image_size, resize=image_size)
        changed = replace(self, crop=image_size)  # checks the size
        if self.resize is None:
            return changed
        if isinstance(self.resize, int):
            return replace(changed, resize=scale_side(self.resize, min(image_size), min(self.crop)))
        height, width = map(scale_side, self.resize, image_size, self.crop)
        return replace(changed, resize=(height, width))

    def to_json(self) -> dict[str, Any]:
        """Return the fields for a checkpoint's config.json; `letterbox` only if it is on, so that older versions read it."""
        content = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return content if self.letterbox else {name: value for name, value in content.items() if name != "letterbox"}

    @classmethod
    def from_json(cls, content: object) -> "Preprocessing":
        """Read what `to_json` wrote. Missing fields are errors: defaults could differ from what the model was trained with."""
        if not isinstance(content, dict):
            raise ValueError(f"The preprocessing is a {type(content).__name__}; expected an object with its fields.")
        names = [field.name for field in fields(cls)]
        problems = [f"{name} is missing" for name in names if name not in content and name != "letterbox"]
        problems += [f"{name!r} is unknown" for name in content if name not in names]
        if problems:
            raise ValueError(f"Preprocessing: {'; '.join(problems)}; expected the fields {', '.join(names)}.")
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in content.items()}
        return cls(**values)


def build_imagenet_preprocessing(image_size: tuple[int, int], num_channels: int = 3) -> Preprocessing:
    """Build the preprocessing of DeiT and most later models: short side 256 for a crop of 224, ImageNet mean and std."""
    mean, std = (fit_to_channels(numbers, num_channels) for numbers in (IMAGENET_MEAN, IMAGENET_STD))
    return Preprocessing(resize=256, crop=(224, 224), interpolation="bicubic", mean=mean, std=std).resized(image_size)


def build_inception_preprocessing(image_size: tuple[int, int], num_channels: int = 3) -> Preprocessing:
    """Build the preprocessing of the code released with arXiv:2010.11929: whole image, aspect ratio ignored, in -1..1.

    Its bilinear filter is TensorFlow's, without antialiasing; ours is Pillow's, as in Hugging Face.
    """
    half = fit_to_channels((0.5, 0.5, 0.5), num_channels)
    return Preprocessing(resize=image_size, crop=image_size, interpolation="bilinear", mean=half, std=half)


def fit_to_channels(numbers: tuple[float, float, float], num_channels: int) -> tuple[float, ...]:
    """Return the numbers of RGB channels, or their average for grey images."""
    if num_channels not in (1, 3):
        raise ValueError(f"num_channels={num_channels!r} must be 1 (grey) or 3 (RGB).")
    return numbers if num_channels == 3 else (sum(numbers) / 3,)


def scale_side(side: int, new: int, old: int) -> int:
    return max(1, round(side * new / old))


def is_side(value: object) -> bool:
    return isinstance(value, int) and is_whole(value) and 1 <= value <= MAX_SIDE


def is_size(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(is_side(side) for side in value)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER
