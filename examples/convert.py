"""Take a checkpoint to another format, and prove that it is the same network.

    python examples/convert.py [MODEL OUT FORMAT]

FORMAT is vitrine, google-2020, google-linen, big-vision, bit, timm, hf or torchvision; OUT the file or folder to write.
Without arguments a small ViT is written as timm has its weights.
"""

import sys

import torch

import vitrine
from small import train_small_model
from vitrine.formats.config import FORMAT_NAMES


def main(model: str, out: str, format: str) -> None:
    if format not in FORMAT_NAMES:
        raise SystemExit(f"{format} is no format; there are {', '.join(FORMAT_NAMES)}.")
    checkpoint = vitrine.load_checkpoint(model)
    vitrine.save_checkpoint(checkpoint, out, format)
    num_channels, (height, width) = checkpoint.model.config.num_channels, checkpoint.model.config.image_size
    images = torch.randint(256, (8, num_channels, height, width), dtype=torch.uint8)  # any will do: both must say the same
    for comparison in vitrine.verify_checkpoint(checkpoint, out, images):
        print(f"{out} read by {comparison.reader}: logits differ by {comparison.max_difference:.1g} at most")
        if not comparison.is_equal:
            raise SystemExit(f"{out} is not the same network.")


if __name__ == "__main__":
    main(*(sys.argv[1:] or [train_small_model(), "runs/example.safetensors", "timm"]))
