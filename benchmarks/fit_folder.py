"""`vitrine fit` beside a plain fine-tune with timm: `python benchmarks/fit_folder.py MODEL DATA ...`.

For each dataset (train and test folders) and number of minutes, `vitrine fit` is run with each seed in an empty cache, as a
process of its own: test accuracy, macro accuracy, calibration error, and the seconds from start to end. `--timm` also
fine-tunes the same weights with timm as its guides do it: a new head, AdamW with a learning rate of 1e-4, random crops and
flips, ten epochs, no search (needs the environment of `make .venv-bench/ready`). `--json FILE` saves the results. It takes
as long as the minutes say.
"""

import json as json_format
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from vitrine.core.console import print_table
from vitrine.core.files import write_json

TIMM_EPOCHS, TIMM_LEARNING_RATE, TIMM_BATCH = 10, 1e-4, 32
TIMM_NAME = "deit_tiny_patch16_224"


def main(
    model: Annotated[Positional[str], tyro.conf.arg(metavar="MODEL")],
    data: Annotated[Positional[tuple[Path, ...]], tyro.conf.arg(metavar="DATA ...")],
    minutes: tuple[float, ...] = (1.0,),
    seeds: tuple[int, ...] = (0, 1, 2),
    timm: bool = False,
    options: str = "",
    json: Path | None = None,
) -> None:
    """Run every fit; print and save the results. `options` are further words for `vitrine fit`."""
    results = []
    for folder in data:
        for each in minutes:
            runs = [measure_fit(model, folder, each, seed, options.split()) for seed in seeds]
            results.append({"data": folder.name, "minutes": each, "options": options, "runs": runs})
            print(format_row(results[-1]), flush=True)
        if timm:
            results.append(
                {"data": folder.name, "minutes": None, "options": "timm", "runs": [finetune_with_timm(model, folder)]}
            )
            print(format_row(results[-1]), flush=True)
    columns = ("data", "minutes", "options", "accuracy", "spread", "macro", "calibration error", "seconds")
    print_table(columns, [format_row(result) for result in results])
    if json is not None:
        write_json(json, {"model": Path(model).parent.name, "seeds": list(seeds), "results": results})


def measure_fit(model: str, data: Path, minutes: float, seed: int, options: list[str]) -> dict[str, Any]:
    """Run one fit; return its model, its figures on the test split and its time."""
    with tempfile.TemporaryDirectory() as temporary:
        content, seconds = run_fit(model, data, minutes, seed, options, Path(temporary) / "out")
    report = content["report"]
    return {
        "seed": seed,
        "accuracy": report["top1"]["value"],
        "macro": report["macro_top1"]["value"],
        "calibration_error": report["calibration_error"]["value"],
        "seconds": seconds,
        "num_images": report["num_images"],
        "model": next(f"{step['name']}, {step['detail']}" for step in content["steps"] if step["outcome"] == "kept"),
    }


def run_fit(model: str, data: Path, minutes: float, seed: int, options: list[str], out: Path) -> tuple[dict[str, Any], float]:
    """Run one fit in an empty cache; return what it reports and the seconds from start to end."""
    words = [sys.executable, "-m", "vitrine", "fit", str(data), "--model", model, "--minutes", str(minutes)]
    with tempfile.TemporaryDirectory() as cache:
        start = time.perf_counter()
        subprocess.run(
            [*words, "--seed", str(seed), "--out", str(out), *options],
            env={**os.environ, "VITRINE_CACHE": cache},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        seconds = time.perf_counter() - start
    return json_format.loads((out / "report.json").read_text()), seconds


def format_row(result: dict) -> tuple[str, ...]:
    """Format the mean over seeds of one setting."""
    runs = result["runs"]
    accuracy = [run["accuracy"] for run in runs]
    spread = f"{100 * statistics.stdev(accuracy):.2f}" if len(runs) > 1 else ""
    means = [statistics.fmean(run[name] for run in runs) for name in ("macro", "calibration_error")]
    minutes = "" if result["minutes"] is None else f"{result['minutes']:g}"
    seconds = f"{max(run['seconds'] for run in runs):.1f}"
    shown = (f"{100 * statistics.fmean(accuracy):.2f} %", spread, *(f"{100 * mean:.2f} %" for mean in means))
    return result["data"], minutes, result["options"], *shown, seconds


def finetune_with_timm(model: str, data: Path) -> dict[str, float]:
    """Fine-tune the weights with timm and torch alone; return the figures on the test split."""
    import numpy as np
    import torch
    from PIL import Image
    from safetensors.torch import load_file
    from torch.nn import functional as F

    from peers import load_module

    timm = load_module("timm")

    torch.manual_seed(0)
    start = time.perf_counter()
    names = sorted(path.name for path in (data / "train").iterdir())
    network = timm.create_model(TIMM_NAME, pretrained=False)
    network.load_state_dict(load_file(model))
    network.reset_classifier(len(names))
    mean, std = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    generator = np.random.default_rng(0)

    def load(path: Path, training: bool) -> torch.Tensor:
        image = Image.open(path).convert("RGB")
        width, height = image.size
        if training:
            scale = np.sqrt(generator.uniform(0.35, 1.0))
            side = scale * min(width, height)
            left, top = generator.uniform(0, width - side), generator.uniform(0, height - side)
            image = image.resize((224, 224), Image.Resampling.BICUBIC, (left, top, left + side, top + side))
            if generator.random() < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        else:
            scale = 256 / min(width, height)
            image = image.resize((round(width * scale), round(height * scale)), Image.Resampling.BICUBIC)
            left, top = (image.width - 224) // 2, (image.height - 224) // 2
            image = image.crop((left, top, left + 224, top + 224))
        return (torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255 - mean) / std

    train, test = (
        [(path, names.index(path.parent.name)) for path in sorted((data / split).glob("*/*"))] for split in ("train", "test")
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=TIMM_LEARNING_RATE, weight_decay=0.05, fused=True)
    total = TIMM_EPOCHS * (len(train) // TIMM_BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
    for _ in range(TIMM_EPOCHS):
        order = generator.permutation(len(train))
        for first in range(0, len(train) - TIMM_BATCH + 1, TIMM_BATCH):
            rows = [train[index] for index in order[first : first + TIMM_BATCH]]
            images = torch.stack([load(path, training=True) for path, _ in rows])
            F.cross_entropy(network.train()(images), torch.tensor([label for _, label in rows])).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    hits = []
    with torch.inference_mode():
        for first in range(0, len(test), 64):
            rows = test[first : first + 64]
            logits = network.eval()(torch.stack([load(path, training=False) for path, _ in rows]))
            hits += (logits.argmax(dim=1) == torch.tensor([label for _, label in rows])).tolist()
    labels = np.array([label for _, label in test])
    macro = float(np.mean([np.array(hits)[labels == label].mean() for label in np.unique(labels)]))
    accuracy = float(np.mean(hits))
    seconds = time.perf_counter() - start
    return {"seed": 0, "accuracy": accuracy, "macro": macro, "calibration_error": float("nan"), "seconds": seconds}


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
