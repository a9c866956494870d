"""Metrics of DeiT-Tiny on real photographs, as reported in docs/results/evaluation.md."""

from pathlib import Path

import pytest

from vitrine.data.open_data import open_train_and_test
from vitrine.evaluation.classification_report import evaluate
from vitrine.evaluation.config import ProbeConfig, ProbeKind
from vitrine.evaluation.features import FeatureSplit
from vitrine.evaluation.few_shot import evaluate_few_shot
from vitrine.evaluation.predictor import Predictor
from vitrine.evaluation.probes import fit_probe

pytestmark = pytest.mark.filterwarnings("ignore::vitrine.core.console.VitrineWarning")  # unspecified settings

ONE_POINT = 0.01

FEW_SHOT: dict[str, dict[int | None, float]] = {
    "pets": {1: 0.6854, 5: 0.8131, 10: 0.8273, None: 0.8423},
    "flowers102": {1: 0.4009, 5: 0.6526, 10: 0.7228},
}
PROBES: dict[str, dict[ProbeKind, float]] = {
    "pets": {"logistic": 0.8401, "neighbours": 0.8378, "means": 0.8716},
    "flowers102": {"logistic": 0.8126, "neighbours": 0.6520, "means": 0.7342},
}


@pytest.mark.parametrize("data", ["pets", pytest.param("flowers102", marks=pytest.mark.full)])
def test_few_shot_and_probes_are_within_a_point(data: str, assets: Path) -> None:
    predictor = Predictor(assets / "deit-tiny" / "model.safetensors", "cpu")
    sources = open_train_and_test(str(assets / data))
    split = FeatureSplit(*(predictor.features(source) for source in sources), len(sources[0].class_names))
    few_shot = {shots: evaluate_few_shot(split, shots).mean for shots in FEW_SHOT[data]}
    assert few_shot == pytest.approx(FEW_SHOT[data], abs=ONE_POINT)
    probes = {kind: fit_probe(kind, split, ProbeConfig()).accuracy for kind in PROBES[data]}
    assert probes == pytest.approx(PROBES[data], abs=ONE_POINT)


@pytest.mark.full
def test_a_thousand_photographs_of_imagenet(assets: Path) -> None:
    report = evaluate(assets / "deit-tiny" / "model.safetensors", assets / "imagenet-val-1000", device="cpu").report
    assert report.num_images == 1000
    assert report.top1.value == pytest.approx(0.708, abs=0.0005)
    assert report.top5.value == pytest.approx(0.899, abs=0.0005)
