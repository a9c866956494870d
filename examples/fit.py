"""Fit the best classifier of a folder of images in a few minutes, and print how accurate it is.

    python examples/fit.py [MODEL DATA OUT MINUTES]

DATA is a folder with a folder of images for each class, with or without train and test folders above them. The model is in
OUT/model, its report in OUT/report.html. 0 minutes stand for the first model, however long it takes. Without arguments a small
ViT trained on digits learns to tell odd from even ones.
"""

import sys

import vitrine
from small import train_small_model, write_small_folder


def main(model: str, data: str, out: str, minutes: str = "5") -> None:
    result = vitrine.fit(data, model, out, vitrine.FitConfig(minutes=float(minutes)))
    for step in result.steps:
        print(f"{step.seconds:.0f} s: {step.name}, {step.detail}: {step.accuracy.value:.1%}, {step.outcome}")
    top1 = result.result.report.top1
    print(f"top-1 {top1.value:.1%}, 95 % interval {top1.low:.1%} to {top1.high:.1%}")
    if result.curve is not None:
        print(f"twice as many images would bring about {100 * result.curve.gain.value:+.1f} points")


if __name__ == "__main__":
    main(*(sys.argv[1:] or [train_small_model(), write_small_folder(), "runs/example-fitted", "0"]))
