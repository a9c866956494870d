"""Damaged image files: each gives an image or an error that names it, and loaders skip the bad ones."""

import multiprocessing
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image

from tests.data.test_image import ORIENTATION, RANDOM, VARIANTS, build_smooth, encode
from vitrine.core.console import VitrineWarning
from vitrine.data import image
from vitrine.data.augment.transforms import EvalTransform, TrainTransform, Transform
from vitrine.data.config import AugmentConfig, BadImages, LoaderConfig
from vitrine.data.image import BadImage, decode_image
from vitrine.data.loader import Loader
from vitrine.data.open_data import DatasetHandle, find_data
from vitrine.data.pack import pack_data
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.source import Labels, Source
from vitrine.data.sources.image_files import FileSource
from vitrine.data.wrappers import load_into_memory

COUNTS = [100, pytest.param(1000, marks=pytest.mark.full)]
PHOTO = build_smooth(72, 56)
NOISE = Image.fromarray(RANDOM.integers(0, 256, (56, 72, 3), dtype=np.uint8))


@pytest.fixture(scope="module", autouse=True)
def few_pixels() -> Iterator[None]:
    """Lower the limit: a damaged header may ask for 500 MB, which is allowed, but slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image, "MAX_PIXELS", 2**22)
        yield


@cache
def build_originals() -> dict[str, bytes]:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    tiffs = ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")
    built = {
        "baseline.jpg": encode(PHOTO, "JPEG"),
        "noise.jpg": encode(NOISE, "JPEG", quality=30),
        "progressive.jpg": encode(PHOTO, "JPEG", progressive=True),
        "restarts.jpg": encode(PHOTO, "JPEG", restart_marker_blocks=2),
        "cmyk.jpg": encode(PHOTO.convert("CMYK"), "JPEG"),
        "grey.jpg": encode(PHOTO.convert("L"), "JPEG"),
        "turned.jpg": encode(PHOTO, "JPEG", exif=exif),
        "turned.png": encode(PHOTO, "PNG", exif=exif),
        "turned.webp": encode(PHOTO, "WEBP", exif=exif),
        "turned.tif": encode(PHOTO, "TIFF", exif=exif),
        "lossless.webp": encode(PHOTO, "WEBP", lossless=True),
        "group4.tif": encode(PHOTO.convert("1"), "TIFF", compression="group4"),
        **{f"{method}.tif": encode(PHOTO, "TIFF", compression=method) for method in tiffs},
        **{f"{name.replace(' ', '_')}.odd": content for name, content in VARIANTS.items()},
    }
    for format in ("AVIF", "JPEG2000"):
        if format in Image.SAVE:
            built[f"{format}.bin"] = encode(PHOTO, format)
    return built


def flip_bits(random: Random, content: bytes) -> bytes:
    damaged = bytearray(content)
    for _ in range(random.choice([1, 1, 2, 8, 40])):
        damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
    return bytes(damaged)


def damage_header(random: Random, content: bytes) -> bytes:
    """Change bytes among sizes, modes and lengths."""
    damaged = bytearray(content)
    for _ in range(random.choice([1, 2, 4])):
        damaged[random.randrange(min(len(damaged), 100))] = random.choice([0, 1, 2, 127, 128, 254, 255, random.randrange(256)])
    return bytes(damaged)


def cut(random: Random, content: bytes) -> bytes:
    return content[: random.choice([random.randrange(len(content)), len(content) - random.randrange(1, 20)])]


def remove(random: Random, content: bytes) -> bytes:
    start = random.randrange(len(content))
    return content[:start] + content[start + random.choice([1, 2, 10, 200]) :]


def insert(random: Random, content: bytes) -> bytes:
    position = random.randrange(len(content) + 1)
    return content[:position] + random.randbytes(random.choice([1, 2, 4, 100])) + content[position:]


def overwrite(random: Random, content: bytes) -> bytes:
    position, length = random.randrange(len(content)), random.choice([4, 30, 300])
    filling = random.choice([bytes(length), b"\xff" * length, random.randbytes(length)])
    return content[:position] + filling + content[position + length :]


def splice(random: Random, content: bytes) -> bytes:
    """Join the beginning of one file and the end of another."""
    other = random.choice(list(build_originals().values()))
    return content[: random.randrange(1, len(content))] + other[random.randrange(len(other)) :]


def swap(random: Random, content: bytes) -> bytes:
    first, second, third, fourth = sorted(random.randrange(len(content) + 1) for _ in range(4))
    return content[:first] + content[third:fourth] + content[second:third] + content[first:second] + content[fourth:]


def swap_chunks(random: Random, content: bytes) -> bytes:
    """Swap whole chunks of a PNG, segments of a JPEG or RIFF chunks of a WebP."""
    marks = rb"(?=.{4}(?:IHDR|PLTE|IDAT|tRNS|eXIf|gAMA|IEND))|(?=\xff[\xc0-\xfe])|(?=VP8|EXIF)"
    positions = [match.start() for match in re.finditer(marks, content, re.DOTALL)]
    if len(positions) < 4:
        return swap(random, content)
    parts = [content[start:stop] for start, stop in zip([0, *positions], [*positions, len(content)], strict=True)]
    first, second = random.sample(range(1, len(parts)), 2)
    parts[first], parts[second] = parts[second], parts[first]
    return b"".join(parts)


def keep(random: Random, content: bytes) -> bytes:
    return content


CHANGES = (flip_bits, damage_header, cut, remove, insert, overwrite, splice, swap, swap_chunks, keep)


def damage(seed: int) -> tuple[str, bytes]:
    """Name and content of one damaged file; the name says how it was made."""
    random = Random(seed)
    original, change = random.choice(sorted(build_originals())), CHANGES[seed % len(CHANGES)]
    return f"{seed}-{change.__name__}-{original}", change(random, build_originals()[original])


def write_files(folder: Path, count: int) -> FileSource:
    folder.mkdir()
    names = []
    for seed in range(count):
        name, content = damage(seed)
        (folder / name).write_bytes(content)
        names.append(name)
    return FileSource(folder, names, Labels.one_each(np.arange(count) % 3), ("ant", "bee", "cat"))


def is_bad(source: Source, index: int) -> bool:
    try:
        decode_image(source.fetch(index), source.name(index))
    except BadImage:
        return True
    return False


def list_bad(source: Source) -> set[str]:
    return {source.name(index) for index in range(len(source)) if is_bad(source, index)}


@pytest.fixture(scope="module", params=COUNTS)
def damaged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FileSource:
    return write_files(tmp_path_factory.mktemp("damaged") / "files", request.param)


@pytest.fixture(scope="module")
def bad(damaged: FileSource, few_pixels: None) -> set[str]:
    return list_bad(damaged)


Call = Callable[[Source, int], np.ndarray | Image.Image]
CALLS: dict[str, Call] = {
    "pixels": lambda source, index: source.read(index)[0].to_numpy(),
    "grey": lambda source, index: source.read(index)[0].to_numpy(1),
    "a corner": lambda source, index: source.read(index)[0].to_numpy(3, (0, 0, 1, 1)),
    "small": lambda source, index: source.read(index)[0].to_numpy(3, None, (1, 1)),
    "image": lambda source, index: source.read(index)[0].to_pil(),
}


def check(source: Source, index: int, call: Call, bad: set[str]) -> str | None:
    """Describe what is wrong in how a file is handled, or return None."""
    name = source.name(index)
    try:
        call(source, index)
    except BadImage as error:
        message = str(error)
        if not message.startswith(f"{name} ") or "\n" in message or "Traceback" in message:
            return f"{name}: unexpected message {message!r}"
        return None if name in bad else f"{name}: bad here but not as a whole, {message}"
    except Exception as error:
        return f"{name}: {type(error).__name__}: {error}"
    return f"{name}: bad as a whole but not here" if name in bad else None


def test_damaged_file_gives_an_image_or_an_error_that_names_it(damaged: FileSource, bad: set[str]) -> None:
    count = len(damaged)
    assert count // 4 < len(bad) < 9 * count // 10  # enough of each
    problems = {call: [check(damaged, index, CALLS[call], bad) for index in range(count)] for call in CALLS}
    assert {call: [problem for problem in found if problem] for call, found in problems.items()} == {call: [] for call in CALLS}


@pytest.mark.parametrize("count", COUNTS)
def test_lazy_image_equals_decode_image(count: int) -> None:
    """LazyImage and decode_image use Pillow differently and must give the same pixels."""
    for name, content in map(damage, range(5000, 5000 + count)):
        try:
            whole = np.asarray(decode_image(content, name))
        except BadImage:
            continue
        source = FileSource(Path(), [name], Labels.none_each(1), ())
        source.fetch = lambda index, content=content: content
        image, _ = source.read(0)
        assert (image.height, image.width) == whole.shape[:2], name
        np.testing.assert_array_equal(image.to_numpy(), whole, err_msg=name)
        height, width = (whole.shape[0] + 1) // 2, (whole.shape[1] + 1) // 2
        np.testing.assert_array_equal(
            source.read(0)[0].to_numpy(3, (0, 0, height, width)), whole[:height, :width], err_msg=name
        )


PREPROCESSING = Preprocessing(resize=18, crop=(16, 16))
TRANSFORMS: dict[str, Transform] = {
    "training": TrainTransform(AugmentConfig(), PREPROCESSING),
    "random": TrainTransform(AugmentConfig(crop="random"), PREPROCESSING),
    "evaluation": EvalTransform(PREPROCESSING),
}


def build_loader(
    source: Source, transform: str, num_workers: int, shuffle: bool, bad_images: BadImages, batch_size: int = 8
) -> Loader:
    config = LoaderConfig(batch_size=batch_size, num_workers=num_workers, last="wrap" if shuffle else "keep")
    return Loader(source, TRANSFORMS[transform], config, seed=3, shuffle=shuffle, bad_images=bad_images)


@pytest.mark.filterwarnings("ignore::vitrine.core.console.VitrineWarning")
@pytest.mark.parametrize(("transform", "num_workers"), [("training", 0), ("training", 2), ("random", 0), ("evaluation", 0)])
def test_training_replaces_and_counts_bad_images(transform: str, num_workers: int, damaged: FileSource, bad: set[str]) -> None:
    loader = build_loader(damaged, transform, num_workers, True, "skip")
    batches = list(loader.read(0, loader.steps_per_epoch))
    for batch in batches:
        assert batch.image.shape == (8, 3, 16, 16)
        assert not {damaged.name(index) for index in batch.index.tolist()} & bad
        assert batch.target.tolist() == [index % 3 for index in batch.index.tolist()]
    assert loader.skipped == bad
    seen = {damaged.name(index) for batch in batches for index in batch.index.tolist()}
    assert seen == {damaged.name(index) for index in range(len(damaged))} - bad


@pytest.mark.filterwarnings("ignore::vitrine.core.console.VitrineWarning")
@pytest.mark.parametrize(("transform", "num_workers"), [("training", 0), ("random", 0), ("evaluation", 0), ("evaluation", 2)])
def test_evaluation_leaves_out_and_counts_bad_images(
    transform: str, num_workers: int, damaged: FileSource, bad: set[str]
) -> None:
    loader = build_loader(damaged, transform, num_workers, False, "skip")
    batches = list(loader.read_epoch())
    indices = [index for batch in batches for index in batch.index.tolist()]
    assert indices == [index for index in range(len(damaged)) if damaged.name(index) not in bad]
    assert sum(len(batch.skipped) for batch in batches) == len(bad)
    assert loader.skipped == bad
    for batch in batches:
        assert batch.image.shape == (len(batch), 3, 16, 16)
        assert batch.target.tolist() == [index % 3 for index in batch.index.tolist()]


@pytest.mark.filterwarnings("ignore::vitrine.core.console.VitrineWarning")
def test_good_image_is_the_same_beside_a_bad_one(tmp_path: Path) -> None:
    """Augmentation depends on seed, epoch and index, not on the rest of the batch."""
    photo = encode(build_smooth(200, 160), "JPEG")
    names = [f"{index}.jpg" for index in range(8)]
    for name in names:
        (tmp_path / name).write_bytes(photo)
    source = FileSource(tmp_path, names, Labels.none_each(8), ())
    (before,) = build_loader(source, "training", 0, False, "skip").read_epoch()
    (tmp_path / "3.jpg").write_bytes(photo[:-100])
    (after,) = build_loader(source, "training", 0, False, "skip").read_epoch()
    assert after.index.tolist() == [0, 1, 2, 4, 5, 6, 7]
    assert (after.image == before.image[after.index]).all()


def test_error_ends_the_workers(tmp_path: Path) -> None:
    """Remaining workers would keep the program from ending."""
    source = write_files(tmp_path / "files", 40)
    before = set(multiprocessing.active_children())  # of other tests in this process
    with pytest.raises(BadImage) as error:
        list(build_loader(source, "evaluation", 2, False, "error", batch_size=1).read_epoch())
    assert error.value is not None
    for worker in set(multiprocessing.active_children()) - before:
        worker.join(600)  # ending may take a while
    assert set(multiprocessing.active_children()) <= before


def test_batches_before_the_error_are_given(tmp_path: Path) -> None:
    source = write_files(tmp_path / "files", 40)
    first = next(index for index in range(40) if is_bad(source, index))
    batches = build_loader(source, "evaluation", 2, False, "error", batch_size=1).read_epoch()
    assert [next(batches).index.tolist() for _ in range(first)] == [[index] for index in range(first)]
    with pytest.raises(BadImage):
        next(batches)


@pytest.mark.filterwarnings("ignore::vitrine.core.console.VitrineWarning")
def test_batches_of_only_bad_images_are_empty(tmp_path: Path) -> None:
    names = [f"{index}.jpg" for index in range(5)]
    for name in names:
        (tmp_path / name).write_bytes(b"bad")
    source = FileSource(tmp_path, names, Labels.one_each([0] * 5), ("ant",))
    loader = build_loader(source, "evaluation", 0, False, "skip", batch_size=2)
    assert [batch.image.shape for batch in loader.read_epoch()] == [(0, 3, 16, 16)] * 3
    assert loader.skipped == set(names)


def test_skipped_images_are_named_once(tmp_path: Path) -> None:
    source = write_files(tmp_path / "files", 30)
    loader = build_loader(source, "evaluation", 0, False, "skip")
    with pytest.warns(VitrineWarning, match=r"\d+ .*so far") as caught:
        list(loader.read_epoch())
    bad = list_bad(source)
    named = [name for warning in caught for name in bad if name in str(warning.message)]
    assert len(named) == len(set(named)) > 0
    assert loader.skipped == bad


@pytest.mark.filterwarnings("ignore::vitrine.core.console.VitrineWarning")
def test_packing_leaves_out_bad_images(damaged: FileSource, bad: set[str], tmp_path: Path) -> None:
    data = DatasetHandle(str(damaged.root), "files", (), lambda split: damaged)
    (report,) = pack_data(data, tmp_path / "packed", 256, bad_images="skip")
    packed = find_data(tmp_path / "packed").open()
    good = [index for index in range(len(damaged)) if damaged.name(index) not in bad]
    assert report.num_skipped == len(bad)
    assert [packed.name(index) for index in range(len(packed))] == [damaged.name(index) for index in good]
    for index_in_pack, index in enumerate(good):
        np.testing.assert_array_equal(
            packed.read(index_in_pack)[0].to_numpy(), damaged.read(index)[0].to_numpy(), err_msg=damaged.name(index)
        )
    with pytest.raises(BadImage, match=re.escape(min(bad, key=lambda name: int(name.split("-")[0])))):
        pack_data(data, tmp_path / "again", 256)


@pytest.mark.filterwarnings("ignore::vitrine.core.console.VitrineWarning")
def test_loading_into_memory_leaves_out_bad_images(tmp_path: Path) -> None:
    content = encode(PHOTO, "PNG")
    for seed in range(60):
        (tmp_path / f"{seed}.png").write_bytes(CHANGES[seed % 3](Random(seed), content) if seed % 4 else content)
    source = FileSource(tmp_path, [f"{seed}.png" for seed in range(60)], Labels.none_each(60), ())
    bad = list_bad(source)
    held = load_into_memory(source, "skip")
    assert {held.name(index) for index in range(len(held))} == {source.name(index) for index in range(60)} - bad


def test_every_original_is_whole() -> None:
    decoded = list(map(partial(decode_image, num_channels=3), build_originals().values(), build_originals()))
    assert {image.mode for image in decoded} == {"RGB"}
