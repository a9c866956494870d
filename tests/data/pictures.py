"""Random images with the spectrum of photographs, and folders of them."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def draw_picture(seed: int, size: tuple[int, int] = (96, 128)) -> Image.Image:
    """Draw noise whose amplitude falls with the frequency, like in photographs."""
    generator = np.random.default_rng(seed)
    height, width = size
    frequencies = np.hypot(np.fft.fftfreq(height)[:, None] * height, np.fft.rfftfreq(width) * width)
    spectrum = np.fft.rfft2(generator.standard_normal((3, height, width))) / np.maximum(frequencies, 1) ** 1.3
    pixels = np.fft.irfft2(spectrum, s=size)
    pixels = 128 + 45 * (pixels - pixels.mean()) / pixels.std()
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8).transpose(1, 2, 0))


def encode(image: Image.Image, quality: int = 90) -> bytes:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=quality)
    return content.getvalue()


def write_picture(path: Path, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(draw_picture(seed)))
    return path


def write_classes(folder: Path, counts: dict[str, int]) -> Path:
    """Write the given number of different images of each of the classes cat and dog in every split."""
    seed = 0
    for split, count in counts.items():
        for name in ("cat", "dog"):
            for number in range(count):
                write_picture(folder / split / name / f"{number}.jpg", seed := seed + 1)
    return folder
