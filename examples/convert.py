"""Convert a checkpoint to another format, and verify that it is the same network.

    python examples/convert.py [MODEL OUT FORMAT]

FORMAT is vitrine, google-2020, google-linen, big-vision, bit, timm, hf or torchvision; OUT the file or folder to write.
Without arguments a small ViT is written in timm's format.
"""

import sys

import vitrine
from small import train_small_model
from vitrine.formats.config import FORMAT_NAMES


def main(model: str, out: str, format: str) -> None:
    if format not in FORMAT_NAMES:
        raise SystemExit(f"Unknown format {format}; expected one of {', '.join(FORMAT_NAMES)}.")
    result = vitrine.convert(model, out, format, overwrite=True, verify=True)
    for comparison in result.comparisons:
        print(f"{out} read by {comparison.reader}: logits differ by at most {comparison.max_difference:.1g}")
    if result.different_readers:
        raise SystemExit(f"{out} is not the same network.")


if __name__ == "__main__":
    main(*(sys.argv[1:] or [train_small_model(), "runs/example.safetensors", "timm"]))
