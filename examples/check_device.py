"""Compare a GPU or a Mac with the CPU: training, resuming, evaluation and inspection, in about ten minutes.

    python examples/check_device.py [DEVICE [STEPS]]

DEVICE is e.g. cuda or mps (default: what torch finds), STEPS the length of each run (default: 200). Small networks are trained
on built-in data below `runs/check-device`. The table that it prints, and device-check.json, say where the device differs from
the CPU: please send us both if something is not as expected, and if everything is.
"""

import json
import platform
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import torch

import vitrine

OUT = Path("runs/check-device")
MODEL = {"name": "ViT-Ti/16", "patch_size": 4, "width": 64, "depth": 4, "num_heads": 4, "mlp_dim": 128, "image_size": 32}
Row = tuple[str, str, str, bool]
"""Check, what was found, what is expected, and whether they agree."""


def build_recipe(device: str, steps: int, precision: str = "float32", **changes: object) -> vitrine.Recipe:
    """Return a run on generated shapes that is saved halfway, without dropout, which each device draws differently."""
    recipe = vitrine.Recipe(
        model=vitrine.ModelSettings(**MODEL),
        data=vitrine.DataConfig(source="shapes"),
        loader=vitrine.LoaderConfig(batch_size=64),
        augment=vitrine.AugmentConfig(crop="none"),
        total_steps=steps,
        device=device,
    )
    fixed = {
        "optim": {"learning_rate": 1e-3, "warmup_steps": steps // 10},
        "evaluation": {"num_times": 0, "test": False},
        "saving": {"every_steps": steps // 2},
        "report": {"every_steps": 1},
        "machine": {"precision": precision},
    }
    return vitrine.with_changes(recipe, **fixed, **changes)


def train(name: str, recipe: vitrine.Recipe) -> tuple[np.ndarray, float]:
    """Train, or read a finished run; return the losses of all steps and the seconds that training took."""
    start = time.monotonic()
    vitrine.run_recipe(recipe, OUT / name, title=name)
    records = [json.loads(line) for line in (OUT / name / "metrics.jsonl").read_text().splitlines()]
    return np.array([record["loss"] for record in records if "loss" in record]), time.monotonic() - start


def check_training(device: str, steps: int) -> list[Row]:
    """Compare the losses on the device with those on the CPU: the first ones closely, the last ones by their mean."""
    rows: list[Row] = []
    for kind, changes in {"labels": {}, "masked patches": {"objective": "masked-patches"}}.items():
        expected, cpu_s = train(f"cpu-{kind}", build_recipe("cpu", steps, **changes))
        for precision in ("float32", "auto"):
            found, seconds = train(f"device-{kind}-{precision}", build_recipe(device, steps, precision, **changes))
            first = float(np.abs(found[:3] / expected[:3] - 1).max())
            last = abs(found[-20:].mean() / expected[-20:].mean() - 1)
            limit = 1e-4 if precision == "float32" else 2e-2
            title = f"training, {kind}, {precision}"
            rows.append((f"{title}: first losses", f"{first:.1e} apart", f"below {limit:g}", first < limit))
            rows.append((f"{title}: last 20 losses", f"{last:.1%} apart", "below 5 %", last < 0.05))
            rows.append((f"{title}: time", f"{seconds:.0f} s (CPU: {cpu_s:.0f} s)", "", True))
    return rows


def check_resuming(device: str, steps: int) -> list[Row]:
    """Resume the device's run from its checkpoint halfway, and compare the weights with those of the uninterrupted run."""
    whole, again = OUT / "device-labels-auto", OUT / "device-resumed"
    shutil.rmtree(again, ignore_errors=True)
    shutil.copytree(whole, again)
    for path in (again / "summary.json", *sorted((again / "checkpoints").glob("step-*"))[1:]):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    vitrine.run_recipe(build_recipe(device, steps, "auto"), again, title="resuming")
    weights = [vitrine.load_model(folder / "model").state_dict() for folder in (whole, again)]
    apart = max(float((one - weights[1][name]).abs().max()) for name, one in weights[0].items())
    return [("resuming: largest difference of a weight", f"{apart:.1e}", "0 on a CPU; small elsewhere", apart < 1e-2)]


def check_inference(device: str) -> list[Row]:
    """Compare predictions in every precision, and attention and distances of `inspect`, with the CPU."""
    source = vitrine.open_data("shapes", "test")
    images = [np.asarray(source.read(index)[0].to_pil()) for index in range(200)]
    model = OUT / "cpu-labels" / "model"
    expected = vitrine.predict(model, images, top=1, device="cpu").predictions
    rows: list[Row] = []
    for precision, least in (("float32", 0.99), ("bfloat16", 0.97), ("float16", 0.99), ("auto", 0.97)):
        settings = vitrine.InferenceConfig(precision=precision)  # pyright: ignore[reportArgumentType]
        found = vitrine.predict(model, images, top=1, device=device, inference=settings).predictions
        same = sum(one.classes == other.classes for one, other in zip(found, expected, strict=True)) / len(found)
        rows.append((f"predictions, {precision}: same class", f"{same:.1%}", f"at least {least:.0%}", same >= least))
    cpu, other = (vitrine.inspect(model, images[:8], device=each, precision="float32") for each in ("cpu", device))
    assert cpu.attention is not None
    assert other.attention is not None
    apart = max(float(np.abs(a - b).max()) for a, b in zip(cpu.attention.rollouts, other.attention.rollouts, strict=True))
    rows.append(("inspection: largest difference of rollouts", f"{apart:.1e}", "below 0.0001", apart < 1e-4))
    distances = np.abs(cpu.attention.distances.among_patches - other.attention.distances.among_patches).max()
    rows.append(("inspection: largest difference of distances", f"{distances:.1e} px", "below 0.01 px", distances < 1e-2))
    return rows


def main(device: str | None = None, steps: str = "200") -> None:
    found = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    device = device or found
    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.processor() or platform.machine()
    machine = {"device": device, "name": name, "torch": torch.__version__, "system": platform.platform()}
    print(", ".join(machine.values()))
    rows = [*check_training(device, int(steps)), *check_resuming(device, int(steps)), *check_inference(device)]
    for check, result, expected, is_good in rows:
        print(f"{'ok  ' if is_good else 'LOOK'}  {check}: {result}{f' ({expected})' if expected else ''}")
    (OUT / "device-check.json").write_text(json.dumps({**machine, "checks": rows}, indent=2, default=bool))
    print(f"Written to {OUT / 'device-check.json'}.")


if __name__ == "__main__":
    main(*sys.argv[1:])
