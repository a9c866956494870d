"""Cost of many copies of one picture in `vitrine data check`: `python benchmarks/crowds.py`.

Writes 100,000 JPEG files of 128 pixels in groups of copies: one picture in different compression and brightness, with faint
noise, so that no two files are equal; `--crop 0.05` also crops each by up to that fraction. Then checks them with an empty
cache, and searches them again in this process to time the search alone and to count its work: hashes compared, candidate pairs
found close, and pairs of images compared by their edges. Memory is the largest sum over all processes of the command of the
memory that each holds, with shared pages divided among them (PSS, ten times a second; Linux). A size of 50,000 is one group,
and as many single pictures. `--json FILE` saves the results. Takes two to four minutes for each size on two cores, of which one
is for writing the files.
"""

import io
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import tyro
from PIL import Image

from vitrine.core.console import format_bytes, print_table
from vitrine.core.files import write_json
from vitrine.data.open_data import find_data
from vitrine.data.quality import edge_map, perceptual_hash
from vitrine.data.quality.check import DataCheck, find_duplicate_groups
from vitrine.data.quality.image_stats import compute_image_stats
from vitrine.data.scan import count_cpus

SIDE, FIELD_SIDE, NUM_FIELDS = 128, 1024, 16
LARGEST = 50_000  # above this, a group is not repeated: the other images have no copies


def main(
    copies: tuple[int, ...] = (1, 20, 200, 2_000, 50_000),
    num_images: int = 100_000,
    crop: float = 0.0,
    seed: int = 0,
    json: Path | None = None,
) -> None:
    """Check data with groups of each size; print and save the results."""
    results = []
    for size in copies:
        with tempfile.TemporaryDirectory() as temporary:
            folder, cache = Path(temporary) / "data", Path(temporary) / "cache"
            write_images(folder, num_images, size, crop, seed)
            os.environ["VITRINE_CACHE"] = str(cache)
            results.append({"copies": size, **run_check(folder), **measure_search(folder)})
            print(format_row(results[-1]), flush=True)
    columns = (
        "copies",
        "seconds",
        "CPU",
        "of which search",
        "CPU",
        "hashes compared",
        "candidates",
        "verified",
        "groups",
        "memory",
    )
    print_table(columns, [format_row(result) for result in results])
    if json is not None:
        write_json(json, {"num_images": num_images, "crop": crop, "seed": seed, "results": results})


def format_row(result: dict) -> tuple[str, ...]:
    """Format the result of one group size for the table."""
    counts = (f"{result[name]:,}" for name in ("hashes_compared", "candidates", "verified", "groups"))
    seconds = (f"{result[name]:.1f}" for name in ("seconds", "cpu_seconds", "search_seconds", "search_cpu_seconds"))
    return f"{result['copies']:,}", *seconds, *counts, format_bytes(result["memory_bytes"])


# Pictures.


def write_images(folder: Path, num_images: int, copies: int, crop: float, seed: int) -> None:
    """Write images in groups of `copies`, in several processes. File names are in random order, so that groups are mixed."""
    (folder / "all").mkdir(parents=True)
    pictures = np.arange(num_images) // copies
    if copies >= LARGEST:
        pictures = np.maximum(np.arange(num_images) - copies + 1, 0)
    names = np.random.default_rng(seed).permutation(num_images)
    with ProcessPoolExecutor(count_cpus()) as pool:
        parts = [range(start, min(start + 1000, num_images)) for start in range(0, num_images, 1000)]
        list(pool.map(partial(write_part, folder / "all", pictures, names, crop, seed), parts))


def write_part(folder: Path, pictures: np.ndarray, names: np.ndarray, crop: float, seed: int, part: range) -> None:
    """Write the images of one range."""
    fields = draw_fields(seed)
    for index in part:
        generator = np.random.default_rng((seed, index))
        pixels = draw_picture(fields, np.random.default_rng((seed, 1, int(pictures[index]))))
        pixels = pixels * generator.uniform(0.85, 1.15) + generator.normal(0, 2, pixels.shape)
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        if crop:
            left, top, right, bottom = SIDE * crop * generator.uniform(0, 0.5, 4)
            image = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC, (left, top, SIDE - right, SIDE - bottom))
        content = io.BytesIO()
        image.save(content, "JPEG", quality=int(generator.integers(30, 96)))
        (folder / f"{names[index]:06}.jpg").write_bytes(content.getvalue())


@lru_cache(1)
def draw_fields(seed: int) -> np.ndarray:
    """Draw large fields of noise (16, 1024, 1024, 3) whose amplitude falls with the frequency, as in photographs."""
    generator = np.random.default_rng(seed)
    frequencies = np.hypot(np.fft.fftfreq(FIELD_SIDE)[:, None], np.fft.rfftfreq(FIELD_SIDE)) * SIDE
    fields = np.empty((NUM_FIELDS, FIELD_SIDE, FIELD_SIDE, 3), np.float16)
    for field, channel in np.ndindex(NUM_FIELDS, 3):
        noise = generator.standard_normal((FIELD_SIDE, FIELD_SIDE))
        pixels = np.fft.irfft2(np.fft.rfft2(noise) / np.maximum(frequencies, 1) ** 1.3, s=noise.shape)
        fields[field, ..., channel] = pixels / pixels.std()
    return fields


def draw_picture(fields: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Draw a picture (128, 128, 3) as the sum of random pieces of two fields."""
    pieces = []
    for _ in range(2):
        field, (top, left) = generator.integers(NUM_FIELDS), generator.integers(0, FIELD_SIDE - SIDE, 2)
        pieces.append(fields[field, top : top + SIDE, left : left + SIDE].astype(np.float32))
    return 128 + 32 * (pieces[0] + pieces[1])


# Measurements.


def run_check(folder: Path) -> dict[str, float]:
    """Run `vitrine data check` and return its time and the peak of its memory."""
    start, cpu_start = time.perf_counter(), measure_cpu_time()
    command = [sys.executable, "-m", "vitrine", "data", "check", str(folder), "--json", str(folder.with_name("check.json"))]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum_memory(process.pid))
        time.sleep(0.1)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)} failed with status {process.returncode}.")
    cpu_seconds = measure_cpu_time() - cpu_start
    return {"seconds": time.perf_counter() - start, "cpu_seconds": cpu_seconds, "memory_bytes": peak}


def measure_cpu_time() -> float:
    """Return the CPU time of this process and its finished children, in seconds. Other programs change it less than time."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def sum_memory(pid: int) -> int:
    """Return the proportional memory (PSS) of a process and its descendants, in bytes."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        children = [child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    except (OSError, ProcessLookupError):  # ended in the meantime
        return 0
    own = sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return 1024 * own + sum(sum_memory(int(child)) for child in children)


def measure_search(folder: Path) -> dict[str, float]:
    """Search data whose statistics are in the cache; return the time and the counts of what was compared."""
    source = find_data(folder).open(None)
    check = DataCheck({None: source}, {None: compute_image_stats(source, "")})
    start, cpu_start = time.perf_counter(), measure_cpu_time()
    with (
        count_calls(perceptual_hash, "expand_ranges", lambda _, rows: len(rows)) as hashes_compared,
        count_calls(perceptual_hash, "search_block", lambda _, pairs: len(pairs)) as candidates,
        count_calls(edge_map.ImageComparer, "compare", lambda arguments, _: len(arguments[1])) as verified,
    ):
        groups = find_duplicate_groups(check)
    counts = {"hashes_compared": sum(hashes_compared), "candidates": sum(candidates), "verified": sum(verified)}
    seconds = {"search_seconds": time.perf_counter() - start, "search_cpu_seconds": measure_cpu_time() - cpu_start}
    return {**seconds, "groups": len(groups), **counts}


@contextmanager
def count_calls(owner: object, name: str, count: Callable) -> Iterator[list[int]]:
    """Add up `count(arguments, result)` of each call of a function of a module or class."""
    function, total, lock = getattr(owner, name), [0], threading.Lock()

    def call(*arguments: object) -> object:
        result = function(*arguments)
        with lock:
            total[0] += count(arguments, result)
        return result

    setattr(owner, name, call)
    try:
        yield total
    finally:
        setattr(owner, name, function)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
