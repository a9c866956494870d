"""Tests of data/quality/image_stats.py.

What one look at the images finds, alone, by several processes, and by those of torchrun.
The cache of image statistics is atomic, read back, and not trusted when damaged.
"""

import hashlib
import json
import os
import select
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import draw_picture, encode, write_picture
from vitrine.core.console import VitrineWarning
from vitrine.data.image import LazyImage
from vitrine.data.open_data import open_data
from vitrine.data.quality import image_stats as module
from vitrine.data.quality.image_stats import ImageStats, StatsCache, compute_image_stats, open_stats_cache, stats_of_chunk
from vitrine.data.quality.perceptual_hash import PerceptualHashes, compute_perceptual_hash


@pytest.fixture
def folder(tmp_path: Path, cache: Path) -> Path:
    for number in range(7):
        write_picture(tmp_path / "data" / "all" / f"{number}.jpg", seed=number)
    (tmp_path / "data" / "all" / "5.jpg").write_bytes(encode(draw_picture(5))[:700])
    return tmp_path / "data"


def are_equal(first: ImageStats, second: ImageStats) -> bool:
    arrays = [(each.digests, each.sizes, each.hashes.words, each.hashes.weak) for each in (first, second)]
    is_same = all(np.array_equal(one, other) for one, other in zip(*arrays, strict=True))
    return is_same and (first.unreadable, first.misnamed) == (second.unreadable, second.misnamed)


def test_what_is_seen_of_an_image(folder: Path) -> None:
    draw_picture(0, (40, 30)).save(folder / "all" / "6.jpg", "PNG")  # a name that says something else
    found = compute_image_stats(open_data(folder), "looking")
    assert found.sizes.tolist() == [[96, 128]] * 5 + [[0, 0], [40, 30]]
    assert list(found.unreadable) == [5]
    assert "5.jpg is damaged or truncated" in found.unreadable[5]
    assert found.misnamed == {6: "PNG"}
    assert not found.digests[5].any()
    assert len({digest.tobytes() for digest in found.digests}) == 7


def test_the_same_bytes_have_the_same_digest(folder: Path) -> None:
    (folder / "all" / "copy.jpg").write_bytes((folder / "all" / "2.jpg").read_bytes())
    found = compute_image_stats(open_data(folder), "looking")
    assert np.array_equal(found.digests[2], found.digests[7])
    content = hashlib.blake2b((folder / "all" / "2.jpg").read_bytes(), digest_size=16).digest()
    assert found.digests[2].tobytes() == hashlib.blake2b(content, digest_size=16).digest()


def test_several_processes_see_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_data(folder)
    whole = stats_of_chunk(source, range(7))
    monkeypatch.setattr(module, "CHUNK", 2)
    assert are_equal(compute_image_stats(source, "looking"), whole)


def test_what_was_looked_at_is_not_looked_at_again(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_data(folder)
    monkeypatch.setattr(module, "CHUNK", 3)
    first = compute_image_stats(source, "looking")
    (chunks,) = (cache / "surveys").iterdir()
    (chunks / "000001.npz").unlink()  # as if it had been stopped before
    looked: list[range] = []

    def look(source: object, chunk: range) -> ImageStats:
        looked.append(chunk)
        return stats_of_chunk(open_data(folder), chunk)

    monkeypatch.setattr(module, "stats_of_chunk", look)
    assert are_equal(compute_image_stats(source, "looking"), first)
    assert looked == [range(3, 6)]


def test_images_that_changed_are_looked_at_again(folder: Path) -> None:
    compute_image_stats(open_data(folder), "looking")
    Image.new("RGB", (11, 22)).save(folder / "all" / "0.jpg")
    found = compute_image_stats(open_data(folder), "looking")
    assert found.sizes[0].tolist() == [22, 11]
    assert found.hashes.is_flat[0]


def test_what_is_in_no_files_is_looked_at(cache: Path) -> None:
    from vitrine.data.subsets import select_subset

    found = compute_image_stats(select_subset(open_data("digits", "test"), "10"), "looking")
    assert found.sizes.tolist() == [[8, 8]] * 10
    assert not (cache / "surveys").exists()


SCRIPT = """
import json
import sys
from pathlib import Path
from vitrine.core.runtime import start_runtime
from vitrine.data.quality import image_stats as survey
from vitrine.data.open_data import open_data
survey.CHUNK = 2
looked = []
look = survey.map_chunks
survey.map_chunks = lambda source, chunks: (looked.extend(chunks), look(source, chunks))[1]
with start_runtime("cpu") as runtime:
    found = survey.compute_image_stats(open_data(sys.argv[1]), "looking", runtime)
    said = [[str(chunk) for chunk in looked], len(found), list(found.unreadable)]
    Path(sys.argv[2], f"{runtime.rank}.json").write_text(json.dumps(said))
"""


def test_processes_of_torchrun_share_the_work(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [str(tmp_path / "script.py"), str(folder), str(tmp_path)]
    done = subprocess.run([*command, *words], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)] == [
        [["range(0, 2)", "range(4, 6)"], 7, [5]],
        [["range(2, 4)", "range(6, 7)"], 7, [5]],
    ]


def make_survey() -> ImageStats:
    signature = compute_perceptual_hash(LazyImage(np.asarray(draw_picture(0)), "picture"))
    signatures = PerceptualHashes.join([signature, PerceptualHashes.empty(1)])
    digests = np.arange(32, dtype=np.uint8).reshape(2, 16)
    return ImageStats(digests, signatures, np.array([[3, 4], [0, 0]]), {1: "ein Bild fehlt: ü"}, {0: "PNG"})


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    notes, survey = StatsCache(tmp_path, [2, 5]), make_survey()
    notes.save(0, survey)
    ((number, found),) = notes.load_all().items()
    assert number == 0
    assert np.array_equal(found.digests, survey.digests)
    assert np.array_equal(found.hashes.words, survey.hashes.words)
    assert found.hashes.is_flat.tolist() == [False, True]
    assert (found.unreadable, found.misnamed) == (survey.unreadable, survey.misnamed)


@pytest.mark.parametrize("damage", ["cut", "other", "empty"])
def test_damaged_notes_are_not_relied_on(damage: str, tmp_path: Path) -> None:
    notes = StatsCache(tmp_path, [2])
    notes.save(0, make_survey())
    path = notes.path_of(0)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        notes.chunk_sizes = [3]  # of other images
    with pytest.warns(VitrineWarning, match="000000"):
        assert notes.load_all() == {}
    with (
        pytest.warns(VitrineWarning),
        pytest.raises(ValueError, match="set VITRINE_CACHE to a folder that all processes share"),
    ):
        notes.require(0)


def test_a_place_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    notes = StatsCache(tmp_path / "file" / "notes", [2])
    with pytest.warns(VitrineWarning, match="cannot be cached"):
        notes.save(0, make_survey())
    notes.save(0, make_survey())


def test_other_images_have_other_notes(tmp_path: Path, cache: Path) -> None:
    write_picture(tmp_path / "data" / "all" / "a.jpg", 0)
    first = open_stats_cache(open_data(tmp_path / "data"), [1])
    write_picture(tmp_path / "data" / "all" / "b.jpg", 1)
    second = open_stats_cache(open_data(tmp_path / "data"), [2])
    assert first is not None
    assert second is not None
    assert first.folder != second.folder
    assert first.folder.parent == cache / "surveys"
    assert open_stats_cache(open_data("digits", "test"), [1]) is None


# A source whose images are never read: its workers hold the write end of a pipe until they end.
ENDLESS = """
import time
import numpy as np
from vitrine.data.quality.image_stats import CHUNK, map_chunks
from vitrine.data.source import ArraySource, Labels

class Endless(ArraySource):
    def fetch(self, index):
        print("reading\\n", end="", flush=True)  # in one write: two workers may print at once
        time.sleep(3600)

pixels = np.zeros((2 * CHUNK, 8, 8, 3), np.uint8)
source = Endless(pixels, Labels.one_each(np.zeros(len(pixels))), ("any",), "endless")
list(map_chunks(source, [range(CHUNK), range(CHUNK, 2 * CHUNK)]))
"""


def test_workers_end_when_the_command_is_killed() -> None:
    reader, writer = os.pipe()
    with subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, text=True, pass_fds=[writer]) as process:
        os.close(writer)
        assert process.stdout is not None
        line = process.stdout.readline()
        process.kill()
    assert line == "reading\n"
    ready, _, _ = select.select([reader], [], [], 600)  # until what hangs is given up; no limit on speed
    os.close(reader)
    assert ready
