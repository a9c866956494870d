"""Probes against scikit-learn's classifiers on the same features, and on data with a known result."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, normalize

from vitrine.core.console import VitrineWarning
from vitrine.evaluation import probes
from vitrine.evaluation.config import ProbeConfig, ProbeKind
from vitrine.evaluation.features import Features, FeatureSplit
from vitrine.evaluation.probes import PROBES, Probe, fit_probe, hold_out_rows

KINDS: tuple[ProbeKind, ...] = ("logistic", "neighbours", "means")


def make_features(values: np.ndarray, labels: np.ndarray | list[int]) -> Features:
    return Features(torch.tensor(values, dtype=torch.float32), torch.tensor(labels), torch.arange(len(values)))


def draw_split(num_train: int, num_test: int, num_classes: int, num_features: int = 6, spread: float = 1.0) -> FeatureSplit:
    """Draw a cluster for each class, `spread` wide: above about 1 they overlap."""
    generator = np.random.default_rng(num_train)
    centres = generator.normal(size=(num_classes, num_features))
    parts = []
    for size in (num_train, num_test):
        labels = np.arange(size) % num_classes
        parts.append(make_features(centres[labels] + spread * generator.normal(size=(size, num_features)), labels))
    return FeatureSplit(*parts, num_classes)


@pytest.fixture(scope="module")
def digits() -> FeatureSplit:
    values, labels = load_digits(return_X_y=True)
    return FeatureSplit(make_features(values[:600], labels[:600]), make_features(values[1000:], labels[1000:]), 10)


def find_hits(split: FeatureSplit, predictions: np.ndarray) -> list[bool]:
    return (predictions == split.test.labels.numpy()).tolist()


def test_every_kind_is_listed() -> None:
    assert tuple(PROBES) == KINDS


def test_accuracy_is_the_fraction_of_hits(digits: FeatureSplit) -> None:
    for kind in KINDS:
        result = fit_probe(kind, digits, ProbeConfig(penalties=(0.01,)))
        assert (result.kind, result.hits.dtype, result.hits.shape) == (kind, np.bool_, (797,))
        assert result.accuracy == pytest.approx(np.count_nonzero(result.hits) / 797)
        assert result.accuracy > 0.8
    assert Probe("means", "", np.array([True, False, False, False])).accuracy == 0.25


@pytest.mark.parametrize(("num_neighbours", "temperature"), [(1, 0.07), (20, 0.07), (5, 1e-4), (50, 1.0), (20, 3.0)])
@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_neighbours_equal_sklearn(num_neighbours: int, temperature: float, spread: float) -> None:
    split = draw_split(200, 300, 4, spread=spread)
    result = fit_probe("neighbours", split, ProbeConfig(num_neighbours=num_neighbours, temperature=temperature))

    def weigh(distances: np.ndarray) -> np.ndarray:
        """Turn cosine distances into vote weights, relative to the nearest, which changes no prediction."""
        return np.exp((distances.min(axis=1, keepdims=True) - distances) / temperature)

    classifier = KNeighborsClassifier(num_neighbours, metric="cosine", weights=weigh)
    classifier.fit(split.train.values.double(), split.train.labels)
    assert result.hits.tolist() == find_hits(split, classifier.predict(split.test.values.double()))
    assert 0.2 < result.accuracy < 1
    assert result.setting == f"{num_neighbours} neighbours, temperature {temperature:g}"


def test_neighbours_are_the_same_in_chunks(digits: FeatureSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fit_probe("neighbours", digits, ProbeConfig())
    monkeypatch.setattr(probes, "CHUNK_SIZE", 50)  # 797 test images: the last chunk is smaller
    assert np.array_equal(fit_probe("neighbours", digits, ProbeConfig()).hits, whole.hits)


def test_more_neighbours_than_images() -> None:
    split = draw_split(7, 50, 3)
    all_of_them = fit_probe("neighbours", split, ProbeConfig(num_neighbours=7))
    more = fit_probe("neighbours", split, ProbeConfig(num_neighbours=1000))
    assert np.array_equal(more.hits, all_of_them.hits)
    assert more.setting == "7 neighbours, temperature 0.07"


def test_low_temperature_is_the_nearest_neighbour() -> None:
    """exp(1 / temperature) and its inverse would overflow."""
    split = draw_split(100, 200, 5, spread=2.0)
    nearest = fit_probe("neighbours", split, ProbeConfig(num_neighbours=1))
    for temperature in (1e-5, 1e-12, 1e-30):
        result = fit_probe("neighbours", split, ProbeConfig(num_neighbours=30, temperature=temperature))
        assert np.array_equal(result.hits, nearest.hits)


def test_class_means_equal_sklearn_for_means_of_equal_norm() -> None:
    """Classes that are one cloud turned by quarters: their means are as long as one another, and then nearest by distance is
    nearest by angle."""
    generator = np.random.default_rng(0)
    cloud = np.array([4.0, 1.0]) + generator.normal(size=(30, 2))
    turns = [np.linalg.matrix_power(np.array([[0.0, -1.0], [1.0, 0.0]]), quarter) for quarter in range(4)]
    train = make_features(np.concatenate([cloud @ turn.T for turn in turns]), np.repeat(np.arange(4), 30))
    queries = generator.normal(size=(500, 2)) * 10
    reference = NearestCentroid().fit(normalize(train.values.double()), train.labels).predict(normalize(queries))
    labels = generator.integers(0, 4, 500)
    split = FeatureSplit(train, make_features(queries, labels), 4)
    assert fit_probe("means", split, ProbeConfig()).hits.tolist() == (reference == labels).tolist()


def test_class_means_are_compared_by_angle() -> None:
    split = draw_split(60, 400, 4, spread=1.5)
    directions = normalize(split.train.values.double().numpy())
    means = [directions[split.train.labels.numpy() == label].mean(axis=0) for label in range(4)]
    predictions = cosine_similarity(split.test.values.double().numpy(), np.stack(means)).argmax(axis=1)
    result = fit_probe("means", split, ProbeConfig())
    assert result.hits.tolist() == find_hits(split, predictions)
    assert result.setting == "cosine"
    assert 0.25 < result.accuracy < 1


@pytest.mark.parametrize("kind", ["neighbours", "means"])
def test_norm_of_features_does_not_matter(kind: ProbeKind) -> None:
    split = draw_split(40, 200, 3)
    lengths = torch.logspace(-3, 3, 40)[:, None]
    scaled = replace(split, train=replace(split.train, values=split.train.values * lengths))
    assert np.array_equal(fit_probe(kind, scaled, ProbeConfig()).hits, fit_probe(kind, split, ProbeConfig()).hits)


@pytest.mark.parametrize("penalty", [1e-4, 1e-2, 1.0, 100.0])
def test_logistic_regression_equals_sklearn(penalty: float) -> None:
    split = draw_split(90, 600, 3, spread=1.5)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=1 / (penalty * 90), max_iter=1000))
    pipeline.fit(split.train.values.double().numpy(), split.train.labels.numpy())
    result = fit_probe("logistic", split, ProbeConfig(penalties=(penalty,)))
    assert result.hits.tolist() == find_hits(split, pipeline.predict(split.test.values.double().numpy()))
    assert 0.4 < result.accuracy < 1


def test_best_penalty_on_held_out_images_is_refitted() -> None:
    """One feature tells the classes apart, 19 share a noise that much penalty takes for a reason, and 40 are noise of their
    own, which little penalty fits."""
    generator = np.random.default_rng(25)
    labels = np.arange(160) % 2
    values = generator.normal(size=(160, 60))
    values[:, 0] += 3 * labels
    values[:, 1:20] += 2 * generator.normal(size=(160, 1))
    split = FeatureSplit(make_features(values[:100], labels[:100]), make_features(values[100:], labels[100:]), 2)
    config = ProbeConfig(penalties=(1e-4, 0.03, 1e4))
    fitted, held_out = (rows.numpy() for rows in hold_out_rows(split, config))
    scores = {}
    for penalty in config.penalties:
        pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=1 / (penalty * len(fitted)), max_iter=1000))
        scores[penalty] = pipeline.fit(values[fitted], labels[fitted]).score(values[held_out], labels[held_out])
    assert max(scores[1e-4], scores[1e4]) < scores[0.03]
    result = fit_probe("logistic", split, config)
    assert result.setting == "penalty 0.03, of 3 on 20 held-out images"
    assert np.array_equal(result.hits, fit_probe("logistic", split, ProbeConfig(penalties=(0.03,))).hits)


def test_strongest_of_equal_penalties_is_chosen() -> None:
    split = draw_split(60, 20, 3, spread=0.01)  # any will do
    for penalties in ((1e-3, 1e-1, 1e-2), (1e-1, 1e-2, 1e-3)):
        assert fit_probe("logistic", split, ProbeConfig(penalties=penalties)).setting.startswith("penalty 0.1, of 3 ")


def test_fraction_of_every_class_is_held_out() -> None:
    labels = [0] * 10 + [1] * 25 + [2] * 2 + [3]  # and none of class 4
    train = make_features(np.arange(38 * 2).reshape(38, 2), labels)
    split = FeatureSplit(train, train, 5)
    fitted, held_out = hold_out_rows(split, ProbeConfig(choice_share=0.2, seed=3))
    assert sorted([*fitted.tolist(), *held_out.tolist()]) == list(range(38))
    assert train.labels[held_out].bincount(minlength=5).tolist() == [2, 5, 1, 0, 0]
    again, other = (hold_out_rows(split, ProbeConfig(seed=seed))[1].tolist() for seed in (3, 4))
    assert held_out.tolist() == again != other


@pytest.mark.parametrize("fraction", [0.001, 0.5, 0.999])
def test_one_of_two_images_is_held_out(fraction: float) -> None:
    train = make_features(np.eye(4), [0, 0, 1, 1])
    fitted, held_out = hold_out_rows(FeatureSplit(train, train, 2), ProbeConfig(choice_share=fraction))
    assert [sorted(train.labels[rows].tolist()) for rows in (fitted, held_out)] == [[0, 1], [0, 1]]


def test_the_order_of_rows_changes_nothing(digits: FeatureSplit) -> None:
    train = digits.train
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    shuffled = replace(digits, train=Features(train.values[order], train.labels[order], train.index[order]))
    for kind in KINDS:
        config = ProbeConfig(penalties=(0.01, 0.1))
        first, second = (fit_probe(kind, split, config) for split in (digits, shuffled))
        assert first.setting == second.setting
        assert np.array_equal(first.hits, second.hits)


def test_one_image_per_class_is_too_few_for_logistic_regression() -> None:
    train = make_features(np.eye(3), [2, 0, 1])
    split = FeatureSplit(train, make_features(np.eye(3) + 0.1, [2, 0, 0]), 3)
    for kind in ("neighbours", "means"):
        assert fit_probe(kind, split, ProbeConfig()).hits.tolist() == [True, True, False]
    with pytest.raises(ValueError, match="only one training image"):
        fit_probe("logistic", split, ProbeConfig())


def test_one_training_class_is_too_few_for_logistic_regression() -> None:
    train = make_features(np.random.default_rng(0).normal(size=(9, 3)), [1] * 9)
    split = FeatureSplit(train, make_features(np.eye(3), [0, 1, 2]), 3)
    for kind in ("neighbours", "means"):
        assert fit_probe(kind, split, ProbeConfig()).hits.tolist() == [False, True, False]
    with pytest.raises(ValueError, match="one class"):
        fit_probe("logistic", split, ProbeConfig())


def test_class_without_training_images_is_never_predicted() -> None:
    """Also for features opposite to all classes, and for zeros."""
    train = make_features(np.array([[-1.0, 0.1], [-1.0, -0.1], [-1.0, 0.2], [-1.0, -0.2]]), [1, 3, 1, 3])
    test = make_features(np.array([[1.0, 0.0], [5.0, 0.01], [0.0, 0.0]]), [0, 2, 4])
    for kind in KINDS:
        assert not fit_probe(kind, FeatureSplit(train, test, 5), ProbeConfig()).hits.any()


def test_constant_features_change_nothing() -> None:
    split = draw_split(30, 60, 3, spread=0.3)
    train, test = (
        replace(part, values=torch.cat([part.values, torch.zeros(len(part), 2)], dim=1)) for part in (split.train, split.test)
    )
    for kind in KINDS:
        padded = fit_probe(kind, FeatureSplit(train, test, 3), ProbeConfig())
        assert np.array_equal(padded.hits, fit_probe(kind, split, ProbeConfig()).hits)


def test_unconverged_fit_gives_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    split = draw_split(60, 10, 3)
    with pytest.warns(ConvergenceWarning):
        LogisticRegression(C=100, max_iter=2).fit(split.train.values.numpy(), split.train.labels.numpy())
    monkeypatch.setattr(probes, "MAX_ITERATIONS", 2)
    with pytest.warns(VitrineWarning) as caught:
        fit_probe("logistic", split, ProbeConfig(penalties=(1e-4,)))
    assert all("0.0001" in str(warning.message) and "2 iterations" in str(warning.message) for warning in caught)


@pytest.mark.parametrize(
    ("kinds", "settings"),
    [
        (("neighbours", "means"), {"penalties": (0.5,)}),
        (("neighbours",), {"choice_share": 0.5}),
        (("logistic", "means"), {"num_neighbours": 3}),
        (("means",), {"temperature": 0.5}),
    ],
)
def test_settings_of_a_probe_that_is_not_fitted_are_refused(kinds: tuple[ProbeKind, ...], settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        probes.probe("no-model", "no-data", kinds, ProbeConfig(**settings))  # type: ignore[arg-type]
