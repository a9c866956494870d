"""Feature extraction; the cache finds features if model and images are unchanged, and recomputes them otherwise."""

import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

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
from vitrine.core.checksums import seal
from vitrine.core.console import VitrineWarning
from vitrine.data.batch import Batch
from vitrine.data.config import BadImages
from vitrine.data.image import BadImage
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.data.sources.image_files import FileSource
from vitrine.data.subsets import hold_out
from vitrine.data.wrappers import RelabelledSource
from vitrine.engines.engine import TorchEngine
from vitrine.evaluation import features
from vitrine.evaluation.config import InferenceConfig
from vitrine.evaluation.features import (
    FeatureCache,
    Features,
    FeatureSplit,
    extract_features,
    open_feature_cache,
)
from vitrine.evaluation.predictor import Predictor
from vitrine.formats.checkpoint import Checkpoint

LABELS = torch.tensor([3, 1, 4, 1, 5])


def draw_batches(labels: Tensor = LABELS) -> list[Batch]:
    images = torch.randint(0, 256, (len(labels), 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    indices = torch.arange(len(labels)).split(2)
    return [Batch(images[some], labels[some], some + 100, step) for step, some in enumerate(indices)]


def flatten(images: Tensor) -> Tensor:
    return images.half().flatten(1)


@pytest.mark.parametrize("labels", [LABELS, torch.eye(5)])
def test_rows_are_in_the_order_of_the_batches(labels: Tensor) -> None:
    batches = draw_batches(labels)
    result = extract_features(flatten, iter(batches), torch.device("cpu"))
    assert len(result) == 5
    assert result.values.dtype == torch.float32
    assert torch.equal(result.values, torch.cat([batch.image for batch in batches]).flatten(1).float())
    assert torch.equal(result.labels, labels)
    assert result.index.tolist() == [100, 101, 102, 103, 104]


def test_a_layer_can_be_trained_on_features() -> None:
    result = extract_features(lambda images: images.float().mean(dim=(2, 3)), draw_batches())
    layer = nn.Linear(3, 2)
    layer(result.values).sum().backward()  # torch refuses this for tensors of inference mode
    torch.testing.assert_close(layer.weight.grad, result.values.sum(dim=0).expand(2, 3))


def test_wrong_features_are_rejected() -> None:
    with pytest.raises(ValueError, match="no images"):
        extract_features(flatten, [])
    with pytest.raises(ValueError, match=r"\(2, 3, 32, 32\)"):
        extract_features(lambda images: images.float(), draw_batches())
    with pytest.raises(ValueError, match=r"\(1, 3072\)"):
        extract_features(lambda images: flatten(images[:1]), draw_batches())
    with pytest.raises(ValueError, match=r"\(5, 2\), \(4,\), \(5,\)"):
        Features(torch.zeros(5, 2), torch.zeros(4, dtype=torch.int64), torch.arange(5))
    with pytest.raises(ValueError, match=r"\(5, 2\), \(5,\), \(\)"):
        Features(torch.zeros(5, 2), torch.zeros(5, dtype=torch.int64), torch.tensor(5))
    values = torch.zeros(5, 2)
    values[2, 0], values[4, 1] = float("nan"), float("inf")
    with pytest.raises(ValueError, match=r"2 of 5 images .*index 7"):
        Features(values, LABELS, torch.arange(5, 10))


def make_features(labels: list[int], num_features: int = 3) -> Features:
    return Features(torch.zeros(len(labels), num_features), torch.tensor(labels, dtype=torch.int64), torch.arange(len(labels)))


def test_split_may_lack_classes() -> None:
    split = FeatureSplit(make_features([4]), make_features([0]), 5)
    assert (len(split.train), len(split.test), split.num_classes) == (1, 1, 5)


def test_split_needs_one_valid_class_per_image() -> None:
    train, test = make_features([0, 1, 2, 3]), make_features([3, 0])
    several = Features(test.values, torch.eye(4)[test.labels], test.index)
    FeatureSplit(train, test, 4)
    with pytest.raises(ValueError, match="training labels"):
        FeatureSplit(several, test, 4)
    with pytest.raises(ValueError, match="test labels"):
        FeatureSplit(train, several, 4)
    with pytest.raises(ValueError, match=r"training labels .*0 to 3"):
        FeatureSplit(train, test, 3)
    with pytest.raises(ValueError, match=r"test labels .*-1 to 0"):
        FeatureSplit(train, make_features([0, -1]), 4)
    with pytest.raises(ValueError, match="training labels are empty"):
        FeatureSplit(make_features([]), test, 4)
    with pytest.raises(ValueError, match="test labels are empty"):
        FeatureSplit(train, make_features([]), 4)
    with pytest.raises(ValueError, match="num_classes=1"):
        FeatureSplit(make_features([0]), make_features([0]), 1)
    with pytest.raises(ValueError, match=r"3 features .*2"):
        FeatureSplit(train, make_features([0], num_features=2), 4)


NAMES = ("0.bmp", "1.bmp", "2.bmp", "3.bmp")
CACHED_LABELS = Labels.one_each([0, 1, 1, 0])
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
    """Return a BMP file: uncompressed, so that all have the same size."""
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(path)
    return path.read_bytes()


def open_files(folder: Path, names: tuple[str, ...] = NAMES, labels: Labels = CACHED_LABELS) -> FileSource:
    return FileSource(folder, names, labels, CLASSES)


def make_array(seed: int = 0) -> ArraySource:
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 24, 24, 3), dtype=np.uint8)
    return ArraySource(pixels, CACHED_LABELS, CLASSES, "made")


def compute(checkpoint: Checkpoint, source: Source, bad_images: BadImages = "error") -> Features:
    return Predictor(checkpoint, "cpu", InferenceConfig(num_workers=0, bad_images=bad_images)).features(source)


def find(cache: FeatureCache, checkpoint: Checkpoint, source: Source, bad_images: BadImages = "error") -> tuple[Features, bool]:
    """Return the features, and whether they were computed."""
    computed: list[Features] = []

    def watch() -> Features:
        computed.append(compute(checkpoint, source, bad_images))
        return computed[-1]

    return cache.find(TorchEngine(checkpoint).fingerprint(), source, bad_images, watch), bool(computed)


def assert_equal(result: Features, expected: Features) -> None:
    for name, tensor in vars(expected).items():
        torch.testing.assert_close(getattr(result, name), tensor, rtol=0, atol=0)


def assert_computed_once(cache: FeatureCache, checkpoint: Checkpoint, source: Source) -> None:
    """Assert that features are computed once, correctly, and found from then on."""
    expected = compute(checkpoint, source)
    for is_first in (True, False):
        result, was_computed = find(cache, checkpoint, source)
        assert was_computed == is_first
        assert_equal(result, expected)


def assert_cached(cache: FeatureCache, checkpoint: Checkpoint, source: Source) -> None:
    result, was_computed = find(cache, checkpoint, source)
    assert not was_computed
    assert_equal(result, compute(checkpoint, source))


def find_entries(cache: FeatureCache) -> list[Path]:
    return sorted(cache.folder.glob("*.safetensors"))


def test_features_are_computed_once(cache: FeatureCache, checkpoint: Checkpoint, folder: Path) -> None:
    for source in (open_files(folder), make_array()):
        assert_computed_once(cache, checkpoint, source)
    assert len(find_entries(cache)) == 2
    assert not [path for path in cache.folder.iterdir() if path.suffix not in (".safetensors", ".images")]


def test_finding_features_reads_no_image(cache: FeatureCache, checkpoint: Checkpoint, folder: Path) -> None:
    class Unread(FileSource):
        def fetch(self, index: int) -> bytes:
            raise AssertionError("it was read")

    assert_computed_once(cache, checkpoint, open_files(folder))
    _, was_computed = find(cache, checkpoint, Unread(folder, NAMES, CACHED_LABELS, CLASSES))
    assert not was_computed


def test_changed_image_of_same_size_and_time_is_noticed(cache: FeatureCache, checkpoint: Checkpoint, folder: Path) -> None:
    assert_computed_once(cache, checkpoint, open_files(folder))
    replace_content(folder / "2.bmp", draw(folder.parent / "other.bmp", 99))
    assert_computed_once(cache, checkpoint, open_files(folder))


def test_changed_pixels_in_memory_are_noticed(cache: FeatureCache, checkpoint: Checkpoint) -> None:
    source = make_array()
    assert_computed_once(cache, checkpoint, source)
    source.pixels[3, 23, 23, 2] ^= 255
    assert_computed_once(cache, checkpoint, source)


def test_restored_image_is_found_again(cache: FeatureCache, checkpoint: Checkpoint, folder: Path) -> None:
    assert_computed_once(cache, checkpoint, open_files(folder))
    content = (folder / "2.bmp").read_bytes()
    (folder / "2.bmp").write_bytes(draw(folder.parent / "other.bmp", 99))
    assert_computed_once(cache, checkpoint, open_files(folder))
    (folder / "2.bmp").write_bytes(content)
    assert_cached(cache, checkpoint, open_files(folder))


def test_copied_and_renamed_images_are_found_again(
    cache: FeatureCache, checkpoint: Checkpoint, folder: Path, tmp_path: Path
) -> None:
    assert_computed_once(cache, checkpoint, open_files(folder))
    shutil.copytree(folder, tmp_path / "copy")
    assert_cached(cache, checkpoint, open_files(tmp_path / "copy"))
    renamed = tuple(f"größe {name}" for name in NAMES)
    for name, new in zip(NAMES, renamed, strict=True):
        (tmp_path / "copy" / name).rename(tmp_path / "copy" / new)
    assert_cached(cache, checkpoint, open_files(tmp_path / "copy", renamed))
    assert len(find_entries(cache)) == 1


def test_other_order_or_subset_is_computed(cache: FeatureCache, checkpoint: Checkpoint, folder: Path) -> None:
    assert_computed_once(cache, checkpoint, open_files(folder))
    assert_computed_once(cache, checkpoint, open_files(folder, NAMES[::-1]))
    assert_computed_once(cache, checkpoint, open_files(folder, NAMES[:3], Labels.one_each([0, 1, 1])))


def test_swapped_names_are_noticed(cache: FeatureCache, checkpoint: Checkpoint, folder: Path) -> None:
    assert_computed_once(cache, checkpoint, open_files(folder))
    for old, new in (("0.bmp", "x"), ("1.bmp", "0.bmp"), ("x", "1.bmp")):
        (folder / old).rename(folder / new)
    assert_computed_once(cache, checkpoint, open_files(folder))


def test_parts_of_the_same_files_do_not_mix(cache: FeatureCache, checkpoint: Checkpoint, folder: Path) -> None:
    for seed in (0, 1):
        for part in hold_out(open_files(folder), 0.5, seed):
            result, _ = find(cache, checkpoint, part)
            assert_equal(result, compute(checkpoint, part))


def test_changed_weight_is_noticed(cache: FeatureCache, checkpoint: Checkpoint, folder: Path) -> None:
    assert_computed_once(cache, checkpoint, open_files(folder))
    other = make_checkpoint(cases.VIT)
    with torch.no_grad():
        next(other.model.parameters()).view(-1)[0] += 1.0
    assert_computed_once(cache, other, open_files(folder))
    assert_cached(cache, make_checkpoint(cases.VIT), open_files(folder))


def test_changed_config_is_noticed(cache: FeatureCache, checkpoint: Checkpoint, folder: Path) -> None:
    other = replace(checkpoint, model=build_filled(replace(cases.VIT, gelu="erf")))
    assert all(map(torch.equal, other.model.state_dict().values(), checkpoint.model.state_dict().values()))
    assert_computed_once(cache, checkpoint, open_files(folder))
    assert_computed_once(cache, other, open_files(folder))


@pytest.mark.parametrize(
    "change", [{"interpolation": "nearest"}, {"resize": 40}, {"mean": (0.1, 0.2, 0.3)}, {"std": (1.0, 1.0, 1.0)}]
)
def test_other_preprocessing_is_noticed(
    change: dict[str, object], cache: FeatureCache, checkpoint: Checkpoint, folder: Path
) -> None:
    assert_computed_once(cache, checkpoint, open_files(folder))
    assert_computed_once(
        cache, replace(checkpoint, preprocessing=replace(checkpoint.preprocessing, **change)), open_files(folder)
    )


@pytest.mark.parametrize(
    ("labels", "class_names"),
    [
        (Labels.one_each([1, 0, 2, 2]), ("x", "y", "z")),
        (Labels.several_each([[2, 0], [], [1], [0, 1, 2]]), ("x", "y", "z")),
        (Labels.none_each(4), ()),
    ],
)
def test_labels_are_those_of_the_source(
    labels: Labels, class_names: tuple[str, ...], cache: FeatureCache, checkpoint: Checkpoint, folder: Path
) -> None:
    before, _ = find(cache, checkpoint, open_files(folder))
    other = RelabelledSource(open_files(folder), labels, class_names)
    assert_cached(cache, checkpoint, other)
    result, _ = find(cache, checkpoint, other)
    assert torch.equal(result.values, before.values)
    assert result.labels.tolist() == labels.to_targets(np.arange(4), len(class_names)).tolist()
    assert_cached(cache, checkpoint, open_files(folder))


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def rewrite(path: Path, **changes: torch.Tensor | None) -> None:
    tensors = {**load_file(path), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def flip_signs(path: Path) -> None:
    """Flip the sign of half of the values, as a file system may that returns the wrong blocks."""
    content, values = path.read_bytes(), load_file(path)["values"].numpy()
    changed = values.copy()
    changed[:, ::2] *= -1
    path.write_bytes(content.replace(values.tobytes(), changed.tobytes()))
    assert path.read_bytes() != content


def rename_checksum(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"vitrine_checksum", b"vitrine_checksun"))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: cut(path, 0),
    "cut in its head": lambda path: cut(path, 20),
    "cut in its numbers": lambda path: cut(path, path.stat().st_size - 7),
    "something else": lambda path: path.write_bytes(b"\xff" * 500),
    "without index": lambda path: rewrite(path, index=None),
    "a row too few": lambda path: rewrite(path, values=torch.zeros(3, 16)),
    "numbers of images that are not there": lambda path: rewrite(path, index=torch.tensor([0, 1, 2, 99])),
    "flipped signs": flip_signs,
    "a checksum under another name": rename_checksum,
    "not a number": lambda path: rewrite(path, values=torch.full((4, 16), float("nan"))),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_entry_is_computed_again(
    damage: Callable[[Path], None], cache: FeatureCache, checkpoint: Checkpoint, folder: Path
) -> None:
    source = open_files(folder)
    assert_computed_once(cache, checkpoint, source)
    [entry] = find_entries(cache)
    damage(entry)
    with pytest.warns(VitrineWarning, match="damaged"):
        result, was_computed = find(cache, checkpoint, source)
    assert was_computed
    assert_equal(result, compute(checkpoint, source))
    assert_cached(cache, checkpoint, source)


def test_unwritable_cache_returns_features_in_memory(checkpoint: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(VitrineWarning, match="could not be cached"):
        result, _ = find(FeatureCache(tmp_path / "file"), checkpoint, make_array())
    assert_equal(result, compute(checkpoint, make_array()))


@pytest.fixture
def damaged(folder: Path) -> FileSource:
    (folder / "1.bmp").write_bytes(b"no image")
    return open_files(folder)


def test_bad_image_is_an_error_and_nothing_is_cached(cache: FeatureCache, checkpoint: Checkpoint, damaged: FileSource) -> None:
    for _ in range(2):
        with pytest.raises(BadImage, match=r"^1\.bmp"):
            find(cache, checkpoint, damaged)
    assert find_entries(cache) == []


def test_features_without_bad_images_need_skip(cache: FeatureCache, checkpoint: Checkpoint, damaged: FileSource) -> None:
    with pytest.warns(VitrineWarning, match=r"Skipped 1\.bmp"):
        result, _ = find(cache, checkpoint, damaged, "skip")
    assert result.index.tolist() == [0, 2, 3]
    assert result.labels.tolist() == [0, 1, 0]
    with pytest.warns(VitrineWarning, match=r"Skipped 1\.bmp"):
        again, was_computed = find(cache, checkpoint, damaged, "skip")
    assert not was_computed
    assert_equal(again, result)
    with pytest.raises(BadImage, match=r"^1\.bmp"):
        find(cache, checkpoint, damaged, "error")


def test_labels_of_skipped_images_are_left_out(cache: FeatureCache, checkpoint: Checkpoint, damaged: FileSource) -> None:
    with pytest.warns(VitrineWarning):
        find(cache, checkpoint, damaged, "skip")
    with pytest.warns(VitrineWarning):
        result, _ = find(cache, checkpoint, RelabelledSource(damaged, Labels.one_each([3, 0, 1, 2]), tuple("wxyz")), "skip")
    assert result.labels.tolist() == [3, 1, 2]


def test_repaired_image_is_noticed(cache: FeatureCache, checkpoint: Checkpoint, damaged: FileSource, folder: Path) -> None:
    with pytest.warns(VitrineWarning):
        find(cache, checkpoint, damaged, "skip")
    (folder / "1.bmp").write_bytes(draw(folder.parent / "drawn.bmp", 1))
    assert_computed_once(cache, checkpoint, open_files(folder))
    (folder / "1.bmp").unlink()
    with pytest.raises(BadImage, match=r"^1\.bmp"):
        find(cache, checkpoint, open_files(folder))


def test_least_recently_used_features_are_deleted(
    cache: FeatureCache, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries: list[Path] = []
    for seed in range(3):
        find(cache, checkpoint, make_array(seed))
        entries += set(find_entries(cache)) - set(entries)
        os.utime(entries[-1], (1000 + seed, 1000 + seed))
    assert_cached(cache, checkpoint, make_array(0))  # the oldest, but used
    assert entries[0].stat().st_mtime > 1_000_000  # of today
    monkeypatch.setattr(features, "MAX_BYTES", 3 * entries[0].stat().st_size)
    find(cache, checkpoint, make_array(3))
    assert [entry.exists() for entry in entries] == [True, False, True]
    assert len(find_entries(cache)) == 3


def test_latest_features_are_kept_whatever_their_size(
    cache: FeatureCache, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "MAX_BYTES", 0)
    for seed in (0, 1):
        assert_computed_once(cache, checkpoint, make_array(seed))
        assert len(find_entries(cache)) == 1


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert open_feature_cache().folder == tmp_path / "cache" / "features"
    for empty in (monkeypatch.delenv, lambda name: monkeypatch.setenv(name, "")):
        empty("VITRINE_CACHE")
        assert open_feature_cache().folder == tmp_path / "xdg" / "vitrine" / "features"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert open_feature_cache().folder == tmp_path / "home" / ".cache" / "vitrine" / "features"
    assert not (tmp_path / "home").exists()  # created on first use


def test_unwritable_cache_returns_features_of_files(checkpoint: Checkpoint, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(VitrineWarning, match="could not be cached"):
        result, _ = find(FeatureCache(tmp_path / "file"), checkpoint, open_files(folder))
    assert_equal(result, compute(checkpoint, open_files(folder)))


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Limit files to 200 bytes: writing fails as on a full disk."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_full_disk_is_a_warning_and_leaves_no_file(checkpoint: Checkpoint, tmp_path: Path, full_disk: None) -> None:
    with pytest.warns(VitrineWarning, match="could not be cached"):
        result, _ = find(FeatureCache(tmp_path / "cache"), checkpoint, make_array())
    assert_equal(result, compute(checkpoint, make_array()))
    assert list((tmp_path / "cache").iterdir()) == []


def test_features_from_before_there_were_checksums_are_used(cache: FeatureCache, checkpoint: Checkpoint, folder: Path) -> None:
    assert_computed_once(cache, checkpoint, open_files(folder))
    [entry] = find_entries(cache)
    rewrite(entry)
    [pointer] = cache.folder.glob("*.images")
    pointer.write_bytes(pointer.read_bytes()[:32])
    assert_cached(cache, checkpoint, open_files(folder))


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"a\0b", b"../x", b"0" * 31, seal(b"0" * 32).replace(b"0", b"1", 1)])
def test_damaged_pointer_is_rewritten(content: bytes, checkpoint: Checkpoint, folder: Path, tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path / "cache")
    find(cache, checkpoint, open_files(folder))
    [pointer] = cache.folder.glob("*.images")
    right = pointer.read_bytes()
    pointer.write_bytes(content)
    with pytest.warns(VitrineWarning, match="damaged"):
        _, was_computed = find(cache, checkpoint, open_files(folder))
    assert not was_computed
    assert pointer.read_bytes() == right


def test_skipped_images_are_reported_each_time(checkpoint: Checkpoint, folder: Path, tmp_path: Path) -> None:
    (folder / "1.bmp").write_bytes(b"no image")
    for _ in range(2):
        with pytest.warns(VitrineWarning, match=r"1\.bmp"):
            find(FeatureCache(tmp_path / "cache"), checkpoint, open_files(folder), "skip")
