"""Features are found again when model and images are the same, computed when either is not, and never lost or mixed up."""

import os
import resource
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.data.test_fingerprint import replace_content
from tests.filling import build_filled
from tests.formats import cases
from tests.formats.cases import make_checkpoint
from vitrine.core.notices import Notice
from vitrine.data.config import BadImages
from vitrine.data.decode import BadImage
from vitrine.data.relabel import Relabelled
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.data.sources.files import FileSource
from vitrine.data.subset import hold_out
from vitrine.evaluate import feature_cache
from vitrine.evaluate.config import ReadingConfig
from vitrine.evaluate.feature_cache import FeatureCache, compute_model_key, open_feature_cache
from vitrine.evaluate.features import Features
from vitrine.evaluate.measuring import featurise_images
from vitrine.formats.checkpoint import Checkpoint

NAMES = ("0.bmp", "1.bmp", "2.bmp", "3.bmp")
LABELS = Labels.one_each([0, 1, 1, 0])
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


def open_files(folder: Path, names: tuple[str, ...] = NAMES, labels: Labels = LABELS) -> FileSource:
    return FileSource(folder, names, labels, CLASSES)


def make_array(seed: int = 0) -> ArraySource:
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 24, 24, 3), dtype=np.uint8)
    return ArraySource(pixels, LABELS, CLASSES, "made")


def compute(checkpoint: Checkpoint, source: Source, bad_images: BadImages = "error") -> Features:
    return featurise_images(checkpoint, source, ReadingConfig(num_workers=0, bad_images=bad_images))


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
    _, was_computed = ask(cache, checkpoint, Unread(folder, NAMES, LABELS, CLASSES))
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
    other = Relabelled(open_files(folder), labels, class_names)
    require_found(cache, checkpoint, other)
    found, _ = ask(cache, checkpoint, other)
    assert torch.equal(found.values, before.values)
    assert found.labels.tolist() == labels.to_batch(np.arange(4), len(class_names)).tolist()
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
    with pytest.warns(Notice, match=r"\.safetensors is damaged \(.*\) and is computed again\.$"):
        found, was_computed = ask(cache, checkpoint, source)
    assert was_computed
    require_equal(found, compute(checkpoint, source))
    require_found(cache, checkpoint, source)


def test_where_nothing_can_be_kept_the_features_are_returned_all_the_same(checkpoint: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in place of the folder")
    with pytest.warns(Notice, match=r"^The features could not be kept for the next time \(.*file cannot be made .*\)\.$"):
        found, _ = ask(FeatureCache(tmp_path / "file"), checkpoint, make_array())
    require_equal(found, compute(checkpoint, make_array()))


@pytest.fixture
def damaged(folder: Path) -> FileSource:
    (folder / "1.bmp").write_bytes(b"no image")
    return open_files(folder)


def test_a_bad_image_is_an_error_and_nothing_is_kept(cache: FeatureCache, checkpoint: Checkpoint, damaged: FileSource) -> None:
    for _ in range(2):
        with pytest.raises(BadImage, match=r"^1\.bmp is not an image that can be read"):
            ask(cache, checkpoint, damaged)
    assert find_entries(cache) == []


def test_without_bad_images_features_are_found_only_by_who_skips_them(
    cache: FeatureCache, checkpoint: Checkpoint, damaged: FileSource
) -> None:
    with pytest.warns(Notice, match=r"Skipped 1\.bmp"):
        found, _ = ask(cache, checkpoint, damaged, "skip")
    assert found.index.tolist() == [0, 2, 3]
    assert found.labels.tolist() == [0, 1, 0]
    with pytest.warns(Notice, match=r"^Without 1\.bmp: could not be read"):
        again, was_computed = ask(cache, checkpoint, damaged, "skip")
    assert not was_computed
    require_equal(again, found)
    with pytest.raises(BadImage, match=r"^1\.bmp"):
        ask(cache, checkpoint, damaged, "error")


def test_labels_of_skipped_images_are_not_given_to_others(
    cache: FeatureCache, checkpoint: Checkpoint, damaged: FileSource
) -> None:
    with pytest.warns(Notice):
        ask(cache, checkpoint, damaged, "skip")
    with pytest.warns(Notice):
        found, _ = ask(cache, checkpoint, Relabelled(damaged, Labels.one_each([3, 0, 1, 2]), tuple("wxyz")), "skip")
    assert found.labels.tolist() == [3, 1, 2]


def test_a_repaired_image_is_noticed(cache: FeatureCache, checkpoint: Checkpoint, damaged: FileSource, folder: Path) -> None:
    with pytest.warns(Notice):
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
    monkeypatch.setattr(feature_cache, "MAX_BYTES", 3 * entries[0].stat().st_size)
    ask(cache, checkpoint, make_array(3))
    assert [entry.exists() for entry in entries] == [True, False, True]
    assert len(find_entries(cache)) == 3


def test_what_was_just_computed_is_kept_however_large(
    cache: FeatureCache, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_cache, "MAX_BYTES", 0)
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
    with pytest.warns(Notice, match=r"^The features could not be kept for the next time"):
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
    with pytest.warns(Notice, match=r"^The features could not be kept for the next time"):
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
        warnings.simplefilter("ignore", Notice)
        _, was_computed = ask(cache, checkpoint, open_files(folder))
    assert not was_computed
    assert pointer.read_bytes() == right


def test_images_that_are_missing_in_the_cache_are_told_of(checkpoint: Checkpoint, folder: Path, tmp_path: Path) -> None:
    (folder / "1.bmp").write_bytes(b"no image")
    for _ in range(2):
        with pytest.warns(Notice, match=r"1\.bmp"):
            ask(FeatureCache(tmp_path / "cache"), checkpoint, open_files(folder), "skip")
