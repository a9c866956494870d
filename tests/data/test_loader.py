"""Batches do not depend on the number of workers or ranks, nor on the step at which loading starts."""

import itertools
import multiprocessing
import os
import pickle
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vitrine.core.console import VitrineWarning
from vitrine.data import loader as module
from vitrine.data.augment.mixup import draw_mixing, mixup_batch
from vitrine.data.augment.transforms import EvalTransform, Images, TrainTransform
from vitrine.data.batch import Batch
from vitrine.data.config import AugmentConfig, LastBatch, LoaderConfig, MixupConfig
from vitrine.data.loader import Loader, LoadingStopped, build_eval_loader, choose_num_workers
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.data.sampling import SampleRng
from vitrine.data.scan import reject_many_bad_images
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.data.sources.image_files import FileSource

NUM_IMAGES = 26
NAMES = [f"{index:02}.{'jpg' if index % 2 else 'png'}" for index in range(NUM_IMAGES)]
PREPROCESSING = build_inception_preprocessing((24, 20))
EVALUATION = EvalTransform(PREPROCESSING)
EVERYTHING = TrainTransform(AugmentConfig(rand_augment_ops=2, erase_rate=0.5), PREPROCESSING)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> FileSource:
    """JPEG and PNG files of several sizes."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for index, name in enumerate(NAMES):
        pixels = random.integers(0, 256, (30 + index, 60 - index, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    return FileSource(folder, NAMES, Labels.one_each(np.arange(NUM_IMAGES) % 3), ("a", "b", "c"))


@pytest.fixture(scope="module")
def block() -> ArraySource:
    pixels = np.random.default_rng(1).integers(0, 256, (NUM_IMAGES, 24, 20, 3), dtype=np.uint8)
    labels = Labels.several_each([[index % 3, 3] for index in range(NUM_IMAGES)])
    return ArraySource(pixels, labels, ("a", "b", "c", "d"), "block")


@pytest.fixture(params=["files", "block"])
def source(request: pytest.FixtureRequest) -> Source:
    return request.getfixturevalue(request.param)


def read(source: Source, start: int, stop: int, num_workers: int = 0, **options: object) -> list[Batch]:
    last = options.pop("last", "wrap")
    config = LoaderConfig(batch_size=8, num_workers=num_workers, last=last)
    return list(Loader(source, EVERYTHING, config, seed=5, **options).read(start, stop))


def require_equal(batches: list[Batch], expected: list[Batch]) -> None:
    assert [batch.step for batch in batches] == [batch.step for batch in expected]
    for batch, other in zip(batches, expected, strict=True):
        for tensor, expected_tensor in zip(list_tensors(batch), list_tensors(other), strict=True):
            torch.testing.assert_close(tensor, expected_tensor, rtol=0, atol=0)


def list_tensors(batch: Batch) -> tuple[Tensor, ...]:
    return (batch.index, batch.target, batch.image, *batch.views)


def test_batch_has_the_types_and_shapes_of_the_contract(files: FileSource, block: ArraySource) -> None:
    batch = read(files, 3, 4)[0]
    assert batch.image.shape == (8, 3, 24, 20)
    assert batch.image.dtype == torch.uint8
    assert batch.target.dtype == batch.index.dtype == torch.int64
    assert batch.step == 3
    assert len(batch) == 8
    assert batch.target.tolist() == [index % 3 for index in batch.index.tolist()]
    several = read(block, 0, 1)[0]
    assert several.target.dtype == torch.float32
    expected = [[float(label in (index % 3, 3)) for label in range(4)] for index in several.index.tolist()]
    assert several.target.tolist() == expected


@pytest.mark.parametrize("num_workers", [1, 4])
def test_workers_change_nothing(source: Source, num_workers: int) -> None:
    require_equal(read(source, 0, 9, num_workers), read(source, 0, 9))


@pytest.mark.parametrize("last", ["wrap", "drop", "keep"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_together_see_the_global_batch(source: Source, world_size: int, last: LastBatch) -> None:
    whole = read(source, 0, 9, last=last)
    parts = [read(source, 0, 9, last=last, rank=rank, world_size=world_size) for rank in range(world_size)]
    for step, batch in enumerate(whole):
        for expected, *tensors in zip(list_tensors(batch), *(list_tensors(part[step]) for part in parts), strict=True):
            torch.testing.assert_close(torch.cat(tensors), expected, rtol=0, atol=0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loading_starts_at_any_step(source: Source, num_workers: int) -> None:
    whole = read(source, 0, 9)
    for start in (1, 3, 4, 8):
        require_equal(read(source, start, 9, num_workers), whole[start:])


def test_earlier_steps_are_not_read(files: FileSource) -> None:
    seen = []

    class Watched(FileSource):
        def fetch(self, index: int) -> bytes:
            seen.append(index)
            return super().fetch(index)

    watched = Watched(files.root, NAMES, files.labels, files.class_names)
    batch = next(Loader(watched, EVERYTHING, LoaderConfig(batch_size=4, num_workers=0)).read(10**9))
    assert seen == batch.index.tolist()


def test_every_epoch_has_every_image_once_and_augmented_differently(source: Source) -> None:
    batches = read(source, 0, NUM_IMAGES)  # 8 epochs in batches of 8
    indices = torch.cat([batch.index for batch in batches]).view(8, NUM_IMAGES)
    assert all(sorted(epoch) == list(range(NUM_IMAGES)) for epoch in indices.tolist())
    assert len({tuple(epoch) for epoch in indices.tolist()}) == 8
    images = torch.cat([batch.image for batch in batches])
    first = [int((indices[epoch] == 0).nonzero()) + epoch * NUM_IMAGES for epoch in range(8)]
    assert len({images[position].numpy().tobytes() for position in first}) == 8


@pytest.mark.parametrize(("last", "sizes"), [("wrap", [8, 8, 8, 8]), ("drop", [8, 8, 8]), ("keep", [8, 8, 8, 2])])
def test_last_batch_of_an_epoch(files: FileSource, last: LastBatch, sizes: list[int]) -> None:
    loader = Loader(files, EVERYTHING, LoaderConfig(batch_size=8, num_workers=0, last=last))
    assert loader.steps_per_epoch == len(sizes)
    assert [len(batch) for batch in loader.read(0, loader.steps_per_epoch)] == sizes
    once = torch.cat([batch.index for batch in loader.read_epoch()])
    assert sorted(once.tolist()) == list(range(NUM_IMAGES))


def test_global_generator_is_not_advanced(files: FileSource) -> None:
    before = torch.get_rng_state()
    for num_workers in (0, 1):
        next(Loader(files, EVERYTHING, LoaderConfig(batch_size=2, num_workers=num_workers)).read())
    assert torch.equal(torch.get_rng_state(), before)


def test_killed_worker_is_an_error(files: FileSource) -> None:
    class Killer(EvalTransform):
        def __call__(self, images: Images, targets: Tensor, rng: SampleRng) -> tuple[Tensor, Tensor]:
            os.kill(os.getpid(), signal.SIGKILL)
            return super().__call__(images, targets, rng)

    loader = Loader(files, Killer(PREPROCESSING), LoaderConfig(batch_size=2, num_workers=1))
    with pytest.raises(OSError, match="worker process was killed"):
        next(loader.read())


def stop_worker() -> int:
    """Stop the only worker process, as `kill -STOP` or a debugger does, and return its number."""
    [worker] = multiprocessing.active_children()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    return worker.pid


def test_stopped_worker_is_reported_until_it_continues(files: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have stopped in the middle of anything."""
    loader = Loader(files, EVALUATION, LoaderConfig(batch_size=2, num_workers=1, stuck_after_s=0.05), shuffle=False)
    reported: list[str] = []

    def report(message: str) -> None:
        for pid, state in re.findall(r"([0-9]+) \(([a-z ]+)\)", message):
            if state in ("stopped", "state unknown"):
                reported.append(pid)
                os.kill(int(pid), signal.SIGCONT)

    monkeypatch.setattr(module, "warn_user", report)
    batches = loader.read()
    found = [next(batches).index.tolist()]
    pid = stop_worker()
    found += [next(batches).index.tolist() for _ in range(5)]
    assert found == [[2 * step, 2 * step + 1] for step in range(6)]
    assert str(pid) in reported


class Stuck(EvalTransform):
    """A transform that never returns from its third batch."""

    def __call__(self, images: Images, targets: Tensor, rng: SampleRng) -> tuple[Tensor, Tensor]:
        while int(rng.indices[0]) == 4:
            time.sleep(0.01)
        return super().__call__(images, targets, rng)


def test_request_to_stop_ends_the_wait_for_a_stuck_worker(files: FileSource) -> None:
    loader = Loader(files, Stuck(PREPROCESSING), LoaderConfig(batch_size=2, num_workers=1), shuffle=False)
    loader.is_stop_requested = lambda: True
    batches = loader.read()
    found = [next(batches).index.tolist() for _ in range(2)]
    with pytest.raises(LoadingStopped, match=r"[0-9]+ \("):
        next(batches)
    assert found == [[0, 1], [2, 3]]
    del batches
    while multiprocessing.active_children():  # the worker is ended
        time.sleep(0.01)


def test_image_that_the_transform_cannot_convert_is_bad(tmp_path: Path) -> None:
    """Pillow cannot convert LAB to grey."""
    Image.new("LAB", (30, 30)).save(tmp_path / "lab.tif")
    Image.new("RGB", (30, 30)).save(tmp_path / "rgb.png")
    source = FileSource(tmp_path, ["lab.tif", "rgb.png"], Labels.one_each([0, 1]), ("a", "b"))
    grey = build_inception_preprocessing((16, 16), num_channels=1)
    loader = Loader(source, TrainTransform(AugmentConfig(), grey), LoaderConfig(batch_size=4, num_workers=0), bad_images="skip")
    with pytest.warns(VitrineWarning, match=r"lab\.tif"):
        batch = next(loader.read())
    assert batch.index.tolist() == [1, 1, 1, 1]
    assert batch.image.shape == (4, 1, 16, 16)


def test_invalid_arguments_are_errors(files: FileSource) -> None:
    with pytest.raises(ValueError, match="bad_images='raise'"):
        Loader(files, EVERYTHING, LoaderConfig(), bad_images="raise")
    with pytest.raises(ValueError, match="start_step=-1"):
        Loader(files, EVERYTHING, LoaderConfig()).read(-1)
    with pytest.raises(ValueError, match="num_views=0"):
        Loader(files, EVERYTHING, LoaderConfig(), num_views=0)


@pytest.mark.parametrize("batch_size", [1, 8, NUM_IMAGES, 100])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_eval_loader_reads_in_order_what_preprocessing_gives(files: FileSource, batch_size: int, num_workers: int) -> None:
    loader = build_eval_loader(files, PREPROCESSING, batch_size=batch_size, num_workers=num_workers)
    batches = list(loader.read_epoch())
    assert len(batches) == loader.steps_per_epoch == -(-NUM_IMAGES // batch_size)
    assert {len(batch) for batch in batches[:-1]} <= {batch_size}
    assert torch.cat([batch.index for batch in batches]).tolist() == list(range(NUM_IMAGES))
    assert torch.cat([batch.target for batch in batches]).tolist() == files.labels.values.tolist()
    expected = torch.stack([PREPROCESSING.load(path) for path in files.files()])
    assert torch.equal(torch.cat([batch.image for batch in batches]), expected)
    require_equal(list(loader.read_epoch()), batches)


@pytest.mark.parametrize("num_images", [1, 3, NUM_IMAGES])
@pytest.mark.parametrize(("batch_size", "world_size"), [(8, 2), (7, 3), (1, 4), (100, 4)])
def test_eval_loaders_of_all_ranks_see_every_image_once(num_images: int, batch_size: int, world_size: int) -> None:
    """The batch size is that of each rank, and there may be fewer images than ranks."""
    pixels = np.random.default_rng(1).integers(0, 256, (num_images, 24, 20, 3), dtype=np.uint8)
    source = ArraySource(pixels, Labels.one_each(np.arange(num_images)), tuple(map(str, range(num_images))), "block")
    loaders = [
        build_eval_loader(source, PREPROCESSING, batch_size=batch_size, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    parts = [list(loader.read_epoch()) for loader in loaders]
    assert len({len(part) for part in parts}) == 1  # with unequal steps, ranks would wait for each other forever
    assert all(len(batch) <= batch_size for part in parts for batch in part)
    assert len(parts[0]) == -(-num_images // (batch_size * world_size))
    together = [batch for step in zip(*parts, strict=True) for batch in step]
    assert torch.cat([batch.index for batch in together]).tolist() == list(range(num_images))
    assert torch.cat([batch.target for batch in together]).tolist() == list(range(num_images))


def test_mixup_does_not_depend_on_ranks(files: FileSource) -> None:
    mixing = MixupConfig(mixup=0.5, cutmix=1.0)

    def mix(batch: Batch) -> tuple[Tensor, Tensor]:
        draws = draw_mixing(mixing, PREPROCESSING.crop, 5, batch.index, batch.step)
        return mixup_batch(batch.image, batch.target, mixing, draws, 3)

    for step in range(6):  # mixup in some, CutMix in others
        images, labels = mix(read(files, step, step + 1)[0])
        parts = [mix(read(files, step, step + 1, rank=rank, world_size=4)[0]) for rank in range(4)]
        torch.testing.assert_close(torch.cat([part[0] for part in parts]), images, rtol=0, atol=0)
        torch.testing.assert_close(torch.cat([part[1] for part in parts]), labels, rtol=0, atol=0)


def test_data_wait_counts_loading_only(block: ArraySource, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Slow(EvalTransform):
        def __call__(self, images: Images, targets: Tensor, rng: SampleRng) -> tuple[Tensor, Tensor]:
            now[0] += 0.5
            return super().__call__(images, targets, rng)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    loader = Loader(block, Slow(PREPROCESSING), LoaderConfig(batch_size=8, num_workers=0))
    assert loader.data_wait_s == 0
    for number, _ in enumerate(loader.read(0, 3), start=1):
        assert loader.data_wait_s == number * 0.5
        now[0] += 8.0  # time of the consumer does not count
        assert loader.data_wait_s == number * 0.5


@pytest.fixture
def damaged(files: FileSource, tmp_path: Path) -> FileSource:
    """Three bad images: one truncated, one not an image, one missing."""
    for path in files.files():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "03.jpg").write_bytes((tmp_path / "03.jpg").read_bytes()[:700])
    (tmp_path / "10.png").write_bytes(b"not an image")
    (tmp_path / "21.jpg").unlink()
    return FileSource(tmp_path, NAMES, files.labels, files.class_names)


BAD = {"03.jpg": 3, "10.png": 10, "21.jpg": 21}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_bad_image_is_an_error_that_names_it(damaged: FileSource, num_workers: int) -> None:
    loader = Loader(damaged, EVERYTHING, LoaderConfig(batch_size=4, num_workers=num_workers))
    with pytest.raises(ValueError, match=r"^(03\.jpg|10\.png|21\.jpg) [^\n]*bad_images='skip'\.$"):
        list(loader.read_epoch())


def test_many_bad_images_are_more_than_one_in_a_hundred() -> None:
    names = [f"{index}.png" for index in range(12)]
    reject_many_bad_images(names[:3], 10)
    reject_many_bad_images(names[:4], 400)
    with pytest.raises(ValueError, match=r"4 of 399 .*0\.png"):
        reject_many_bad_images(names[:4], 399)


def test_a_bad_image_is_replaced_by_a_random_other_one_each_epoch(damaged: FileSource) -> None:
    loader = Loader(damaged, EVERYTHING, LoaderConfig(batch_size=NUM_IMAGES, num_workers=0), bad_images="skip")
    with pytest.warns(VitrineWarning):
        batches = list(loader.read(0, 40))
    counts = np.bincount(torch.cat([batch.index for batch in batches]).numpy(), minlength=NUM_IMAGES) - 40
    replacements = np.delete(counts, list(BAD.values()))  # 120 in place of the three bad images
    assert replacements.sum() == 120
    # Each of the n good images is drawn 120 / n times on average; a fixed replacement would be drawn 40 times or more.
    assert (replacements > 0).sum() > 0.8 * len(replacements)
    assert replacements.max() < 20


@pytest.mark.parametrize("num_workers", [0, 2])
def test_training_replaces_and_counts_bad_images(damaged: FileSource, num_workers: int) -> None:
    config = LoaderConfig(batch_size=4, num_workers=num_workers)
    loader = Loader(damaged, EVERYTHING, config, seed=5, bad_images="skip")
    with pytest.warns(VitrineWarning, match=r"\d so far") as caught:
        batches = list(loader.read(0, 2 * NUM_IMAGES))
    assert len(caught) <= 2  # at the first, and when their number has doubled
    assert loader.skipped == set(BAD)
    assert all(len(batch) == len(batch.image) == len(batch.target) == 4 for batch in batches)
    indices = torch.cat([batch.index for batch in batches])
    assert not set(indices.tolist()) & set(BAD.values())
    assert torch.cat([batch.target for batch in batches]).tolist() == (indices % 3).tolist()
    whole = Loader(damaged, EVERYTHING, LoaderConfig(batch_size=4, num_workers=0), seed=5, bad_images="skip")
    with pytest.warns(VitrineWarning):
        require_equal(list(whole.read(20, 23)), batches[20:23])


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_eval_loader_leaves_bad_images_out_or_names_one(damaged: FileSource, batch_size: int) -> None:
    loader = build_eval_loader(damaged, PREPROCESSING, batch_size=batch_size, num_workers=0, bad_images="skip")
    with pytest.warns(VitrineWarning, match="Skipped"):
        batches = list(loader.read_epoch())
    assert loader.skipped == set(BAD)
    kept = [index for index in range(NUM_IMAGES) if index not in BAD.values()]
    assert torch.cat([batch.index for batch in batches]).tolist() == kept
    expected = torch.stack([PREPROCESSING.load(damaged.files()[index]) for index in kept])
    assert torch.equal(torch.cat([batch.image for batch in batches]), expected)
    with pytest.raises(ValueError, match=r"^(03\.jpg|10\.png|21\.jpg) "):
        list(build_eval_loader(damaged, PREPROCESSING, batch_size=batch_size, num_workers=0).read_epoch())


def test_training_stops_when_every_replacement_is_bad(tmp_path: Path) -> None:
    names = [f"{index}.png" for index in range(5)]
    for name in names:
        (tmp_path / name).write_bytes(b"no image")
    source = FileSource(tmp_path, names, Labels.one_each([0] * 5), ("a",))
    loader = Loader(source, EVERYTHING, LoaderConfig(batch_size=2, num_workers=0), bad_images="skip")
    with pytest.raises(ValueError, match=r"100 .*\d\.png"):
        next(loader.read())


def test_unusable_source_fails_at_once(block: ArraySource) -> None:
    empty = ArraySource(block.pixels[:0], Labels.several_each([]), (), "empty")
    with pytest.raises(ValueError, match="no images"):
        Loader(empty, EVERYTHING, LoaderConfig())
    with pytest.raises(ValueError, match=r"batch_size=9 .* multiple"):
        Loader(block, EVERYTHING, LoaderConfig(batch_size=9), world_size=2)


def test_images_in_memory_need_no_workers(files: FileSource, block: ArraySource) -> None:
    assert choose_num_workers(files) >= 1
    assert choose_num_workers(block) == 0


def test_stopping_early_ends_the_workers(files: FileSource) -> None:
    def find_children() -> set[str]:
        return {child for task in Path("/proc/self/task").glob("*/children") for child in task.read_text().split()}

    if not Path("/proc/self/task").exists():
        pytest.skip("needs /proc to count processes")
    before = find_children()
    batches: Iterator[Batch] = Loader(files, EVERYTHING, LoaderConfig(batch_size=2, num_workers=2)).read()
    next(batches)
    del batches
    assert find_children() <= before


def test_dataset_can_be_pickled(files: FileSource) -> None:
    loader = Loader(files, EVERYTHING, LoaderConfig(batch_size=4, num_workers=0), seed=5)
    copy = pickle.loads(pickle.dumps(loader.dataset))
    require_equal([copy[7]], [loader.dataset[7]])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_views_differ_and_are_reproducible(source: Source, num_workers: int) -> None:
    plain, several = read(source, 0, 5), read(source, 0, 5, num_views=3)
    for batch, other in zip(several, plain, strict=True):
        assert other.views == ()
        assert [view.shape for view in batch.views] == [batch.image.shape] * 2
        assert [view.dtype for view in batch.views] == [torch.uint8] * 2
        require_equal([replace(batch, views=())], [other])  # view 0 does not depend on the number of views
        for first, second in itertools.combinations((batch.image, *batch.views), 2):
            assert not (first == second).flatten(1).all(dim=1).any()
    require_equal(read(source, 2, 5, num_workers, num_views=3), several[2:])
    parts = [read(source, 0, 5, num_views=3, rank=rank, world_size=2) for rank in range(2)]
    for step, batch in enumerate(several):
        for expected, *tensors in zip(list_tensors(batch), *(list_tensors(part[step]) for part in parts), strict=True):
            torch.testing.assert_close(torch.cat(tensors), expected, rtol=0, atol=0)


def test_every_view_shows_the_image_of_its_index() -> None:
    """Solid colours survive crops and flips."""
    pixels = np.tile(np.arange(NUM_IMAGES, dtype=np.uint8)[:, None, None, None], (1, 24, 20, 3))
    source = ArraySource(pixels, Labels.one_each(np.zeros(NUM_IMAGES)), ("a",), "solid")
    loader = Loader(source, TrainTransform(AugmentConfig(), PREPROCESSING), LoaderConfig(batch_size=8), num_views=2)
    for batch in loader.read(0, 4):
        for image in (batch.image, *batch.views):
            assert torch.equal(image.float().mean(dim=(1, 2, 3)), batch.index.float())


def test_bad_images_are_replaced_in_all_views(damaged: FileSource) -> None:
    config = LoaderConfig(batch_size=4, num_workers=0)
    with pytest.warns(VitrineWarning):
        plain = list(Loader(damaged, EVERYTHING, config, bad_images="skip").read(0, 8))
    with pytest.warns(VitrineWarning):
        several = list(Loader(damaged, EVERYTHING, config, bad_images="skip", num_views=2).read(0, 8))
    require_equal([replace(batch, views=()) for batch in several], plain)
    assert all(len(batch.views[0]) == 4 for batch in several)


def test_transform_may_change_targets_with_images(files: FileSource) -> None:
    class Quarters(TrainTransform):
        """Rotate every image by its number of quarter turns, which becomes its target."""

        def __call__(self, images: Images, targets: Tensor, rng: SampleRng) -> tuple[Tensor, Tensor]:
            pixels, _ = super().__call__(images, targets, rng)
            turns = torch.from_numpy(rng.indices % 4)
            turned = [torch.rot90(image, int(turn), (1, 2)) for image, turn in zip(pixels, turns, strict=True)]
            return torch.stack(turned), turns

    square = build_inception_preprocessing((24, 24))
    config = LoaderConfig(batch_size=8, num_workers=0)
    plain = Loader(files, TrainTransform(AugmentConfig(), square), config).read(0, 3)
    for batch, other in zip(Loader(files, Quarters(AugmentConfig(), square), config).read(0, 3), plain, strict=True):
        assert batch.target.tolist() == [index % 4 for index in batch.index.tolist()]
        for image, original, turn in zip(batch.image, other.image, batch.target.tolist(), strict=True):
            assert torch.equal(image, torch.rot90(original, turn, (1, 2)))


def test_more_workers_than_a_machine_can_start_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand processes would keep the machine busy for minutes, without a message."""
    monkeypatch.setattr(module, "count_cpus", lambda: 16)
    assert module.check_num_workers(512) == 512
    with pytest.raises(ValueError, match=r"num_workers=513 .*512"):
        module.check_num_workers(513)
    monkeypatch.setattr(module, "count_cpus", lambda: 1)
    assert module.check_num_workers(256) == 256


@pytest.mark.parametrize("prefetch", [1, 3])
def test_prefetch_is_the_number_of_batches_ahead(prefetch: int, files: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's DataLoader is replaced by one that records its argument."""
    seen: list[int | None] = []

    class Recording(torch.utils.data.DataLoader):  # type: ignore[type-arg]
        def __init__(self, *arguments: object, prefetch_factor: int | None = None, **options: object) -> None:
            seen.append(prefetch_factor)
            super().__init__(*arguments, prefetch_factor=prefetch_factor, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "DataLoader", Recording)
    config = LoaderConfig(batch_size=8, num_workers=1, prefetch=prefetch)
    assert len(list(Loader(files, EVERYTHING, config).read(0, 2))) == 2
    assert seen == [prefetch]
