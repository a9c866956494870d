"""`vitrine probe`: what three simple classifiers make of frozen features, from all training images."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitrine.commands.options import CheckpointOptions, FeatureOptions, format_estimate
from vitrine.core.console import print_table
from vitrine.core.files import check_output_file, write_json
from vitrine.evaluation.config import ProbeConfig, ProbeKind


def probe(
    model: Annotated[Positional[str], arg(metavar="MODEL")],
    data: Annotated[Positional[str], arg(metavar="DATA")],
    kinds: tuple[ProbeKind, ...] = ("logistic", "neighbours", "means"),
    json: Path | None = None,
    *,
    config: Annotated[ProbeConfig, arg(name="")],
    features: Annotated[FeatureOptions, arg(name="")],
    checkpoint: Annotated[CheckpointOptions, arg(name="")],
) -> None:
    """Logistic regression, nearest neighbours and nearest class means on frozen features.

    Args:
        model: A folder or file in any known format, or hf://org/name[@revision].
        data: Images with labels, divided into train and test, else val; of what is not divided, a part is held out.
        kinds: Which of the three.
        json: Write all figures to this file.
    """
    if json is not None:
        check_output_file(json)
    if len(set(kinds)) != len(kinds) or not kinds:
        raise ValueError(f"--kinds {' '.join(kinds)} must name one or more of them, each once.")
    split = features.compute(checkpoint.load(model), data, config.seed)

    from vitrine.evaluation.intervals import wilson_interval
    from vitrine.evaluation.probes import fit_probe

    results, rows = [], []
    for kind in kinds:
        found = fit_probe(kind, split, config)
        accuracy = wilson_interval(found.accuracy, len(split.test))
        results.append({"kind": kind, "setting": found.setting, "top1": asdict(accuracy)})
        rows.append((kind, *format_estimate(accuracy, "%"), found.setting))
    print_table((f"{len(split.train):,} images, tested on {len(split.test):,}", "top-1", "95 % interval", "setting"), rows)
    if json is not None:
        write_json(json, {"model": model, "data": data, "num_test_images": len(split.test), "results": results})
