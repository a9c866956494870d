"""Tests of evaluation/features.py.

Features against the model's own logits, from batches of several kinds.
Features are found again when model and images are the same, computed when either is not, and never lost or mixed up.
"""

import os
import resource
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.data.test_scan import replace_content
from tests.filling import build_filled
from tests.formats import cases
from tests.formats.cases import make_checkpoint
from vitrine.core.console import VitrineWarning
from vitrine.data.batch import Batch
from vitrine.data.config import BadImages
from vitrine.data.image import BadImage
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.data.sources.image_files import FileSource
from vitrine.data.subsets import hold_out
from vitrine.data.wrappers import RelabelledSource
from vitrine.evaluation import features
from vitrine.evaluation.config import InferenceConfig
from vitrine.evaluation.features import (
    FeatureCache,
    Features,
    FeatureSplit,
    build_featuriser,
    compute_model_key,
    extract_features,
    open_feature_cache,
)
from vitrine.evaluation.predictor import featurise_images
from vitrine.formats.checkpoint import Checkpoint

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
    split = FeatureSplit(make_features([4]), make_features([0]), 5)
    assert (len(split.train), len(split.test), split.num_classes) == (1, 1, 5)


def test_a_split_has_one_class_for_each_image_on_both_sides() -> None:
    train, test = make_features([0, 1, 2, 3]), make_features([3, 0])
    several = Features(test.values, torch.eye(4)[test.labels], test.index)
    FeatureSplit(train, test, 4)
    with pytest.raises(ValueError, match=r"labels to train on are torch.float32 of shape \(2, 4\), and one class for each"):
        FeatureSplit(several, test, 4)
    with pytest.raises(ValueError, match=r"labels to test on are torch.float32"):
        FeatureSplit(train, several, 4)
    with pytest.raises(ValueError, match=r"labels to train on go from 0 to 3, and 0 to 2 was needed: check num_classes=3"):
        FeatureSplit(train, test, 3)
    with pytest.raises(ValueError, match=r"labels to test on go from -1 to 0"):
        FeatureSplit(train, make_features([0, -1]), 4)
    with pytest.raises(ValueError, match=r"labels to train on are of no images"):
        FeatureSplit(make_features([]), test, 4)
    with pytest.raises(ValueError, match=r"labels to test on are of no images"):
        FeatureSplit(train, make_features([]), 4)
    with pytest.raises(ValueError, match=r"num_classes=1 must be at least 2"):
        FeatureSplit(make_features([0]), make_features([0]), 1)
    with pytest.raises(ValueError, match=r"train on have 3 features, those to test on 2, and as many were needed"):
        FeatureSplit(train, make_features([0], num_features=2), 4)


NAMES = ("0.bmp", "1.bmp", "2.bmp", "3.bmp")
LABELS_FEATURE_CACHE = Labels.one_each([0, 1, 1, 0])
CLASSES = ("a", "b")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FeatureCache:
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "cache"))
    return open_feature_cache()


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return make_checkpoint(cases.VIT)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for seed, name in enumerate(NAMES):
        (tmp_path / "images" / name).write_bytes(draw(tmp_path / "drawn.bmp", seed))
    return tmp_path / "images"


def draw(path: Path, seed: int) -> bytes:
    """Without compression: all have as many bytes."""
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(path)
    return path.read_bytes()


def open_files(folder: Path, names: tuple[str, ...] = NAMES, labels: Labels = LABELS_FEATURE_CACHE) -> FileSource:
    return FileSource(folder, names, labels, CLASSES)


def make_array(seed: int = 0) -> ArraySource:
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 24, 24, 3), dtype=np.uint8)
    return ArraySource(pixels, LABELS_FEATURE_CACHE, CLASSES, "made")


def compute(checkpoint: Checkpoint, source: Source, bad_images: BadImages = "error") -> Features:
    return featurise_images(checkpoint, source, InferenceConfig(num_workers=0, bad_images=bad_images))


def ask(cache: FeatureCache, checkpoint: Checkpoint, source: Source, bad_images: BadImages = "error") -> tuple[Features, bool]:
    """The features, and whether they had to be computed."""
    computed: list[Features] = []

    def watch() -> Features:
        computed.append(compute(checkpoint, source, bad_images))
        return computed[-1]

    return cache.find(checkpoint, source, bad_images, watch), bool(computed)


def require_equal(found: Features, expected: Features) -> None:
    for name, tensor in vars(expected).items():
        torch.testing.assert_close(getattr(found, name), tensor, rtol=0, atol=0)


def require_computed(cache: FeatureCache, checkpoint: Checkpoint, source: Source) -> None:
    """Once, rightly, and found from then on."""
    expected = compute(checkpoint, source)
    for is_first in (True, False):
        found, was_computed = ask(cache, checkpoint, source)
        assert was_computed == is_first
        require_equal(found, expected)


def require_found(cache: FeatureCache, checkpoint: Checkpoint, source: Source) -> None:
    found, was_computed = ask(cache, checkpoint, source)
    assert not was_computed
    require_equal(found, compute(checkpoint, source))


def find_entries(cache: FeatureCache) -> list[Path]:
    return sorted(cache.folder.glob("*.safetensors"))


def test_files_and_pixels_are_computed_once(cache: FeatureCache, checkpoint: Checkpoint, folder: Path) -> None:
    for source in (open_files(folder), make_array()):
        require_computed(cache, checkpoint, source)
    assert len(find_entries(cache)) == 2
    assert not [path for path in cache.folder.iterdir() if path.suffix not in (".safetensors", ".images")]


def test_to_find_them_no_image_is_read(cache: FeatureCache, checkpoint: Checkpoint, folder: Path) -> None:
    class Unread(FileSource):
        def fetch(self, index: int) -> bytes:
            raise AssertionError("it was read")

    require_computed(cache, checkpoint, open_files(folder))
    _, was_computed = ask(cache, checkpoint, Unread(folder, NAMES, LABELS_FEATURE_CACHE, CLASSES))
    assert not was_computed


def test_a_changed_image_is_noticed_though_size_and_time_are_kept(
    cache: FeatureCache, checkpoint: Checkpoint, folder: Path
) -> None:
    require_computed(cache, checkpoint, open_files(folder))
    replace_content(folder / "2.bmp", draw(folder.parent / "other.bmp", 99))
    require_computed(cache, checkpoint, open_files(folder))


def test_pixels_in_memory_that_changed_are_noticed(cache: FeatureCache, checkpoint: Checkpoint) -> None:
    source = make_array()
    require_computed(cache, checkpoint, source)
    source.pixels[3, 23, 23, 2] ^= 255
    require_computed(cache, checkpoint, source)


def test_the_image_as_it_was_before_is_found_again(cache: FeatureCache, checkpoint: Checkpoint, folder: Path) -> None:
    require_computed(cache, checkpoint, open_files(folder))
    content = (folder / "2.bmp").read_bytes()
    (folder / "2.bmp").write_bytes(draw(folder.parent / "other.bmp", 99))
    require_computed(cache, checkpoint, open_files(folder))
    (folder / "2.bmp").write_bytes(content)
    require_found(cache, checkpoint, open_files(folder))


def test_copied_and_renamed_images_are_found_again(
    cache: FeatureCache, checkpoint: Checkpoint, folder: Path, tmp_path: Path
) -> None:
    require_computed(cache, checkpoint, open_files(folder))
    shutil.copytree(folder, tmp_path / "copy")
    require_found(cache, checkpoint, open_files(tmp_path / "copy"))
    renamed = tuple(f"größe {name}" for name in NAMES)
    for name, new in zip(NAMES, renamed, strict=True):
        (tmp_path / "copy" / name).rename(tmp_path / "copy" / new)
    require_found(cache, checkpoint, open_files(tmp_path / "copy", renamed))
    assert len(find_entries(cache)) == 1


def test_another_order_is_another_set(cache: FeatureCache, checkpoint: Checkpoint, folder: Path) -> None:
    require_computed(cache, checkpoint, open_files(folder))
    require_computed(cache, checkpoint, open_files(folder, NAMES[::-1]))
    require_computed(cache, checkpoint, open_files(folder, NAMES[:3], Labels.one_each([0, 1, 1])))


def test_two_names_that_change_places_are_noticed(cache: FeatureCache, checkpoint: Checkpoint, folder: Path) -> None:
    require_computed(cache, checkpoint, open_files(folder))
    for old, new in (("0.bmp", "x"), ("1.bmp", "0.bmp"), ("x", "1.bmp")):
        (folder / old).rename(folder / new)
    require_computed(cache, checkpoint, open_files(folder))


def test_parts_of_the_same_files_are_kept_apart(cache: FeatureCache, checkpoint: Checkpoint, folder: Path) -> None:
    for seed in (0, 1):
        for part in hold_out(open_files(folder), 0.5, seed):
            found, _ = ask(cache, checkpoint, part)
            require_equal(found, compute(checkpoint, part))


def test_a_changed_weight_is_noticed(cache: FeatureCache, checkpoint: Checkpoint, folder: Path) -> None:
    require_computed(cache, checkpoint, open_files(folder))
    other = make_checkpoint(cases.VIT)
    with torch.no_grad():
        next(other.model.parameters()).view(-1)[0] += 1.0
    require_computed(cache, other, open_files(folder))
    require_found(cache, make_checkpoint(cases.VIT), open_files(folder))


def test_the_same_weights_computed_otherwise_are_noticed(cache: FeatureCache, checkpoint: Checkpoint, folder: Path) -> None:
    other = replace(checkpoint, model=build_filled(replace(cases.VIT, gelu="erf")))
    assert all(map(torch.equal, other.model.state_dict().values(), checkpoint.model.state_dict().values()))
    require_computed(cache, checkpoint, open_files(folder))
    require_computed(cache, other, open_files(folder))


@pytest.mark.parametrize(
    "change", [{"interpolation": "nearest"}, {"resize": 40}, {"mean": (0.1, 0.2, 0.3)}, {"std": (1.0, 1.0, 1.0)}]
)
def test_other_preprocessing_is_noticed(
    change: dict[str, object], cache: FeatureCache, checkpoint: Checkpoint, folder: Path
) -> None:
    require_computed(cache, checkpoint, open_files(folder))
    require_computed(cache, replace(checkpoint, preprocessing=replace(checkpoint.preprocessing, **change)), open_files(folder))


def test_names_and_provenance_are_no_part_of_the_model(checkpoint: Checkpoint) -> None:
    other = replace(checkpoint, class_names=None, provenance={"read": "elsewhere"})
    assert compute_model_key(other) == compute_model_key(checkpoint)


@pytest.mark.parametrize(
    ("labels", "class_names"),
    [
        (Labels.one_each([1, 0, 2, 2]), ("x", "y", "z")),
        (Labels.several_each([[2, 0], [], [1], [0, 1, 2]]), ("x", "y", "z")),
        (Labels.none_each(4), ()),
    ],
)
def test_where_only_labels_changed_the_values_stay_and_the_labels_are_new(
    labels: Labels, class_names: tuple[str, ...], cache: FeatureCache, checkpoint: Checkpoint, folder: Path
) -> None:
    before, _ = ask(cache, checkpoint, open_files(folder))
    other = RelabelledSource(open_files(folder), labels, class_names)
    require_found(cache, checkpoint, other)
    found, _ = ask(cache, checkpoint, other)
    assert torch.equal(found.values, before.values)
    assert found.labels.tolist() == labels.to_targets(np.arange(4), len(class_names)).tolist()
    require_found(cache, checkpoint, open_files(folder))


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def rewrite(path: Path, **changes: torch.Tensor | None) -> None:
    tensors = {**load_file(path), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: cut(path, 0),
    "cut in its head": lambda path: cut(path, 20),
    "cut in its numbers": lambda path: cut(path, path.stat().st_size - 7),
    "something else": lambda path: path.write_bytes(b"\xff" * 500),
    "without index": lambda path: rewrite(path, index=None),
    "a row too few": lambda path: rewrite(path, values=torch.zeros(3, 16)),
    "numbers of images that are not there": lambda path: rewrite(path, index=torch.tensor([0, 1, 2, 99])),
    "not a number": lambda path: rewrite(path, values=torch.full((4, 16), float("nan"))),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_entry_is_told_of_and_computed_again(
    damage: Callable[[Path], None], cache: FeatureCache, checkpoint: Checkpoint, folder: Path
) -> None:
    source = open_files(folder)
    require_computed(cache, checkpoint, source)
    [entry] = find_entries(cache)
    damage(entry)
    with pytest.warns(VitrineWarning, match=r"\.safetensors is damaged \(.*\) and is computed again\.$"):
        found, was_computed = ask(cache, checkpoint, source)
    assert was_computed
    require_equal(found, compute(checkpoint, source))
    require_found(cache, checkpoint, source)


def test_where_nothing_can_be_kept_the_features_are_returned_all_the_same(checkpoint: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in place of the folder")
    with pytest.warns(
        VitrineWarning, match=r"^The features could not be kept for the next time \(.*file cannot be made .*\)\.$"
    ):
        found, _ = ask(FeatureCache(tmp_path / "file"), checkpoint, make_array())
    require_equal(found, compute(checkpoint, make_array()))


@pytest.fixture
def damaged(folder: Path) -> FileSource:
    (folder / "1.bmp").write_bytes(b"no image")
    return open_files(folder)


def test_a_bad_image_is_an_error_and_nothing_is_kept(cache: FeatureCache, checkpoint: Checkpoint, damaged: FileSource) -> None:
    for _ in range(2):
        with pytest.raises(BadImage, match=r"^1\.bmp is not a readable image"):
            ask(cache, checkpoint, damaged)
    assert find_entries(cache) == []


def test_without_bad_images_features_are_found_only_by_who_skips_them(
    cache: FeatureCache, checkpoint: Checkpoint, damaged: FileSource
) -> None:
    with pytest.warns(VitrineWarning, match=r"Skipped 1\.bmp"):
        found, _ = ask(cache, checkpoint, damaged, "skip")
    assert found.index.tolist() == [0, 2, 3]
    assert found.labels.tolist() == [0, 1, 0]
    with pytest.warns(VitrineWarning, match=r"^Without 1\.bmp: could not be read"):
        again, was_computed = ask(cache, checkpoint, damaged, "skip")
    assert not was_computed
    require_equal(again, found)
    with pytest.raises(BadImage, match=r"^1\.bmp"):
        ask(cache, checkpoint, damaged, "error")


def test_labels_of_skipped_images_are_not_given_to_others(
    cache: FeatureCache, checkpoint: Checkpoint, damaged: FileSource
) -> None:
    with pytest.warns(VitrineWarning):
        ask(cache, checkpoint, damaged, "skip")
    with pytest.warns(VitrineWarning):
        found, _ = ask(cache, checkpoint, RelabelledSource(damaged, Labels.one_each([3, 0, 1, 2]), tuple("wxyz")), "skip")
    assert found.labels.tolist() == [3, 1, 2]


def test_a_repaired_image_is_noticed(cache: FeatureCache, checkpoint: Checkpoint, damaged: FileSource, folder: Path) -> None:
    with pytest.warns(VitrineWarning):
        ask(cache, checkpoint, damaged, "skip")
    (folder / "1.bmp").write_bytes(draw(folder.parent / "drawn.bmp", 1))
    require_computed(cache, checkpoint, open_files(folder))
    (folder / "1.bmp").unlink()
    with pytest.raises(BadImage, match=r"^1\.bmp cannot be read"):
        ask(cache, checkpoint, open_files(folder))


def test_those_not_used_for_longest_make_room(
    cache: FeatureCache, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries: list[Path] = []
    for seed in range(3):
        ask(cache, checkpoint, make_array(seed))
        entries += set(find_entries(cache)) - set(entries)
        os.utime(entries[-1], (1000 + seed, 1000 + seed))
    require_found(cache, checkpoint, make_array(0))  # the oldest, but used
    assert entries[0].stat().st_mtime > 1_000_000  # of today
    monkeypatch.setattr(features, "MAX_BYTES", 3 * entries[0].stat().st_size)
    ask(cache, checkpoint, make_array(3))
    assert [entry.exists() for entry in entries] == [True, False, True]
    assert len(find_entries(cache)) == 3


def test_what_was_just_computed_is_kept_however_large(
    cache: FeatureCache, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "MAX_BYTES", 0)
    for seed in (0, 1):
        require_computed(cache, checkpoint, make_array(seed))
        assert len(find_entries(cache)) == 1


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert open_feature_cache().folder == tmp_path / "cache" / "features"
    for empty in (monkeypatch.delenv, lambda name: monkeypatch.setenv(name, "")):
        empty("VITRINE_CACHE")
        assert open_feature_cache().folder == tmp_path / "xdg" / "vitrine" / "features"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert open_feature_cache().folder == tmp_path / "home" / ".cache" / "vitrine" / "features"
    assert not (tmp_path / "home").exists()  # nothing is made before it is needed


def test_where_no_folder_can_be_made_features_of_files_are_returned(
    checkpoint: Checkpoint, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in place of the folder")
    with pytest.warns(VitrineWarning, match=r"^The features could not be kept for the next time"):
        found, _ = ask(FeatureCache(tmp_path / "file"), checkpoint, open_files(folder))
    require_equal(found, compute(checkpoint, open_files(folder)))


@pytest.fixture
def no_room() -> Iterator[None]:
    """Files of 200 bytes at most, which is how a disk is full as far as writing goes."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_a_notice_and_leaves_nothing(checkpoint: Checkpoint, tmp_path: Path, no_room: None) -> None:
    with pytest.warns(VitrineWarning, match=r"^The features could not be kept for the next time"):
        found, _ = ask(FeatureCache(tmp_path / "cache"), checkpoint, make_array())
    require_equal(found, compute(checkpoint, make_array()))
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"a\0b", b"../x", b"0" * 31])
def test_a_damaged_pointer_is_made_anew(content: bytes, checkpoint: Checkpoint, folder: Path, tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path / "cache")
    ask(cache, checkpoint, open_files(folder))
    [pointer] = cache.folder.glob("*.images")
    right = pointer.read_bytes()
    pointer.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VitrineWarning)
        _, was_computed = ask(cache, checkpoint, open_files(folder))
    assert not was_computed
    assert pointer.read_bytes() == right


def test_images_that_are_missing_in_the_cache_are_told_of(checkpoint: Checkpoint, folder: Path, tmp_path: Path) -> None:
    (folder / "1.bmp").write_bytes(b"no image")
    for _ in range(2):
        with pytest.warns(VitrineWarning, match=r"1\.bmp"):
            ask(FeatureCache(tmp_path / "cache"), checkpoint, open_files(folder), "skip")
