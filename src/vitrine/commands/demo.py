"""`vitrine demo`: the paper's story on built-in data or your own, with a report."""

from pathlib import Path

from vitrine.commands.train import stop_here
from vitrine.core.console import print_lines, print_table
from vitrine.core.files import check_output_files, write_json
from vitrine.demo.config import DIGITS, DemoConfig


def demo(
    out: Path = Path("demo"),
    data: str = DIGITS,
    model: str | None = None,
    quick: bool = False,
    jobs: int | None = None,
    seed: int = 0,
    device: str | None = None,
    json: Path | None = None,
) -> None:
    """Pre-train a small ViT, ResNet and hybrid, transfer them, compare with training from scratch: OUT/report.html.

    Takes a few minutes on two CPU cores with the built-in data. The same command again resumes.

    Args:
        out: Folder of the report, with a folder for each run.
        data: Your images, e.g. in class folders; at most a few hundred of them are trained on.
        model: Your checkpoint of a ViT, in any known format, to transfer instead of pre-training models.
        quick: Train for fewer steps.
        jobs: Number of runs at a time, each with one thread (default: one for each CPU).
        seed: Random seed.
        device: Device, e.g. cuda (default: GPU if available).
        json: Write the results to this file.
    """
    config = DemoConfig(out=out, data=data, model=model, quick=quick, jobs=jobs, seed=seed, device=device)
    check_output_files(json)

    from vitrine.demo.report import COLUMNS, format_rows
    from vitrine.demo.steps import run_demo

    try:
        result = run_demo(config)
    except KeyboardInterrupt:  # between runs, which save themselves
        stop_here(None)
        return
    if result.interrupted_by is not None:
        stop_here(result.interrupted_by)
    if json is not None:
        write_json(json, result.to_json())
    print_table(COLUMNS, format_rows(result.steps))
    print_lines(f"Accuracies are on {result.num_test_images:,} images. The report with all commands is {result.report}.")
