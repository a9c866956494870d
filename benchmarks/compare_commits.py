"""Compare what two commits compute: final weights, training state, metrics, summaries and JSON of short runs, bit by bit.

    python benchmarks/compare_commits.py BASE [OTHER] [--cases NAME ...] [--jobs 2] [--keep DIR] [--assets DIR]

OTHER is a commit, or `.` (default) for the working tree with its uncommitted changes. Both run on this machine with this
interpreter and one thread for each process, through the command line only, so that Python names may differ. Figures, HTML
pages and printed text are not compared. `--keep DIR` keeps all files and reuses the results of BASE, which halves the time of
the next comparison; one comparison at a time may use DIR. Two cases hand over: OTHER resumes a run that BASE stopped, and
must end as BASE does.

Exit status: 0 if everything is equal, 1 if something differs or a case fails.
"""

import csv
import hashlib
import inspect
import io
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from PIL import Image
from safetensors import safe_open

# JSON keys and array names, old -> new. Mirrors RENAMED_KEYS of src/vitrine/run/folder.py, plus keys of --json files.
RENAMED_KEYS: dict[str, str] = {"likeness": "similarity"}
OLD_KEYS = {new: old for old, new in RENAMED_KEYS.items()}

# Command-line options, old -> new. Cases use the old ones; a commit that rejects them is called with the new ones.
RENAMED_OPTIONS: dict[str, str] = {}

# Words that are values, old -> new, e.g. the kinds of findings of `data check`.
RENAMED_VALUES: dict[str, str] = {}

# Fields that BASE does not have, by the end of their key, and the default that OTHER must then show.
NEW_FIELDS: dict[str, Any] = {
    "model.readout_layers": None,
    "model.readout": None,
    "data.changed": "refuse",
    "loader.stuck_after_s": 60.0,
}

# In the following sets, keys have their old names.

# Timings, which differ from run to run.
TIMING_KEYS = {"images_per_s", "waited", "seconds", "device_seconds", "device_hours"}

# Digests of something that is compared itself. They also cover timings or the names of keys.
DIGEST_KEYS = {"checksum", "metadata_checksum", "description", "vitrine_training_checksum"}

# Sentences: only the numbers in them are compared, so that the wording can improve.
PROSE_KEYS = {"detail", "departures", "protocol", "setting", "unreadable"}

FIGURES = {".png", ".html", ".svg"}
NOT_RESULTS = {"assets", "cache", "data", "stopped"}  # in the folder of a case
LOG, DONE = "log.txt", "done.json"
NEW_FILES = {"data.json"}  # in run folders; BASE may not have them
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
TIMEOUT_S, NUM_SHOWN, NUM_ATTEMPTS = 600, 6, 5

# Seen once in 60 runs, when a rank exited after its last step; probably Gloo's threads, see pytorch/pytorch#179291.
ABORTED_AT_EXIT = "terminate called without an active exception"

RUNNING: "set[subprocess.Popen[bytes]]" = set()

REPOSITORY = Path(__file__).resolve().parent.parent
OLD_FILES = REPOSITORY / "tests" / "fixtures" / "before_reshape"


@dataclass(frozen=True)
class Command:
    """One call of `vitrine`, or a step between two calls."""

    line: str
    ranks: int = 1
    status: int = 0
    """Expected exit status."""
    stop_run: str | None = None
    """Send SIGTERM when this run has logged its first step, and keep a copy of its folder as `stopped`."""
    help_to: str | None = None
    """Write the defaults that the help shows to this JSON file."""


@dataclass(frozen=True)
class Case:
    name: str
    commands: Sequence[Command | str]
    needs_assets: bool = False
    continues: str | None = None
    """Case of BASE whose stopped run is resumed by OTHER and must end as that case does."""


@dataclass(frozen=True)
class Side:
    """One of the two commits."""

    name: str
    src: Path
    results: Path
    can_reuse: bool


@dataclass(frozen=True)
class Outcome:
    folder: Path
    seconds: float = 0.0
    is_reused: bool = False
    error: str | None = None


@dataclass(frozen=True)
class Difference:
    file: str
    key: str
    base: str
    other: str


@dataclass(frozen=True)
class Work:
    """What all cases share."""

    data: Path
    assets: Path | None
    key: str
    """Digest of the data, the machine and the versions: kept results of another one are not reused."""
    folders: dict[str, str] = field(default_factory=dict)
    """Absolute folders and what they are called in comparisons."""


# --- The cases -------------------------------------------------------------------------------------------------------------

TINY = "--model.width 16 --model.depth 2 --model.num-heads 2 --model.mlp-dim 32"
SHORT = (
    "--loader.batch-size 16 --optim.warmup-steps 2 --total-steps 8 --evaluation.num-times 2 --report.every-steps 3 "
    "--saving.every-steps 4"
)
DIGITS = f"train digits {TINY} {SHORT} --data.held-out 0.1"
TILES = f"train shapes --data.source data/tiles --model.image-size 16 {TINY} {SHORT}"
MASKED = f"{TILES} --objective masked-patches --evaluation.few-shot 2 --polyak-factor 0.9 --data.held-out 0.2"
DEIT = "assets/deit-tiny/model.safetensors"
PHOTOS = "--loader.batch-size 8 --optim.warmup-steps 1 --total-steps 4 --evaluation.batch-size 16 --loader.num-workers 0"
FEATURES = "--batch-size 64 --num-workers 0"
# The run may be stopped at any step. Reading the meter at every one makes the metrics the same wherever that is.
STOPPABLE = "--total-steps 60 --report.every-steps 1 --saving.every-steps 30 --saving.keep-last 1"
TWO_RANKS = f"{DIGITS} --mixing.mixup 0.2 --model.dropout-rate 0.1 --polyak-factor 0.9"
STOPPED_DIGITS = f"{DIGITS} {STOPPABLE} --mixing.mixup 0.2 --model.dropout-rate 0.1 --polyak-factor 0.9 --out run"
STOPPED_MASKED = f"{MASKED} {STOPPABLE} --out run"

# Each stands for the recipes that share its code.
TRAIN_RECIPES = """
    digits shapes fashion-mnist cifar10-vit cifar10-hybrid imagenet-vit-s16 jft-vit-b32 jft-vit-l16-14ep jft-vit-h14 jft-r50x1
    jft-r152x2 jft-r50-vit-l16 imagenet21k-vit-b16 imagenet21k-vit-l16-30ep imagenet-vit-b16 imagenet-vit-l16 jft-r50x1-sgd
    jft-masked-vit-b16 cifar10-masked folder-masked demo-glyphs-vit demo-glyphs-resnet
    demo-glyphs-hybrid demo-vit demo-resnet demo-hybrid
"""
FINETUNE_RECIPES = """
    folder imagenet imagenet-polyak cifar10 cifar100 pets flowers vtab hyperrule cifar10-small demo-transfer
"""

CASES: tuple[Case, ...] = (
    Case(
        "supervised",
        [
            f"{DIGITS} --mixing.mixup 0.2 --model.dropout-rate 0.1 --model.stochastic-depth-rate 0.1 --polyak-factor 0.9 "
            "--supervised.label-smoothing 0.1 --evaluation.few-shot 2 --out run --json run.json"
        ],
    ),
    Case(
        "augmentation",
        [
            f"{TILES} --augment.crop inception --augment.flip --augment.rand-augment-ops 2 --augment.erase-rate 0.5 "
            "--mixing.mixup 0.2 --mixing.cutmix 1.0 --model.pool map --model.hidden-head True --model.layer-scale 0.1 "
            "--model.num-registers 2 --model.position learned-1d --model.position-insertion every-layer "
            "--loader.num-workers 1 --data.no-in-memory --out run",
            f"{TILES} --augment.crop random --augment.resize 20 --augment.interpolation bicubic --augment.erase-rate 0.5 "
            "--augment.erase-fill grey --model.position relative --loader.last drop --data.subset 5/class --out relative",
        ],
    ),
    Case(
        "masked-patches",
        [
            f"{MASKED} --out run",
            f"{MASKED} --masked-patches.target pixels --masked-patches.corrupted-rate 0.25 --out pixels",
            f"{MASKED} --masked-patches.target small-colours --out small-colours",
            "inspect run/model data/tiles/test --out inspection --num-drawn 2",
        ],
    ),
    Case("hybrid", ["train demo-hybrid --total-steps 4 --optim.warmup-steps 1 --loader.batch-size 8 --out run"]),
    Case(
        "resnet",
        [
            "train demo-resnet --total-steps 4 --optim.warmup-steps 1 --loader.batch-size 8 --optim.kind sgd "
            "--optim.decay piecewise --optim.decay-mask all --out run",
            "convert run/model bit.npz --format bit --verify --json verify.json",
            "inspect run/model data/tiles/test --out inspection --num-drawn 2",
        ],
    ),
    Case(
        "axial",
        [
            f"{DIGITS} --model.name Axial-ViT-B/16 --optim.decay linear --out run",
            "inspect run/model data/tiles/test --out inspection --num-drawn 2",
        ],
    ),
    Case("finetune", [f"finetune {DEIT} data/photos {PHOTOS} --out run --json run.json"], needs_assets=True),
    Case(
        "finetune-pets",
        [
            f"finetune {DEIT} data/photos --recipe pets {PHOTOS} --model.image-size 64 --machine.accumulation-steps 2 "
            "--out run",
            f"finetune {DEIT} data/photos {PHOTOS} --model.image-size 64 --head-init ridge --optim.frozen-blocks -1 "
            "--data.held-out 0.2 --out ridge",
        ],
        needs_assets=True,
    ),
    Case(
        "sigmoid",
        [
            f"train digits --data.source data/several-labels.jsonl {TINY} {SHORT} --supervised.loss sigmoid "
            "--model.image-size 16 --model.num-channels 3 --model.patch-size 4 --model.head-bias -10 --mixing.mixup 0.2 "
            "--data.held-out 0.2 --out run",
            f"evaluate run/model data/several-labels.jsonl {FEATURES} --json evaluate.json",
        ],
    ),
    Case(
        "accumulation",
        [
            f"{DIGITS} --machine.accumulation-steps 4 --machine.gradient-checkpointing --optim.kind sgd --mixing.cutmix 1.0 "
            "--optim.layer-decay 0.7 --optim.decay rsqrt --optim.cooldown-steps 2 --model.dropout-rate 0.1 --out run"
        ],
    ),
    Case(
        "patience",
        [
            f"{DIGITS} --total-steps 40 --evaluation.num-times 20 --evaluation.patience 2 --optim.learning-rate 0.03 "
            "--optim.decay constant --polyak-factor 0.9 --out run"
        ],
    ),
    Case(
        "search",
        [
            f"{DIGITS} --data.held-out 0 --total-steps 4 --select-rate --rates 0.001 0.01 --seeds 0 1 --out search "
            "--json search.json"
        ],
    ),
    Case("resumed", [Command(STOPPED_DIGITS, status=128 + signal.SIGTERM, stop_run="run"), STOPPED_DIGITS]),
    Case("resumed-from-base", [STOPPED_DIGITS], continues="resumed"),
    Case("masked-resumed", [Command(STOPPED_MASKED, status=128 + signal.SIGTERM, stop_run="run"), STOPPED_MASKED]),
    Case("masked-resumed-from-base", [STOPPED_MASKED], continues="masked-resumed"),
    Case("ddp", [Command(f"{TWO_RANKS} --out run", ranks=2)]),
    Case("fsdp", [Command(f"{TWO_RANKS} --machine.sharding fsdp --out run", ranks=2)]),
    Case("fsdp-masked", [Command(f"{MASKED} --machine.sharding fsdp --out run", ranks=2)]),
    Case(
        "evaluate",
        [
            f"evaluate data/checkpoint digits {FEATURES} --against data/other --out out --json evaluate.json",
            f"evaluate data/checkpoint data/tiles {FEATURES} --mapping data/mapping.json --json mapping.json",
        ],
    ),
    Case(
        "few-shot",
        [
            f"few-shot data/checkpoint digits data/tiles --shots 1 5 all --seeds 0 1 {FEATURES} --json few-shot.json",
            f"few-shot data/checkpoint digits --shots 5 --mean-rank --seeds 0 {FEATURES} --json mean-rank.json",
        ],
    ),
    Case("probe", [f"probe data/checkpoint digits --subset 20/class {FEATURES} --json probe.json"]),
    Case(
        "features",
        [
            f"features data/checkpoint digits {FEATURES} --out digits.npz",
            f"features data/checkpoint data/several-labels.jsonl --image-size 24 {FEATURES} --out several.npz",
            f"features {DEIT} data/photos --split test {FEATURES} --no-cache --out photos.npz",
        ],
        needs_assets=True,
    ),
    Case(
        "predict",
        [
            f"predict {DEIT} data/photos/test --top 3 {FEATURES} --json photos.json --csv photos.csv",
            f"predict data/checkpoint data/defects --top 10 {FEATURES} --json tiles.json",
        ],
        needs_assets=True,
    ),
    Case(
        "inspect",
        [
            f"inspect {DEIT} data/photos/test --image-size 96x128 --num-drawn 2 --num-measured 6 --layers 0 11 --out photos",
            "inspect data/checkpoint data/tiles/test --num-drawn 3 --query 1,2 --rollout.fusion max "
            "--rollout.dropped-share 0.5 --out tiles",
        ],
        needs_assets=True,
    ),
    Case(
        "data-check",
        [
            Command(
                f"data check data/defects --model data/checkpoint {FEATURES} --leave-out leave-out.txt --json check.json",
                status=1,
            ),
            Command("data check data/defects --json again.json", status=1),
            "data check digits --json digits.json",
            f"{TILES} --data.source data/defects --data.exclude leave-out.txt --data.bad-images skip "
            "--data.no-in-memory --out run",
        ],
    ),
    Case(
        "data-duplicates",
        ["data duplicates data/defects data/defects --split train --test-split test --out leave-out.txt --json pairs.json"],
    ),
    Case(
        "data-pack",
        ["data pack data/tiles packed --size 12 --json pack.json", f"{TILES} --data.source packed --out run"],
    ),
    Case(
        "models",
        [
            "models --json models.json",
            "models ViT-S/8 R26+ViT-Ti/16 --image-size 96x64 --images 1e6 --epochs 3 --json few.json",
        ],
    ),
    Case(
        "vtab",
        [
            "vtab data/checkpoint data/vtab --generated --tasks patch_camelyon tiles shapes_count --test-images 20 "
            "--seeds 0 1 --model.image-size 16 --total-steps 2 --optim.warmup-steps 1 --loader.batch-size 8 "
            "--machine.accumulation-steps 1 --out out --json vtab.json",
        ],
    ),
    Case(
        "convert",
        [
            f"convert data/checkpoint {name} --format {form}"
            for name, form in (
                ("vitrine", "vitrine"),
                ("google-2020.npz", "google-2020"),
                ("google-linen.npz", "google-linen"),
                ("big-vision.npz", "big-vision"),
                ("timm.safetensors", "timm"),
                ("torchvision.pth", "torchvision"),
            )
        ]
        + [
            "convert data/checkpoint hf --format hf --verify --json hf.json",
            "convert google-2020.npz again --format vitrine --num-heads 2 --image-size 24 --resize-method timm --num-classes 5",
        ],
    ),
    Case("convert-deit", [f"convert {DEIT} deit.npz --format google-linen --verify --json verify.json"], needs_assets=True),
    Case(
        "recipes",
        [Command(f"train {name} --help", help_to=f"{name}.json") for name in TRAIN_RECIPES.split()]
        + [
            Command(f"finetune data/checkpoint data/tiles --recipe {name} --help", help_to=f"finetune-{name}.json")
            for name in FINETUNE_RECIPES.split()
        ]
        + [Command("vtab data/checkpoint data/vtab --help", help_to="vtab.json")],
    ),
)


# --- The data --------------------------------------------------------------------------------------------------------------


def build_data(folder: Path, assets: Path | None) -> None:
    """Small data sets for all cases, the same at every call."""
    shutil.copytree(OLD_FILES / "checkpoint", folder / "checkpoint")
    shutil.copytree(OLD_FILES / "run" / "best", folder / "other")
    build_tiles(folder / "tiles", 4, 12, 4)
    build_tiles(folder / "vtab" / "patch_camelyon", 2, 12, 4)
    (folder / "vtab" / "tiles").symlink_to("../tiles")
    mapping = {"class-0": [0, 1], "class-1": "2; 3", "class-2": [4], "class-3": []}
    (folder / "mapping.json").write_text(json.dumps(mapping))
    paths = sorted((folder / "tiles" / "train").rglob("*.png"))
    rows = [
        {"path": str(path.relative_to(folder)), "labels": [f"label-{each}" for each in range(3) if (number >> each) & 1]}
        for number, path in enumerate(paths)
    ]
    (folder / "several-labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_defects(folder / "defects", folder / "tiles")
    if assets is not None:
        copy_photos(assets / "pets", folder / "photos")


def build_tiles(folder: Path, num_classes: int, num_train: int, num_test: int) -> None:
    """Random coloured tiles, 24 x 32 pixels, whose first row of tiles tells the class."""
    rng = np.random.default_rng(num_classes)
    colours = rng.integers(0, 256, (num_classes, 1, 4, 3), dtype=np.uint8)
    for split, num_images in (("train", num_train), ("test", num_test)):
        for label in range(num_classes):
            place = folder / split / f"class-{label}"
            place.mkdir(parents=True)
            for number in range(num_images):
                tiles = np.concatenate([colours[label], rng.integers(0, 256, (2, 4, 3), dtype=np.uint8)])
                Image.fromarray(tiles.repeat(8, 0).repeat(8, 1)).save(place / f"{split}-{number:02d}.png")


def build_defects(folder: Path, tiles: Path) -> None:
    """Copies, a leak from train to test, one image with two labels, and a file that cannot be read."""
    rng = np.random.default_rng(0)
    shutil.copytree(tiles, folder)
    for number in range(6):
        corners = rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)
        image = Image.fromarray(corners).resize((96, 80), Image.Resampling.BICUBIC)
        image.save(folder / "train" / f"class-{number % 4}" / f"smooth-{number}.png")
        if number == 0:
            image.save(folder / "test" / "class-0" / "leak.jpg", quality=80)
        elif number == 1:
            image.save(folder / "train" / "class-3" / "other-label.png")
        elif number == 2:
            image.resize((72, 60), Image.Resampling.BICUBIC).save(folder / "test" / "class-2" / "smaller.png")
    shutil.copyfile(folder / "train" / "class-0" / "train-00.png", folder / "train" / "class-0" / "copy.png")
    whole = (folder / "train" / "class-1" / "train-01.png").read_bytes()
    (folder / "train" / "class-1" / "truncated.png").write_bytes(whole[: len(whole) // 2])


def copy_photos(pets: Path, folder: Path) -> None:
    """Five breeds of pets, six photographs each to train on and two to test on."""
    for split, num_images in (("train", 6), ("test", 2)):
        for breed in sorted(path.name for path in (pets / split).iterdir())[:5]:
            (folder / split / breed).mkdir(parents=True)
            for path in sorted((pets / split / breed).iterdir())[:num_images]:
                shutil.copyfile(path, folder / split / breed / path.name)


def prepare_work(root: Path, assets: Path | None) -> Work:
    with tempfile.TemporaryDirectory(dir=root) as temporary:
        build_data(Path(temporary, "data"), assets)
        digest = digest_folder(Path(temporary, "data"))
        data = root / f"data-{digest[:12]}"
        if not data.exists():
            os.replace(Path(temporary, "data"), data)
    parts = (
        digest,
        sys.version,
        torch.__version__,
        np.__version__,
        platform.platform(),
        torch.backends.cpu.get_cpu_capability(),
    )
    key = hashlib.sha256(repr(parts).encode()).hexdigest()
    folders = {str(data.resolve()): "data"} | ({} if assets is None else {str(assets.resolve()): "assets"})
    return Work(data, assets, key, folders)


def digest_folder(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


# --- Running ---------------------------------------------------------------------------------------------------------------


def prepare_side(commit: str, root: Path, sources: Path, is_base: bool) -> Side:
    """The source of a commit, or of the working tree, in a folder of its own."""
    folder = sources / ("base" if is_base else "other")
    folder.mkdir()
    if commit == ".":
        shutil.copytree(REPOSITORY / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    else:
        found = subprocess.run(["git", "archive", commit, "src"], cwd=REPOSITORY, capture_output=True)
        if found.returncode != 0:
            raise SystemExit(f"{commit} is not a commit with a folder src: {found.stderr.decode().strip()}")
        with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
            archive.extractall(folder, filter="data")
    name = commit if commit == "." else f"{commit} ({digest_folder(folder / 'src')[:8]})"
    results = root / (f"base-{digest_folder(folder / 'src')[:12]}" if is_base else "other")
    if not is_base:
        shutil.rmtree(results, ignore_errors=True)
    results.mkdir(exist_ok=True)
    side = Side(name, folder / "src", results, can_reuse=is_base)
    check_import(side)
    return side


def check_import(side: Side) -> None:
    """Make sure that the interpreter imports this source, not an installed one."""
    code = "import vitrine; print(vitrine.__file__)"
    found = subprocess.run([sys.executable, "-c", code], env=build_environment(side, Path()), capture_output=True, text=True)
    if not found.stdout.startswith(str(side.src)):
        raise SystemExit(f"{side.name}: vitrine is imported from {found.stdout.strip() or found.stderr}, not from {side.src}.")


def build_environment(side: Side, folder: Path) -> dict[str, str]:
    cache = str(folder / "cache")
    return {
        **os.environ,
        "PYTHONPATH": str(side.src),
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": cache,
        "VITRINE_CACHE": f"{cache}/vitrine",
        "MPLCONFIGDIR": str(side.src.parent / "matplotlib"),  # its list of fonts takes seconds to make
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }


def run_case(case: Case, side: Side, work: Work, before: "Future[Outcome] | None" = None) -> Outcome:
    folder = side.results / case.name
    definition = hashlib.sha256(f"{case}{work.key}{inspect.getsource(call)}".encode()).hexdigest()
    if side.can_reuse and (folder / DONE).is_file():
        done = json.loads((folder / DONE).read_text())
        if done["definition"] == definition:
            return Outcome(folder, done["seconds"], is_reused=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "data").symlink_to(work.data.resolve())
    if work.assets is not None:
        (folder / "assets").symlink_to(work.assets.resolve())
    start_s = time.monotonic()
    try:
        if before is not None:
            shutil.copytree(before.result().folder / "stopped", folder / "run")
        for command in case.commands:
            run_command(Command(command) if isinstance(command, str) else command, side, folder)
    except (RuntimeError, OSError) as error:
        return Outcome(folder, time.monotonic() - start_s, error=str(error))
    seconds = time.monotonic() - start_s
    (folder / DONE).write_text(json.dumps({"definition": definition, "seconds": seconds}))
    return Outcome(folder, seconds)


def run_command(command: Command, side: Side, folder: Path) -> None:
    """Run it; again, from the beginning, if the signal came too late or a rank aborted while it exited."""
    status, output = -1, ""
    for _ in range(NUM_ATTEMPTS):
        status, output = call_with_known_options(command, side, folder)
        is_late = command.stop_run is not None and status == 0
        if not is_late and not (command.ranks > 1 and ABORTED_AT_EXIT in output):
            break
        shutil.rmtree(folder / "run")
    if status != command.status:
        last = "\n".join(output.strip().splitlines()[-12:])
        raise RuntimeError(f"exit status {status}, not {command.status}: vitrine {command.line}\n{last}")
    if command.stop_run is not None:
        shutil.copytree(folder / command.stop_run, folder / "stopped")
    if command.help_to is not None:
        (folder / command.help_to).write_text(json.dumps(read_defaults(output), indent=2))


def call_with_known_options(command: Command, side: Side, folder: Path) -> tuple[int, str]:
    """Call a command with its options as written, or renamed if this commit rejects them."""
    words = shlex.split(command.line)
    renamed = [RENAMED_OPTIONS.get(word, word) for word in words]
    status, output = call(words, command, side, folder)
    if status in (0, command.status) or words == renamed:
        return status, output
    return call(renamed, command, side, folder)


def call(words: list[str], command: Command, side: Side, folder: Path) -> tuple[int, str]:
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(command.ranks)] if command.ranks > 1 else []
    )
    with (folder / LOG).open("a+") as log:
        log.write(f"$ vitrine {shlex.join(words)}\n")
        log.flush()
        start = log.tell()
        process = subprocess.Popen(
            [sys.executable, *launcher, "-m", "vitrine", *words],
            cwd=folder,
            env=build_environment(side, folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        RUNNING.add(process)
        try:
            if command.stop_run is not None:
                stop_after_first_step(process, folder / command.stop_run / "metrics.jsonl")
            status = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            status = -1
        finally:
            RUNNING.discard(process)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        log.seek(start)
        return status, log.read()


def stop_after_first_step(process: "subprocess.Popen[bytes]", metrics: Path) -> None:
    while process.poll() is None:
        if metrics.is_file() and metrics.stat().st_size > 0:
            process.send_signal(signal.SIGTERM)
            return
        time.sleep(0.002)


def read_defaults(text: str) -> dict[str, str]:
    """Option and default value of each `--option ... (default: VALUE)` in help that is drawn with boxes.

    Unset options (None, False, empty) and defaults in words, which help may show or leave out, are not listed.
    """
    plain = " ".join(line.strip("│ ") for line in text.splitlines())
    parts = re.split(r"(?:^|\s)(--[a-z][\w.-]*)(?=[ ,])", plain)
    found: dict[str, str] = {}
    names: list[str] = []
    for name, rest in zip(parts[1::2], parts[2::2], strict=True):
        names.append(name)
        default = re.search(r"\(default: (.*?)\)(?:\s|$)", rest)
        if default is not None and default[1] not in ("None", "False", "") and not re.search("[a-z] [a-z]", default[1]):
            found[RENAMED_OPTIONS.get(names[0], names[0])] = default[1]
        if not rest.startswith(","):
            names = []
    return found


# --- Comparing -------------------------------------------------------------------------------------------------------------


def compare_folders(base: Path, other: Path, work: Work) -> list[Difference]:
    files = [list_results(folder) for folder in (base, other)]
    found = [Difference(name, "", "there", "missing") for name in files[0] - files[1]]
    found += [Difference(name, "", "missing", "there") for name in files[1] - files[0]]
    for name in sorted(files[0] & files[1]):
        values = [dict(read_values(folder / name, folder, work)) for folder in (base, other)]
        found += compare_values(name, *values)
    return found


def list_results(folder: Path) -> set[str]:
    """Names of the files to compare; step folders of runs and everything but figures."""
    names = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return {
        str(name)
        for name in names
        if name.parts[0] not in NOT_RESULTS and name.suffix not in FIGURES and name.name not in {LOG, DONE, *NEW_FILES}
    }


def compare_values(file: str, base: dict[str, Any], other: dict[str, Any]) -> Iterator[Difference]:
    for key in base | other:
        if key not in base and any(
            key == name or key.endswith(f".{name}") for name in NEW_FIELDS if NEW_FIELDS[name] == other[key]
        ):
            continue
        if key not in base or key not in other:
            shown = [describe(values[key]) if key in values else "missing" for values in (base, other)]
            yield Difference(file, key, *shown)
        elif isinstance(base[key], np.ndarray) and isinstance(other[key], np.ndarray):
            if not is_bit_equal(base[key], other[key]):
                yield Difference(file, key, describe(base[key]), describe_against(base[key], other[key]))
        elif repr(base[key]) != repr(other[key]):  # 1 is not 1.0, and NaN is NaN
            yield Difference(file, key, describe(base[key]), describe(other[key]))


def is_bit_equal(base: np.ndarray, other: np.ndarray) -> bool:
    return base.dtype == other.dtype and base.shape == other.shape and base.tobytes() == other.tobytes()


def describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    return f"{value!r:.80}"


def describe_against(base: np.ndarray, other: np.ndarray) -> str:
    if base.dtype != other.dtype or base.shape != other.shape or base.dtype.kind not in "fiu":
        return describe(other)
    gaps = np.abs(base.astype(np.float64) - other.astype(np.float64))
    return f"{np.count_nonzero(gaps):,} of {gaps.size:,} differ, by up to {gaps.max():.3g}"


def read_values(path: Path, folder: Path, work: Work) -> Iterator[tuple[str, Any]]:
    """Every value of a file with a key that says where it is."""
    folders = {str(folder.resolve()): "case", **work.folders}
    if path.suffix == ".json":
        yield from flatten(json.loads(path.read_text()), folders)
    elif path.suffix == ".jsonl":
        yield from flatten([json.loads(line) for line in path.read_text().splitlines()], folders)
    elif path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (it is not a dictionary)
                yield name, to_array(file.get_tensor(name))
            yield from flatten({name: parse_if_json(text) for name, text in (file.metadata() or {}).items()}, folders)
    elif path.suffix in (".npz", ".npy"):
        loaded = np.load(path, allow_pickle=False)
        for name, array in loaded.items() if path.suffix == ".npz" else [("", loaded)]:
            yield OLD_KEYS.get(name, name), replace_folders(array, folders)
    elif path.suffix == ".pth":
        for name, tensor in torch.load(path, weights_only=True).items():
            yield name, to_array(tensor)
    elif path.suffix == ".csv":
        with path.open(newline="") as file:
            yield from flatten(list(csv.DictReader(file)), folders)
    elif path.suffix == ".txt":
        yield from flatten([line for line in path.read_text().splitlines() if not line.startswith("#")], folders)
    else:
        yield "", np.frombuffer(path.read_bytes(), dtype=np.uint8)


def flatten(content: Any, folders: dict[str, str], key: str = "", is_prose: bool = False) -> Iterator[tuple[str, Any]]:
    if isinstance(content, dict):
        yield key or ".", "object"
        for name, value in content.items():
            old = OLD_KEYS.get(name, name)
            if old not in TIMING_KEYS | DIGEST_KEYS:
                inner = f"{key}.{replace_folders(old, folders)}".lstrip(".")
                yield from flatten(value, folders, inner, is_prose or old in PROSE_KEYS)
    elif isinstance(content, list):
        yield key or ".", f"list of {len(content)}"
        for number, value in enumerate(content):
            yield from flatten(value, folders, f"{key}[{number}]", is_prose)
    elif isinstance(content, str):
        text = replace_folders(content, folders)
        yield key, NUMBER.findall(text) if is_prose else RENAMED_VALUES.get(text, text)
    else:
        yield key, content


def replace_folders(value: Any, folders: dict[str, str]) -> Any:
    """Give absolute paths, which differ from side to side, the same name."""
    if isinstance(value, np.ndarray):
        return np.array([replace_folders(text, folders) for text in value.tolist()]) if value.dtype.kind == "U" else value
    for path, name in folders.items():
        value = value.replace(path, f"<{name}>")
    return value


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """As NumPy; bfloat16, which it does not have, as bits."""
    return tensor.view(torch.int16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def parse_if_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


# --- The command -----------------------------------------------------------------------------------------------------------


def main(
    base: tyro.conf.Positional[str],
    other: tyro.conf.Positional[str] = ".",
    cases: tuple[str, ...] = (),
    jobs: int = 2,
    keep: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
    assets: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
) -> None:
    """Compare what two commits compute.

    Args:
        base: Commit that is known to be right.
        other: Commit to check, or `.` for the working tree.
        cases: Only these.
        jobs: Cases that run at once, each with one thread.
        keep: Keep all files in this folder and reuse the results of BASE from there.
        assets: Folder with deit-tiny and pets (default: VITRINE_ASSETS, or shared/assets beside the checkout).
    """
    chosen = choose_cases(cases)
    found = find_assets(assets)
    if found is None and any(case.needs_assets for case in chosen):
        needed = ", ".join(case.name for case in chosen if case.needs_assets)
        raise SystemExit(f"{needed}: need real weights and images. Give --assets DIR, or choose other --cases.")
    with ExitStack() as stack:
        sources = Path(stack.enter_context(tempfile.TemporaryDirectory())).resolve()
        root = sources / "work" if keep is None else keep.resolve()
        root.mkdir(parents=True, exist_ok=True)
        work = prepare_work(root, found)
        sides = prepare_side(base, root, sources, True), prepare_side(other, root, sources, False)
        outcomes = run_all(chosen, sides, work, jobs)
        try:
            is_equal = report(chosen, sides, outcomes, work)
        except KeyboardInterrupt:
            stop_all(outcomes.values())
            raise SystemExit(130) from None
    sys.exit(0 if is_equal else 1)


def choose_cases(names: Sequence[str]) -> list[Case]:
    """The named cases, with those of BASE that they continue."""
    known = {case.name: case for case in CASES}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"Unknown case {unknown[0]}. Cases: {', '.join(known)}.")
    wanted = set(names) | {known[name].continues for name in names}
    return [case for case in CASES if not names or case.name in wanted]


def find_assets(given: Path | None) -> Path | None:
    folder = given or Path(os.environ.get("VITRINE_ASSETS", REPOSITORY.parent / "shared" / "assets"))
    if not folder.is_dir() and given is not None:
        raise SystemExit(f"--assets {given} is not a folder.")
    return folder if folder.is_dir() else None


def run_all(
    cases: Sequence[Case], sides: tuple[Side, Side], work: Work, jobs: int
) -> dict[tuple[bool, str], "Future[Outcome]"]:
    """Outcomes by side (True: BASE) and case; BASE first, so that what it stops can be resumed."""
    pool, found = ThreadPoolExecutor(jobs), dict[tuple[bool, str], Future[Outcome]]()
    for side in sides:
        is_base = side is sides[0]
        for case in cases:
            if case.continues is None:
                found[is_base, case.name] = pool.submit(run_case, case, side, work)
            elif not is_base:
                found[False, case.name] = pool.submit(run_case, case, side, work, found[True, case.continues])
    for case in cases:
        if case.continues is not None:
            found[True, case.name] = found[True, case.continues]
    pool.shutdown(wait=False)
    return found


def stop_all(outcomes: Iterable["Future[Outcome]"]) -> None:
    for outcome in outcomes:
        outcome.cancel()
    for process in list(RUNNING):
        os.killpg(process.pid, signal.SIGKILL)


def report(
    cases: Sequence[Case], sides: tuple[Side, Side], outcomes: dict[tuple[bool, str], "Future[Outcome]"], work: Work
) -> bool:
    """Print a row for each case as it ends, with what differs below it; returns whether everything is equal."""
    start_s, num_different = time.monotonic(), 0
    print(f"base: {sides[0].name}    other: {sides[1].name}\n\n{'case':<26}{'base':>8}{'other':>8}  result", flush=True)
    for case in cases:
        base, other = outcomes[True, case.name].result(), outcomes[False, case.name].result()
        failed = [
            f"{side.name}: {each.error}" for side, each in zip(sides, (base, other), strict=True) if each.error is not None
        ]
        differences = [] if failed else compare_folders(base.folder, other.folder, work)
        equal = f"equal, {len(list_results(base.folder))} files"
        result = "FAILED" if failed else f"DIFFERENT, {len(differences):,} values" if differences else equal
        shown = "kept" if base.is_reused else f"{base.seconds:.1f} s"
        print(f"{case.name:<26}{shown:>8}{f'{other.seconds:.1f} s':>8}  {result}")
        for line in failed + [format_difference(each) for each in differences[:NUM_SHOWN]]:
            print(indent(line, "    "))
        if len(differences) > NUM_SHOWN:
            print(f"    and {len(differences) - NUM_SHOWN:,} more")
        sys.stdout.flush()
        num_different += bool(failed or differences)
    outcome = "All equal" if num_different == 0 else f"{num_different} of {len(cases)} cases differ or failed"
    print(f"\n{outcome}; {time.monotonic() - start_s:.0f} s.")
    return num_different == 0


def format_difference(each: Difference) -> str:
    return f"{each.file} {each.key}: {each.base} -> {each.other}"


if __name__ == "__main__":
    tyro.cli(main)
