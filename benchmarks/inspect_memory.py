"""Check that `inspect` takes no more memory for more images: `python benchmarks/inspect_memory.py`.

Measures the peak memory of a process that inspects ViT-L/16 at 512 pixels (1025 tokens, attention maps of 67 MB per layer) on
2 images, and of another on 4. Takes some minutes on two cores.
"""

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import tyro
from PIL import Image

MAX_RATIO = 1.02  # of peak memory for twice the images


def main(model: str = "ViT-L/16", image_size: int = 512, counts: tuple[int, ...] = (2, 4), only: int | None = None) -> None:
    """Measure each number of images in a process of its own, or with `only` that number in this one, printing its bytes."""
    if only is not None:
        print(measure_here(model, image_size, only))
        return
    peaks = []
    for count in counts:
        command = [sys.executable, __file__, "--model", model, "--image-size", str(image_size), "--only", str(count)]
        peaks.append(int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
        print(f"{model} at {image_size} pixels, {count} images: peak {peaks[-1] / 1e6:.0f} MB")
    ratio = peaks[-1] / peaks[0]
    print(f"ratio {ratio:.3f} (needs <= {MAX_RATIO}: {'met' if ratio <= MAX_RATIO else 'missed'})")


def measure_here(model: str, image_size: int, count: int) -> int:
    """Inspect `count` random images in this process and return its peak memory in bytes."""
    from vitrine.data.preprocessing import build_inception_preprocessing
    from vitrine.formats.checkpoint import Checkpoint
    from vitrine.inspection.inspect_model import inspect
    from vitrine.models.registry import build_model

    built = build_model(model, image_size=image_size, num_classes=0)
    checkpoint = Checkpoint(built, build_inception_preprocessing(built.config.image_size), None, {})
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.png" for number in range(count)]
        for number, path in enumerate(paths):
            pixels = np.random.default_rng(number).integers(0, 256, (image_size, image_size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path)
        inspect(checkpoint, paths, device="cpu")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
