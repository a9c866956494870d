"""`vitrine probe`: accuracy of three simple classifiers on frozen features."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitrine.commands.options import CheckpointOptions, FeatureOptions, format_estimate
from vitrine.core.console import print_table
from vitrine.core.files import check_output_files, write_json
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
    """Fit logistic regression, nearest neighbours and nearest class means to frozen features, and test them.

    Args:
        model: Checkpoint folder or file in any known format, or hf://org/name[@revision].
        data: Labelled images with the splits train and test (or val); a part of undivided data is held out for testing.
        kinds: Probes to fit.
        json: Write all results to this JSON file.
    """
    check_output_files(json)
    if len(set(kinds)) != len(kinds) or not kinds:
        raise ValueError(f"--kinds {' '.join(kinds)} must name one or more probes, each once.")
    loaded = checkpoint.load(model)

    from vitrine.evaluation.probes import probe as fit_probes

    result = fit_probes(loaded, data, kinds, config, **features.arguments)
    title = f"{result.num_train_images:,} images, tested on {result.num_test_images:,}"
    rows = [(each.kind, *format_estimate(each.top1, "%"), each.setting) for each in result.probes]
    print_table((title, "top-1", "95 % interval", "setting"), rows)
    if json is not None:
        results = [{"kind": each.kind, "setting": each.setting, "top1": asdict(each.top1)} for each in result.probes]
        write_json(json, {"model": model, "data": data, "num_test_images": result.num_test_images, "results": results})
