"""Peak memory of a fine-tuning step compared with transformers: `python benchmarks/step_memory.py`.

ViT-Ti/16 at 224 with 37 classes, in float32, from bytes to AdamW with clipping: ours by `fit`, without and with gradient
checkpointing; transformers' by a plain loop. Each is measured alternately in new processes, which all import the same modules.
The result is the rise of memory above that, from building model and data to the end of the third step. glibc keeps freed memory
in holes that new tensors may not fit; MALLOC_MMAP_THRESHOLD_=65536 in the environment prevents this and shows the need of the
step itself. Takes about 3 minutes on two cores; `--json FILE` saves the results.
"""

import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args

import torch
import torch._dynamo  # otherwise the first optimizer imports it during the measurement
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fit import OPTIM, build_batches, build_network, build_plain, run_fit
from peers import NORM_EPS, Network, build_transformers, describe_absence, load_module
from vitrine.core.files import write_json

Contestant = Literal["vitrine", "vitrine-checkpointing", "transformers"]

NUM_STEPS = 3
VIT_TI_16 = Network(image_size=224, patch_size=16, width=192, depth=12, num_heads=3, mlp_dim=768, num_classes=37)
CLEAR_REFS, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def main(
    rounds: int = 3, batch_size: int = 32, threads: int = 2, only: Contestant | None = None, json: Path | None = None
) -> None:
    """Measure all contestants in processes of their own, or with `only` one in this process, printing its bytes."""
    if not CLEAR_REFS.exists():
        raise SystemExit(f"{CLEAR_REFS}, which resets the peak memory of a process, does not exist: run this on Linux.")
    if rounds < 1:
        raise SystemExit(f"--rounds {rounds} must be at least 1.")
    missing = import_transformers()
    if only is not None:
        print(measure_here(only, batch_size, threads))
        return
    names = [name for name in get_args(Contestant) if missing is None or name != "transformers"]
    options = ["--batch-size", str(batch_size), "--threads", str(threads)]
    peaks: dict[str, list[int]] = {name: [] for name in names}
    for _ in track(range(rounds), "step memory", console=Console(stderr=True), transient=True):
        for name in names:
            peaks[name].append(measure_in_new_process(name, options))
    medians = {name: statistics.median(values) for name, values in peaks.items()}
    print_report(f"fine-tuning step: ViT-Ti/16 at 224, batch {batch_size}", peaks, medians, missing)
    if json is not None:
        versions = {"torch": torch.__version__, "missing": missing}
        write_json(json, versions | {"batch_size": batch_size, "threads": threads, "peak_bytes": peaks, "medians": medians})


def import_transformers() -> str | None:
    """Import transformers; return the reason if it cannot be imported."""
    try:
        load_module("transformers.models.vit.modeling_vit")
    except Exception as error:  # a peer that fails is reported and does not stop the others
        return describe_absence(error)
    return None


def measure_in_new_process(name: str, options: list[str]) -> int:
    """Run this script for one contestant and return the bytes that it prints."""
    command = [sys.executable, __file__, "--only", name, *options]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def measure_here(name: Contestant, batch_size: int, threads: int) -> int:
    """Return the largest rise of this process's memory in bytes."""
    torch.set_num_threads(threads)
    CLEAR_REFS.write_text("5")  # "5" resets VmHWM, the peak, to the current memory (man 5 proc_pid_clear_refs)
    before = read_status("VmRSS")
    run_steps(name, batch_size)
    return read_status("VmHWM") - before


def read_status(field: str) -> int:
    """Return a field of this process's status in bytes, e.g. VmRSS."""
    match = re.search(rf"^{field}:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    assert match is not None
    return 1024 * int(match[1])


def run_steps(name: Contestant, batch_size: int) -> None:
    """Build model and data of a contestant and run its training steps."""
    batches = build_batches(batch_size, VIT_TI_16.num_classes)
    if name == "transformers":
        step = build_plain(build_transformers(VIT_TI_16), OPTIM.max_grad_norm)
        for batch in batches[:NUM_STEPS]:
            step(batch)
        return
    is_checkpointing = name == "vitrine-checkpointing"
    model = build_network(VIT_TI_16.num_classes, gelu="erf", norm_eps=NORM_EPS, gradient_checkpointing=is_checkpointing)
    run_fit(model, iter(batches), NUM_STEPS)


def print_report(title: str, peaks: dict[str, list[int]], medians: dict[str, float], missing: str | None) -> None:
    """Print medians and spread, and whether we need at most as much memory as transformers."""
    table = Table(title=title, title_justify="left")
    table.add_column("contestant")
    for column in ("median MB", "ratio to us", "lowest .. highest"):
        table.add_column(column, justify="right")
    ours = medians["vitrine"]
    for name, median in medians.items():
        spread = f"{min(peaks[name]) / 1e6:.0f} .. {max(peaks[name]) / 1e6:.0f}"
        table.add_row(name, f"{median / 1e6:.0f}", f"{median / ours:.3f}", spread)
    console = Console()
    console.print(table)
    if missing is not None:
        console.print(f"missing: transformers ({missing})", markup=False)
        return
    ratio = ours / medians["transformers"]
    console.print(f"ours is {100 * ratio:.1f} % of transformers' (needs <= 100 %: {'met' if ratio <= 1 else 'missed'})")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
