"""Features against the model's own logits, from batches of several kinds."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.filling import build_filled
from vitrine.data.batch import Batch
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.evaluate.features import Features, Split, build_featuriser, extract_features

PREPROCESSING = build_inception_preprocessing((32, 32))
VIT: dict[str, Any] = {"width": 24, "depth": 2, "num_heads": 2, "mlp_dim": 40, "hidden_head": True, "dropout_rate": 0.5}
LABELS = torch.tensor([3, 1, 4, 1, 5])


def draw_batches(labels: Tensor = LABELS) -> list[Batch]:
    images = torch.randint(0, 256, (len(labels), 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    places = torch.arange(len(labels)).split(2)
    return [Batch(images[some], labels[some], some + 100, step) for step, some in enumerate(places)]


def flatten(images: Tensor) -> Tensor:
    return images.half().flatten(1)


@pytest.mark.parametrize(("name", "changes"), [("ViT-Ti/16", VIT), ("R26x1", {})])
def test_the_head_makes_logits_of_them(name: str, changes: dict[str, Any]) -> None:
    model = build_filled(name, num_classes=7, image_size=32, **changes)
    batches = draw_batches()
    found = extract_features(build_featuriser(model, PREPROCESSING), batches)
    with torch.no_grad():
        logits = model(PREPROCESSING.normalise(torch.cat([batch.image for batch in batches])))
        torch.testing.assert_close(model.head(found.values), logits)
    assert logits.std() > 0.01


def test_the_mode_is_the_caller_s() -> None:
    model = build_filled("ViT-Ti/16", num_classes=7, image_size=32, **VIT)
    featurise = build_featuriser(model, PREPROCESSING)
    first, second = (extract_features(featurise, draw_batches()).values for _ in range(2))
    assert torch.equal(first, second)
    model.train()
    first, second = (extract_features(featurise, draw_batches()).values for _ in range(2))
    assert model.training
    assert not torch.equal(first, second)  # dropout


@pytest.mark.parametrize("labels", [LABELS, torch.eye(5)])
def test_rows_labels_and_numbers_in_the_order_of_the_batches(labels: Tensor) -> None:
    batches = draw_batches(labels)
    found = extract_features(flatten, iter(batches), torch.device("cpu"))
    assert len(found) == 5
    assert found.values.dtype == torch.float32
    assert torch.equal(found.values, torch.cat([batch.image for batch in batches]).flatten(1).float())
    assert torch.equal(found.labels, labels)
    assert found.index.tolist() == [100, 101, 102, 103, 104]


def test_a_layer_can_be_trained_on_them() -> None:
    found = extract_features(lambda images: images.float().mean(dim=(2, 3)), draw_batches())
    layer = nn.Linear(3, 2)
    layer(found.values).sum().backward()  # torch refuses this for tensors of inference mode
    torch.testing.assert_close(layer.weight.grad, found.values.sum(dim=0).expand(2, 3))


def test_mistakes_are_said_in_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"There is no image to compute features of"):
        extract_features(flatten, [])
    with pytest.raises(ValueError, match=r"featurise gave shape \(2, 3, 32, 32\) for 2 images, and \(2, D\) was needed"):
        extract_features(lambda images: images.float(), draw_batches())
    with pytest.raises(ValueError, match=r"featurise gave shape \(1, 3072\) for 2 images"):
        extract_features(lambda images: flatten(images[:1]), draw_batches())
    with pytest.raises(ValueError, match=r"have shapes \(5, 2\), \(4,\), \(5,\), and \(N, D\)"):
        Features(torch.zeros(5, 2), torch.zeros(4, dtype=torch.int64), torch.arange(5))
    with pytest.raises(ValueError, match=r"have shapes \(5, 2\), \(5,\), \(\)"):
        Features(torch.zeros(5, 2), torch.zeros(5, dtype=torch.int64), torch.tensor(5))
    values = torch.zeros(5, 2)
    values[2, 0], values[4, 1] = float("nan"), float("inf")
    with pytest.raises(ValueError, match=r"features of 2 of 5 images \(the first has index 7\) are infinite or not a number"):
        Features(values, LABELS, torch.arange(5, 10))


def make_features(labels: list[int], num_features: int = 3) -> Features:
    return Features(torch.zeros(len(labels), num_features), torch.tensor(labels, dtype=torch.int64), torch.arange(len(labels)))


def test_a_split_may_lack_classes_and_have_one_image_on_either_side() -> None:
    split = Split(make_features([4]), make_features([0]), 5)
    assert (len(split.train), len(split.test), split.num_classes) == (1, 1, 5)


def test_a_split_has_one_class_for_each_image_on_both_sides() -> None:
    train, test = make_features([0, 1, 2, 3]), make_features([3, 0])
    several = Features(test.values, torch.eye(4)[test.labels], test.index)
    Split(train, test, 4)
    with pytest.raises(ValueError, match=r"labels to train on are torch.float32 of shape \(2, 4\), and one class for each"):
        Split(several, test, 4)
    with pytest.raises(ValueError, match=r"labels to test on are torch.float32"):
        Split(train, several, 4)
    with pytest.raises(ValueError, match=r"labels to train on go from 0 to 3, and 0 to 2 was needed: check num_classes=3"):
        Split(train, test, 3)
    with pytest.raises(ValueError, match=r"labels to test on go from -1 to 0"):
        Split(train, make_features([0, -1]), 4)
    with pytest.raises(ValueError, match=r"labels to train on are of no images"):
        Split(make_features([]), test, 4)
    with pytest.raises(ValueError, match=r"labels to test on are of no images"):
        Split(train, make_features([]), 4)
    with pytest.raises(ValueError, match=r"num_classes=1 must be at least 2"):
        Split(make_features([0]), make_features([0]), 1)
    with pytest.raises(ValueError, match=r"train on have 3 features, those to test on 2, and as many were needed"):
        Split(train, make_features([0], num_features=2), 4)
