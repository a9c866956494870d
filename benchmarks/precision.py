"""Effect of `--precision` on a model's predictions: `python benchmarks/precision.py MODEL DATA`.

Predicts all images of DATA in float32, bfloat16 and float16 on one device, and compares with float32: top-1 accuracy, images
with the same first class, the largest difference of its probability, and the relative error of features. `--json FILE` saves
the results. DeiT-Tiny on a thousand images takes two minutes on two cores.
"""

from pathlib import Path
from typing import Any, get_args

import torch
import tyro

from vitrine.core.console import print_table
from vitrine.core.files import write_json
from vitrine.core.precision import Precision
from vitrine.data.open_data import find_data
from vitrine.evaluation.class_mapping import map_classes
from vitrine.evaluation.config import InferenceConfig
from vitrine.evaluation.predictor import Predictor
from vitrine.formats.load import load_checkpoint


def main(
    model: str, data: str, /, split: str | None = None, device: str = "cpu", batch_size: int = 64, json: Path | None = None
) -> None:
    """Predict in every precision; print and save the differences to float32."""
    checkpoint, source = load_checkpoint(model), find_data(data).open(split)
    found = {}
    for precision in get_args(Precision)[1:]:
        predictor = Predictor(checkpoint, device, InferenceConfig(batch_size=batch_size, precision=precision))
        topk = predictor.predict_source(map_classes(source, predictor.engine.class_names, predictor.engine.num_classes))
        found[precision] = (topk, predictor.features(source).values)
    results = {precision: compare(*each, *found["float32"]) for precision, each in found.items()}
    columns = ("precision", "top-1", "same first class", "largest difference of its probability", "relative error of features")
    rows = [
        (name, f"{each['top1']:.2%}", f"{each['same']:.2%}", f"{each['difference']:.4f}", f"{each['error']:.1e}")
        for name, each in results.items()
    ]
    print_table(columns, rows)
    if json is not None:
        write_json(json, {"torch": torch.__version__, "device": device, "num_images": len(source), "results": results})


def compare(topk: Any, features: torch.Tensor, expected: Any, expected_features: torch.Tensor) -> dict[str, float]:
    """Return accuracy in one precision and its differences to float32."""
    is_same = topk.classes[:, 0] == expected.classes[:, 0]
    difference = (topk.probabilities[:, 0] - expected.probabilities[:, 0]).abs()[is_same].max()
    error = (features - expected_features).norm(dim=1) / expected_features.norm(dim=1)
    return {
        "top1": topk.hits[:, 0].double().mean().item(),
        "same": is_same.double().mean().item(),
        "difference": difference.item(),
        "error": error.mean().item(),
    }


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
