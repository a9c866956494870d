"""Count how many of 108 planted bugs the tests catch: `python benchmarks/planted_bugs.py`.

Each bug changes one to three lines of a package and crashes nothing: a user would see it only in results or files. For each,
the project is copied, the bug is planted, and the tests run in stages: the test file of the changed module, the tests of its
package, all tests. The first test that fails catches the bug. The first 40 bugs are here, 60 more in
`planted_bugs_second.py`, and those that the tests had missed before in `planted_bugs_earlier.py`.

`--check` only verifies that every snippet occurs exactly once and that the changed file is still Python. When names or files
have changed, `what` says how to write a snippet anew. `--baseline` runs the tests on a copy without a bug, where nothing may
fail: a test that always fails would seem to catch every bug.
"""

import ast
import json as json_format
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from planted_bug import Bug
from planted_bugs_earlier import EARLIER_BUGS
from planted_bugs_second import SECOND_BUGS

ROOT = Path(__file__).resolve().parent.parent
SOURCE, TESTS = Path("src/vitrine"), Path("tests")
PYTEST = ("-m", "pytest", "-x", "-q", "-m", "not full", "-p", "no:cacheprovider", "-n", "0")
FAILURE = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
# Exit statuses of pytest: all passed, some failed, collection failed, no tests found.
PASSED, FAILED, INTERRUPTED, EMPTY = 0, 1, 2, 5


BUGS = (
    Bug(
        "file-written-in-place",
        "core",
        "atomic_file yields the target itself, not a temporary file beside it: a write that fails destroys the old file.",
        "core/files.py",
        'temporary_path(path, f"partial-{os.getpid()}" if is_concurrent else "partial")',
        "path",
    ),
    Bug(
        "seed-ignores-rank-and-part",
        "core",
        "seed_generators uses its first two keys only: dropout is the same on all ranks and in all accumulated parts.",
        "core/runtime.py",
        '",".join(map(str, keys))',
        '",".join(map(str, keys[:2]))',
    ),
    Bug(
        "mixup-keeps-labels",
        "data/augment",
        "mixup_batch blends the images of mixup and leaves the targets unmixed; CutMix is right.",
        "data/augment/mixup.py",
        "(floats, fraction), blend_with_partners(targets, fraction)",
        "(floats, fraction), targets",
    ),
    Bug(
        "crop-rounds-up",
        "data",
        "Preprocessing.resize_and_crop puts the larger half of an odd margin at the top and left: one pixel off.",
        "data/preprocessing.py",
        "(height - self.crop[0]) // 2, (width - self.crop[1]) // 2",
        "(height - self.crop[0] + 1) // 2, (width - self.crop[1] + 1) // 2",
    ),
    Bug(
        "same-order-every-epoch",
        "data",
        "StepSampler.shuffle_positions takes the shuffle of epoch 0 for every epoch, where the shuffle is kept as a table.",
        "data/sampling.py",
        "permute_all(self.num_images, self.seed, epoch)",
        "permute_all(self.num_images, self.seed, 0)",
    ),
    Bug(
        "held-out-is-trained-on",
        "data",
        "hold_out returns all images as the part to train on, including the held-out ones.",
        "data/subsets.py",
        "SubsetSource(source, np.flatnonzero(~is_held))",
        "source",
    ),
    Bug(
        "leaked-copy-stays-in-train",
        "data/quality",
        "Of copies in several splits the check keeps the one in train: list_images_to_exclude names no leaked training image.",
        "data/quality/check.py",
        'KEPT_FIRST = ("test", "val", "train")',
        'KEPT_FIRST = ("train", "val", "test")',
    ),
    Bug(
        "cifar100-coarse-labels",
        "data/sources",
        "open_cifar reads the first label byte: in CIFAR-100 that is the coarse label, one of 20.",
        "data/sources/cifar.py",
        "part[:, layout.num_label_bytes - 1]",
        "part[:, 0]",
    ),
    Bug(
        "devkit-numbers-as-sorted",
        "data/sources",
        "to_wnids takes ImageNet's devkit numbers (ILSVRC2012_ID) as indices of the sorted wnids, not as in meta.mat.",
        "data/sources/imagenet.py",
        "{number: wnid for number, wnid, _ in load_synsets(meta)}",
        "dict(enumerate(sorted(wnid for _, wnid, _ in load_synsets(meta)), start=1))",
    ),
    Bug(
        "packed-split-from-start",
        "data/sources",
        "PackedSource.read_block maps small images from the start of the file: a second split has the pixels of the first.",
        "data/sources/packed.py",
        "= int(self.offsets[0]), ",
        "= 0, ",
    ),
    Bug(
        "shapes-rows-and-columns",
        "data/sources",
        "draw_factors of the generated shapes swaps row and column of a position: top-right is drawn at the bottom left.",
        "data/sources/shapes.py",
        '[kinds["position"] % 3, kinds["position"] // 3]',
        '[kinds["position"] // 3, kinds["position"] % 3]',
    ),
    Bug(
        "positions-resized-by-centres",
        "models",
        "compute_corner_weights aligns the centres of cells, not the corners of the grid: resized positions differ.",
        "models/positions.py",
        "torch.linspace(0, old - 1, new, dtype=torch.float64)",
        "((torch.arange(new, dtype=torch.float64) + 0.5) * old / new - 0.5).clamp(0, old - 1)",
    ),
    Bug(
        "stochastic-depth-unscaled",
        "models",
        "ResidualBranch drops branches in training without dividing the others by the fraction that stays.",
        "models/blocks.py",
        "(kept.to(x.dtype) / (1 - self.skip_rate))",
        "kept.to(x.dtype)",
    ),
    Bug(
        "attention-macs-halved",
        "models",
        "count_block counts one of the two products of attention that grow with the square of the tokens.",
        "models/cost.py",
        "+ 2 * t * line_length * d",
        "+ t * line_length * d",
    ),
    Bug(
        "mean-pool-with-prefix",
        "models",
        "VisionTransformer.pool averages all tokens for pool='mean', class token and registers too.",
        "models/vit.py",
        "encoded.patches.mean(dim=1)",
        "encoded.tokens.mean(dim=1)",
    ),
    Bug(
        "hf-config-always-erf",
        "formats",
        "vit_to_huggingface writes hidden_act=gelu into Hugging Face's config.json for models with the tanh GELU as well.",
        "formats/huggingface_config.py",
        '"tanh": "gelu_pytorch_tanh"',
        '"tanh": "gelu"',
    ),
    Bug(
        "class-position-lost",
        "formats",
        "fold_class_positions drops the class token's position instead of adding it to the token (big-vision, some of timm).",
        "formats/base.py",
        "state[name] + rows[: len(state[name])]",
        "state[name]",
    ),
    Bug(
        "checksum-without-numbers",
        "formats",
        "Checksum covers name, dtype and shape of tensors, not their values: damaged or exchanged weights load.",
        "formats/checkpoint.py",
        " + hashlib.sha256(values.data).hexdigest()",
        "",
    ),
    Bug(
        "timm-mean-and-std-swapped",
        "formats",
        "parse_preprocessing takes mean for std and std for mean out of timm's config.json.",
        "formats/timm_config.py",
        '.get("mean", default.mean),\n            "std": pretrained.get("std", default.std)',
        '.get("std", default.mean),\n            "std": pretrained.get("mean", default.std)',
    ),
    Bug(
        "cache-ignores-preprocessing",
        "engines",
        "TorchEngine.fingerprint leaves out the preprocessing: with another one, old cached features are found.",
        "engines/engine.py",
        "self.preprocessing.to_json(),",
        '"",',
    ),
    Bug(
        "smoothing-for-each-class",
        "objectives",
        "compute_losses divides label_smoothing by the number of classes, which torch does too: hardly any is left.",
        "objectives/supervised.py",
        "label_smoothing=config.label_smoothing,",
        "label_smoothing=config.label_smoothing / logits.shape[1],",
    ),
    Bug(
        "same-mask-every-step",
        "objectives",
        "draw_corruption leaves out the step: an image has the same patches masked in every epoch.",
        "objectives/masked_patches.py",
        "RngStream.MASKING, step, index",
        "RngStream.MASKING, index",
    ),
    Bug(
        "warmup-one-step-early",
        "training",
        "compute_lr starts warm-up at 1 / warmup_steps instead of 0 and ends it a step too early.",
        "training/schedule.py",
        "min(1.0, step / config.warmup_steps)",
        "min(1.0, (step + 1) / config.warmup_steps)",
    ),
    Bug(
        "norms-decay",
        "training",
        "build_groups lets every parameter called weight decay, so the scales of norms too, where only kernels should.",
        "training/optimizer.py",
        "name not in no_decay",
        'name not in no_decay or name.endswith("weight")',
    ),
    Bug(
        "average-before-step",
        "training",
        "fit updates the averaged weights before the optimizer's step: they lag one step behind.",
        "training/loop.py",
        "        state.optimizer.step()\n        state.optimizer.zero_grad(set_to_none=True)\n"
        "        if state.average is not None:\n            state.average.update()\n",
        "        if state.average is not None:\n            state.average.update()\n"
        "        state.optimizer.step()\n        state.optimizer.zero_grad(set_to_none=True)\n",
    ),
    Bug(
        "interval-of-90-percent",
        "evaluation",
        "Intervals that should hold 95 % are 1.645 deviations wide at each side, which is 90 %.",
        "evaluation/intervals.py",
        "DEVIATIONS = 1.959963984540054",
        "DEVIATIONS = 1.6448536269514722",
    ),
    Bug(
        "penalty-chosen-on-test",
        "evaluation",
        "classify_by_logistic_regression chooses the penalty by the test images, not by the held-out ones.",
        "evaluation/probes.py",
        "fit_logistic(part, rest, penalty) == rest.labels",
        "fit_logistic(part, split.test, penalty) == split.test.labels",
    ),
    Bug(
        "patience-one-more",
        "run",
        "Callbacks.evaluate stops after one evaluation without improvement more than patience allows.",
        "run/callbacks.py",
        "progress.num_worse >= patience",
        "progress.num_worse > patience",
    ),
    Bug(
        "accuracy-of-one-rank",
        "run",
        "build_setup gives every process rank 0's part of the images: with several, top-1 is that part's, counted again.",
        "run/run.py",
        "read=partial(read, rank=self.runtime.rank, ",
        "read=partial(read, rank=0, ",
    ),
    Bug(
        "resume-reads-from-start",
        "run",
        "A resumed run reads the batches from step 0 again, not from the step it continues with (Run.train).",
        "run/run.py",
        "self.loader.read(self.state.step, ",
        "self.loader.read(0, ",
    ),
    Bug(
        "hyperrule-area-by-side",
        "recipes",
        "hyperrule compares the area of images with 96 instead of 96 x 96: small images are trained on at 384 pixels.",
        "recipes/finetune.py",
        "task.image_area < SMALL_SIDE**2",
        "task.image_area < SMALL_SIDE",
    ),
    Bug(
        "folder-warmup-in-epochs",
        "recipes",
        "The recipe folder warms up for a tenth of the number of epochs, as steps: one step instead of a tenth of the run.",
        "recipes/finetune.py",
        "FOLDER_WARMUP_FRACTION * epochs * task.num_images / batch_size",
        "FOLDER_WARMUP_FRACTION * epochs",
    ),
    Bug(
        "rollout-backwards",
        "inspection",
        "Rollout.add multiplies the layers in the wrong order: the first layer comes last.",
        "inspection/rollout.py",
        "step @ self.joint",
        "self.joint @ step",
    ),
    Bug(
        "distance-in-patches",
        "inspection",
        "compute_grid_distances counts in patches, where the mean attention distance is in pixels.",
        "inspection/distance.py",
        ".double() * stride",
        ".double()",
    ),
    Bug(
        "vtab-flips-all",
        "studies",
        "build_task_recipe of VTAB flips images of tasks that must not be flipped, e.g. those of orientation.",
        "studies/vtab/protocol.py",
        "recipe.augment.flip and task.task.flip",
        "recipe.augment.flip",
    ),
    Bug(
        "vtab-spread-over-tasks",
        "studies",
        "compute_score gives the deviation between tasks for that between seeds; the mean is right.",
        "studies/vtab/scores.py",
        "[fmean(accuracies) for accuracies in zip(*(result.accuracies for result in results), strict=True)]",
        "[fmean(result.accuracies) for result in results]",
    ),
    Bug(
        "chosen-rate-on-part",
        "studies",
        "After a learning-rate search, train uses the best one without giving the held-out images back (data.held_out).",
        "studies/sweeps.py",
        'optim={"learning_rate": search.best}, data={"held_out": final_held_out})',
        'optim={"learning_rate": search.best})',
    ),
    Bug(
        "demo-images-of-one-class",
        "demo",
        "order_by_turns puts all images of the first class first, instead of one of each class in turn.",
        "demo/steps.py",
        "np.lexsort((labels, turns))",
        "np.lexsort((turns, labels))",
    ),
    Bug(
        "demo-hybrid-too-fine",
        "demo",
        "match_hybrid gives the stem a stage too few: a stride half as large as the ViT's, and four times the tokens.",
        "demo/matched_models.py",
        "1 + round(math.log2(config.patch_size / 4))",
        "round(math.log2(config.patch_size / 4))",
    ),
    Bug(
        "status-always-of-ctrl-c",
        "commands",
        "stop_here exits with status 130 whatever the signal was: after SIGTERM it should be 143.",
        "commands/train.py",
        "128 + (number or signal.SIGINT)",
        "128 + signal.SIGINT",
    ),
)

LISTS: dict[str, tuple[Bug, ...]] = {"first": BUGS, "second": SECOND_BUGS, "earlier": EARLIER_BUGS}
LISTS["all"] = tuple(bug for bugs in LISTS.values() for bug in bugs)

# What --baseline plants: nothing.
NO_BUG = Bug("baseline", "", "nothing is wrong", "__init__.py", "", "")


@dataclass(frozen=True)
class Outcome:
    name: str
    package: str
    verdict: Literal["caught", "SURVIVED", "not run"]
    stage: int | None
    """The stage that failed, or the last one that had tests."""
    by: str
    """The test that failed; for a survivor, the last tests that passed; else why none ran."""
    seconds: float


def main(
    check: bool = False,
    list: Literal["first", "second", "earlier", "all"] = "all",
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = (),
    baseline: bool = False,
    jobs: int = 2,
    stages: int = 3,
    minutes: float = 60.0,
    json: Path | None = None,
) -> None:
    """Plant bugs and run the tests.

    Args:
        check: Only verify that every bug can be planted.
        list: List of bugs to plant.
        only: Names of the bugs to plant (default: all of the list).
        baseline: Run the tests on a copy without a bug instead, which should survive.
        jobs: Number of bugs at a time.
        stages: 1: test file of the module; 2: also the tests of its package; 3: also all others.
        minutes: Time limit of a stage; a bug that takes longer counts as caught.
        json: Write the outcomes to this file.
    """
    bugs = [NO_BUG] if baseline else choose_bugs(LISTS[list], only)
    faults = [] if baseline else [fault for bug in bugs for fault in find_faults(bug)]
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        sys.exit(1)
    if check:
        print(f"{len(bugs)} bugs in {len({bug.package for bug in bugs})} packages can be planted.")
        return
    outcomes = plant_all(bugs, jobs, stages, 60 * minutes)
    print_outcomes(outcomes)
    if json is not None:
        json.write_text(json_format.dumps(summarise(outcomes), indent=2) + "\n")


def choose_bugs(bugs: Sequence[Bug], names: Sequence[str]) -> list[Bug]:
    assert len({bug.name for bug in LISTS["all"]}) == len(LISTS["all"]), "two bugs have the same name"
    known = {bug.name: bug for bug in bugs}
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"--only {' '.join(unknown)}: unknown; the bugs are {', '.join(known)}.")
    return [known[name] for name in names] or [*bugs]


def find_faults(bug: Bug) -> Iterator[str]:
    """Yield the reasons why a bug cannot be planted in the current source."""
    path = ROOT / SOURCE / bug.file
    if not Path(bug.file).is_relative_to(bug.package):
        yield f"{bug.name}: {bug.file} is not in the package {bug.package}"
    if not path.is_file():
        yield f"{bug.name}: {path.relative_to(ROOT)} does not exist"
        return
    text = path.read_text(encoding="utf-8")
    if text.count(bug.old) != 1 or bug.old == bug.new:
        yield f"{bug.name}: the snippet occurs {text.count(bug.old)} times in {bug.file}, expected once: {bug.old!r}"
        return
    try:
        ast.parse(text.replace(bug.old, bug.new))
    except SyntaxError as error:
        yield f"{bug.name}: {bug.file} is not Python any more: {error}"


def plant_all(bugs: Sequence[Bug], jobs: int, stages: int, limit_s: float) -> list[Outcome]:
    """Test bugs, `jobs` at a time; print each outcome, and return all in the order of the bugs. Ctrl-C ends all tests."""
    running: set[subprocess.Popen[str]] = set()
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(plant, bug, stages, limit_s, running) for bug in bugs]
        try:
            for number, future in enumerate(as_completed(futures), start=1):
                outcome = future.result()
                print(f"{number}/{len(bugs)}  {outcome.name}: {describe(outcome)}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                stop(process)
            raise
    return [future.result() for future in futures]


def plant(bug: Bug, stages: int, limit_s: float, running: set[subprocess.Popen[str]]) -> Outcome:
    """Run the stages on a copy of the project with the bug in it, until one fails."""
    start_s = time.monotonic()
    last: tuple[int | None, str] = (None, "there are no tests for it in these stages")
    verdict: Literal["caught", "SURVIVED", "not run"] = "not run"
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = Path(folder) / "project"
        copy_project(copy)
        path = copy / SOURCE / bug.file
        if bug is not NO_BUG:
            path.write_text(path.read_text(encoding="utf-8").replace(bug.old, bug.new), encoding="utf-8")
        environment = build_environment(copy)
        require_copy_is_imported(copy, environment)
        done: list[Path] = []
        for stage, target in list_stages(copy, bug)[:stages]:
            if target is None:
                continue
            ignored = [f"--ignore={each}" for each in done]  # they have passed already
            status, output = run([*PYTEST, *ignored, str(target)], copy, environment, limit_s, running)
            done.append(target)
            if status in (PASSED, EMPTY):
                verdict, last = ("SURVIVED", (stage, str(target))) if status == PASSED else (verdict, last)
                continue
            failure = FAILURE.search(output)
            if status is None:
                verdict, last = "caught", (stage, f"the time limit, in {target}")
            elif failure is not None and status in (FAILED, INTERRUPTED):
                verdict, last = "caught", (stage, failure[1])
            else:
                verdict, last = "not run", (stage, f"pytest ended with status {status}: {output.strip()[-300:]}")
            break
    return Outcome(bug.name, bug.package, verdict, *last, round(time.monotonic() - start_s, 1))


def copy_project(copy: Path) -> None:
    """Copy the tracked files as they are in the working tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)


def build_environment(copy: Path) -> dict[str, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(copy / SOURCE.parent)}
    environment.setdefault("VITRINE_ASSETS", str(ROOT.parent / "shared" / "assets"))
    return environment


def require_copy_is_imported(copy: Path, environment: dict[str, str]) -> None:
    """Raise RuntimeError if Python imports another vitrine, e.g. an installed one: the bug would not be tested."""
    command = [sys.executable, "-c", "import vitrine; print(vitrine.__file__)"]
    imported = subprocess.run(command, cwd=copy, env=environment, check=True, capture_output=True, text=True).stdout.strip()
    if not Path(imported).resolve().is_relative_to(copy.resolve()):
        raise RuntimeError(f"vitrine is imported from {imported}, not from {copy}: uninstall it.")


def list_stages(copy: Path, bug: Bug) -> list[tuple[int, Path | None]]:
    """Return the tests of each stage: test file of the module, tests of the package, all tests; None where there are none."""
    if bug is NO_BUG:
        return [(3, TESTS)]
    module = Path(bug.file)
    mirror, package = TESTS / module.parent / f"test_{module.name}", TESTS / bug.package
    return [
        (1, mirror if (copy / mirror).is_file() else None),
        (2, package if bug.package and (copy / package).is_dir() else None),
        (3, TESTS),
    ]


def run(
    arguments: Sequence[str], copy: Path, environment: dict[str, str], limit_s: float, running: set[subprocess.Popen[str]]
) -> tuple[int | None, str]:
    """Run Python in the copy and return its exit status and output; the status is None after the time limit."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=copy,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # so that `stop` ends the processes of tests too
    )
    running.add(process)
    try:
        output, _ = process.communicate(timeout=limit_s)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        stop(process)
        return None, process.communicate()[0]
    finally:
        running.discard(process)


def stop(process: subprocess.Popen[str]) -> None:
    """Kill a process that `run` started, and its children."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def describe(outcome: Outcome) -> str:
    link = {"caught": "by", "SURVIVED": "after", "not run": "because"}[outcome.verdict]
    stage = "" if outcome.stage is None else f"stage {outcome.stage}, "
    return f"{outcome.verdict} {link} {outcome.by} ({stage}{outcome.seconds:.0f} s)"


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    widths = [max(len(getattr(outcome, field)) for outcome in outcomes) for field in ("package", "name", "verdict")]
    print()
    for outcome in outcomes:
        cells = zip((outcome.package, outcome.name, outcome.verdict), widths, strict=True)
        stage = "-" if outcome.stage is None else str(outcome.stage)
        print("  ".join([*(f"{cell:<{width}}" for cell, width in cells), stage, outcome.by]))
    counts = summarise(outcomes)
    not_run = f", {counts['not_run']} not run" if counts["not_run"] else ""
    print(f"\n{counts['caught']} of {len(outcomes)} caught, {counts['survived']} survived{not_run}")


def summarise(outcomes: Sequence[Outcome]) -> dict[str, object]:
    verdicts = [outcome.verdict for outcome in outcomes]
    return {
        "caught": verdicts.count("caught"),
        "survived": verdicts.count("SURVIVED"),
        "not_run": verdicts.count("not run"),
        "bugs": [asdict(outcome) for outcome in outcomes],
    }


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
