"""The figure of `self-supervision`: accuracy by number of labelled images for each start."""

from collections.abc import Sequence

from vitrine.core.figures import INK_2, PRETRAINED, SCRATCH
from vitrine.studies.answers import Readings
from vitrine.studies.runner import RunOutcome
from vitrine.studies.self_supervision_grid import LABELS, MASKED, STARTS
from vitrine.studies.self_supervision_grid import SCRATCH as FROM_SCRATCH
from vitrine.studies.size_figures import (
    Curve,
    choose_floor,
    describe_means,
    draw_accuracies,
    format_gap,
    format_mean,
    list_accuracies,
    list_amounts,
)
from vitrine.studies.study import StudyFigure, StudyPlan

# One family of models: the colours of fresh and pre-trained weights, which suit marks alone, so labels have the ink of text.
CURVES = (
    Curve(name=FROM_SCRATCH, colour=SCRATCH, line_style=":", is_hollow=True, label_colour=INK_2),
    Curve(name=MASKED, colour=PRETRAINED, label_colour=INK_2),
    Curve(name=LABELS, colour=PRETRAINED, marker="D", line_style=(0, (5, 2)), label_colour=INK_2),
)


def describe_starts(plan: StudyPlan, outcomes: Sequence[RunOutcome], readings: Readings) -> StudyFigure:
    """Return the figure of all starts, with means and differences as a table."""
    amounts = list_amounts([each for each in outcomes if each.run.columns["kind"] == "fine-tuning"])
    guessing, floor = 100 / plan.num_classes, choose_floor(readings)
    line = "The thin dotted line is guessing." if guessing >= floor else f"The axis starts at {floor} %."
    return StudyFigure(
        draw=lambda figure: draw_accuracies(figure, CURVES, readings, guessing, amounts, "labelled images", floor),
        alt=f"Accuracy on test images. {describe_means(readings, STARTS)}, at {', '.join(amounts.values())} labelled images.",
        look="Look at how far the line of masked patches lies above that from scratch, and below that of labels.",
        caption=(
            "Each dot is one fine-tuned model on test images; lines join the means over seeds. Hollow: fresh weights; filled: "
            f"pre-trained, by masked patches (solid) or by labels (dashed). {line}"
        ),
        columns=("labelled images", *(f"{name}, %" for name in STARTS), "masked minus scratch", "labels minus masked"),
        rows=tuple(format_size(readings, size, amount) for size, amount in amounts.items()),
    )


def format_size(readings: Readings, num_images: int, amount: str) -> tuple[str, ...]:
    """Return the means of all starts on a number of images, with their spread over seeds, and both differences."""
    means = [format_mean(list_accuracies(readings, name, num_images)) for name in STARTS]
    gaps = [format_gap(readings, compared, num_images) for compared in ((MASKED, FROM_SCRATCH), (LABELS, MASKED))]
    return amount, *means, *gaps
