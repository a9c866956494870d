"""Datasets of a local hub server, downloaded by `datasets` in a separate process, and of local files."""

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests import hub_server
from tests.data.sources.test_parquet import IMAGE, NAMES, draw, make_images, make_parquet, pa, write
from tests.hub_server import Fault, Files, HubHandler, Repository, serve_hub, tag
from vitrine.data.image import BadImage
from vitrine.data.sources.hub import HubSource, Reference, list_hub_splits, open_hub, open_loaded, parse_reference

datasets = pytest.importorskip("datasets")

TREE = re.compile(r"/api/models/(?P<repository>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)(?:/(?P<folder>.+))?")

# Requests are JSON on the command line; results are printed one per line.
OPEN = """
import json, pickle, sys, time, warnings
from vitrine.data.sources.hub import list_hub_splits, open_hub

assert "datasets" not in sys.modules, "the module must not import datasets, which is slow"
time.sleep = lambda seconds: sys.exit("it waits before it retries")
for spec, split in json.loads(sys.argv[1]):
    outcome = {"warnings": []}
    warnings.showwarning = lambda message, *place: outcome["warnings"].append(str(message))
    try:
        outcome["splits"] = list_hub_splits(spec)
        source = pickle.loads(pickle.dumps(open_hub(spec, split)))
        outcome["images"] = [source.fetch(index).hex() for index in range(len(source))]
        outcome["names"] = [source.name(index) for index in range(len(source))]
        outcome["labels"] = [source.labels[index] for index in range(len(source))]
        outcome["classes"] = source.class_names
        outcome["files"] = [path.exists() for path in source.files()]
    except Exception as error:
        outcome.update(error=str(error), kind=type(error).__name__)
    print(json.dumps(outcome), flush=True)
"""

Outcome = dict[str, Any]
Outcomes = dict[tuple[str, str | None], Outcome]


class DatasetHandler(HubHandler):
    """Server with the addresses of datasets, which are those of models with a prefix, and listings by folder."""

    def do_GET(self) -> None:
        self.path = re.sub(r"^/api/datasets/", "/api/models/", re.sub(r"^/datasets/", "/", self.path))
        asked = TREE.fullmatch(urlsplit(self.path).path)
        repository = self.hub.repositories.get(asked["repository"]) if asked else None
        found = repository.find_files(asked["revision"]) if asked and repository else None
        if asked is None or found is None:
            return super().do_GET()
        is_deep = parse_qs(urlsplit(self.path).query).get("recursive") == ["true"]
        return self.send_folder(found[1], asked["folder"] or "", is_deep)

    do_HEAD = do_GET

    def send_folder(self, files: Files, folder: str, is_deep: bool) -> None:
        start = f"{folder}/" if folder else ""
        below = {path: body for path, body in files.items() if path.startswith(start)}
        if not below:
            return self.refuse(404, "EntryNotFound")
        folders = {start + path.removeprefix(start).split("/")[0] for path in below if "/" in path.removeprefix(start)}
        entries = [
            {"type": "file", "path": path, "size": len(body), "oid": tag(body)}
            for path, body in below.items()
            if is_deep or "/" not in path.removeprefix(start)
        ]
        self.send_json([*({"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in folders), *entries])
        return None

    def send_file(self, fault: Fault | None, commit: str, files: Files, path: str) -> None:
        """Send byte ranges too, with which `datasets` inspects files."""
        piece = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if piece is None or fault is not None or path not in files:
            return super().send_file(fault, commit, files, path)
        start, end, body = int(piece[1]), min(int(piece[2]), len(files[path]) - 1), files[path]
        content = body[start : end + 1]
        headers = {
            "Content-Range": f"bytes {start}-{end}/{len(body)}",
            "Content-Length": str(len(content)),
            "ETag": f'"{tag(body)}"',
        }
        return self.send(206, headers, content)


def read_files(folder: Path) -> Files:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.parquet")}


def build_hub(folder: Path) -> dict[str, Repository]:
    cats = read_files(make_parquet(folder / "cats"))
    newer = {name: body for name, body in cats.items() if "train" in name}
    small = {"image": make_images(range(3)), "label": ["b", "a", "c"]}
    write(folder / "text" / "small" / "train-00000-of-00001.parquet", small)
    write(folder / "text" / "small" / "test-00000-of-00001.parquet", {"image": make_images(range(1)), "label": ["d"]})
    write(folder / "text" / "large" / "train-00000-of-00001.parquet", {"image": make_images(range(5)), "label": ["x"] * 5})
    card = b"""---
configs:
- config_name: small
  data_dir: small
- config_name: large
  data_dir: large
dataset_info:
- config_name: small
  features:
  - {name: image, dtype: image}
  - {name: label, dtype: string}
---
"""
    return {
        "me/cats": Repository(revisions={"main": cats, "v2": newer}),
        "me/text": Repository(revisions={"main": {"README.md": card, **read_files(folder / "text")}}),
        "me/empty": Repository(revisions={"main": {"notes.txt": b"nothing"}}),
        "me/gated": Repository(revisions={"main": cats}, fault="gated"),
        "me/broken": Repository(revisions={"main": cats}, fault="broken"),
        "me/silent": Repository(revisions={"main": cats}, fault="silent"),
        "me/cut": Repository(revisions={"main": {"train.parquet": b"PAR1 and no more"}}),
    }


def run(endpoint: str, home: Path, *asked: tuple[str, str | None], **settings: str) -> Outcomes:
    strange = ("HF_", "HUGGING", "XDG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(strange) and "PROXY" not in name.upper()}
    patient = {"HF_HUB_ETAG_TIMEOUT": "300", "HF_HUB_DOWNLOAD_TIMEOUT": "300", "HF_HUB_DISABLE_TELEMETRY": "1"}
    environment = {**kept, **patient, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), **settings}
    command = [sys.executable, "-c", OPEN, json.dumps(asked)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""  # no progress bars and no logs
    return dict(zip(asked, map(json.loads, result.stdout.splitlines()), strict=True))


ASKED = [
    ("hf://datasets/me/cats", "train"),
    ("hf://datasets/me/cats", "val"),
    ("hf://datasets/me/cats", "test"),
    ("hf://datasets/me/cats@v2", "train"),
    ("hf://datasets/me/cats@absent", "train"),
    ("hf://datasets/me/text:small", "train"),
    ("hf://datasets/me/text:small", "test"),
    ("hf://datasets/me/text:middle", "train"),
    ("hf://datasets/me/empty", "train"),
    ("hf://datasets/me/absent", "train"),
    ("hf://datasets/me/gated", "train"),
    ("hf://datasets/me/cut", "train"),
    ("hf://datasets/me/broken", "train"),
]
SILENT = ("hf://datasets/me/silent", "train")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    folder = tmp_path_factory.mktemp("hub")
    repositories = build_hub(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub_server, "HubHandler", DatasetHandler)
        with serve_hub(repositories) as hub:
            fetched = run(hub.endpoint, folder / "home", *ASKED)
            # Separately: the short timeout is only for the server that does not answer.
            fetched |= run(hub.endpoint, folder / "home", SILENT, HF_HUB_ETAG_TIMEOUT="1")
    # The server is gone now, and the cache remains; of me/cats it has v2 as its newest revision.
    commits = {revision: repositories["me/cats"].compute_commit(revision) for revision in ("main", "v2")}
    asked = ["text:small", "new", "cats@v2", f"cats@{commits['v2']}", f"cats@{commits['main']}", "text:middle"]
    specs = [(f"hf://datasets/me/{name}", "train") for name in asked]
    modes = {
        "offline": run(hub.endpoint, folder / "home", *specs, HF_HUB_OFFLINE="1"),
        "cut off": run(hub.endpoint, folder / "home", *specs),
    }
    for mode, found in modes.items():
        for (spec, split), outcome in found.items():
            for revision, commit in commits.items():
                spec = spec.replace(commit, f"COMMIT-{revision}")
            fetched[f"{spec} {mode}", split] = outcome
    return fetched


def test_splits_are_downloaded(outcomes: Outcomes) -> None:
    train, val = outcomes["hf://datasets/me/cats", "train"], outcomes["hf://datasets/me/cats", "val"]
    assert train["images"] == [draw(seed).hex() for seed in range(8)], train.get("error")
    assert train["labels"] == [seed % 3 for seed in range(8)]
    assert train["names"] == [f"hf://datasets/me/cats/train[{index}]" for index in range(8)]
    assert (train["classes"], train["splits"]) == (NAMES, ["train", "val"])
    assert train["files"]
    assert all(train["files"])
    assert val["images"] == [draw(seed).hex() for seed in range(8, 11)]


@pytest.mark.parametrize("mode", ["offline", "cut off"])
def test_cached_copy_is_used_without_the_hub(outcomes: Outcomes, mode: str) -> None:
    online, cached = outcomes["hf://datasets/me/text:small", "train"], outcomes[f"hf://datasets/me/text:small {mode}", "train"]
    assert {**cached, "warnings": []} == online
    same = outcomes[f"hf://datasets/me/cats@COMMIT-v2 {mode}", "train"]
    assert same["images"] == [draw(seed).hex() for seed in range(8)]
    for outcome in (cached, same):  # offline mode was set by the user, so there is no warning
        assert len(outcome["warnings"]) == (mode == "cut off")
        assert all("cached copy" in warning for warning in outcome["warnings"])


@pytest.mark.parametrize("mode", ["offline", "cut off"])
def test_cached_copy_of_another_revision_gives_a_warning_or_an_error(outcomes: Outcomes, mode: str) -> None:
    named = outcomes[f"hf://datasets/me/cats@v2 {mode}", "train"]
    assert len(named["images"]) == 8
    [message] = named["warnings"]
    assert "cached copy" in message
    assert "not in the cache" in outcomes[f"hf://datasets/me/cats@COMMIT-main {mode}", "train"]["error"]


def test_revisions_and_configurations(outcomes: Outcomes) -> None:
    newer = outcomes["hf://datasets/me/cats@v2", "train"]
    assert (newer["splits"], len(newer["images"])) == (["train"], 8)
    small, test = outcomes["hf://datasets/me/text:small", "train"], outcomes["hf://datasets/me/text:small", "test"]
    assert small["images"] == [draw(seed).hex() for seed in range(3)]
    assert (small["labels"], test["labels"]) == ([1, 0, 2], [3])
    assert small["classes"] == test["classes"] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("spec", "split", "message"),
    [
        ("hf://datasets/me/cats", "test", "no split 'test'"),
        ("hf://datasets/me/cats@absent", "train", "'absent'"),
        ("hf://datasets/me/text:middle", "train", "middle"),
        ("hf://datasets/me/empty", "train", "columns text"),
        ("hf://datasets/me/absent", "train", "token"),
        ("hf://datasets/me/gated", "train", "gated"),
        ("hf://datasets/me/cut", "train", "ArrowInvalid"),
        ("hf://datasets/me/broken", "train", "status 500"),
        ("hf://datasets/me/silent", "train", "ReadTimeout"),
        ("hf://datasets/me/new offline", "train", "HF_HUB_OFFLINE"),
        ("hf://datasets/me/new cut off", "train", "ConnectError: "),
        ("hf://datasets/me/text:middle offline", "train", "HF_HUB_OFFLINE"),
        ("hf://datasets/me/text:middle cut off", "train", "not completely cached"),
    ],
)
def test_failures_are_one_line_errors(outcomes: Outcomes, spec: str, split: str, message: str) -> None:
    outcome = outcomes[spec, split]
    assert outcome["kind"] == ("OSError" if "is not completely cached" in outcome["error"] else "ValueError")
    assert message in outcome["error"]
    assert outcome["error"].startswith(spec.removesuffix(" offline").removesuffix(" cut off"))
    assert "\n" not in outcome["error"]


def test_references() -> None:
    assert parse_reference("hf://datasets/mnist") == Reference("mnist", None, None)
    assert parse_reference("hf://datasets/a/b") == Reference("a/b", None, None)
    assert parse_reference("hf://datasets/a/b:c") == Reference("a/b", "c", None)
    assert parse_reference("hf://datasets/a/b@refs/pr/1") == Reference("a/b", None, "refs/pr/1")
    assert parse_reference("hf://datasets/a/b:20220301.en@v1.0") == Reference("a/b", "20220301.en", "v1.0")


@pytest.mark.parametrize("text", ["", "a/b/c", "../b", "a/b@", "a/b:", "a/b@v:c", "a b/c", "a/b@../x", "a--b/c", "a/b\n", "/b"])
def test_invalid_references_are_errors(text: str) -> None:
    for call in (list_hub_splits, lambda spec: open_hub(spec, "train")):
        with pytest.raises(ValueError, match="does not name"):
            call(f"hf://datasets/{text}")


def load(path: Path, cache: Path) -> Any:
    """Load a folder with the function that also loads from the hub."""
    return datasets.load_dataset(str(path), cache_dir=str(cache))


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def test_image_folder_loaded_by_datasets(tmp_path: Path) -> None:
    """`datasets` keeps paths and no bytes here."""
    for split, count in (("train", 4), ("test", 2)):
        for seed in range(count):
            path = tmp_path / "data" / split / NAMES[seed % 2] / f"{seed}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(draw(seed))
    loaded = load(tmp_path / "data", tmp_path / "cache")
    source = open_loaded(loaded, "here", "train")
    assert sorted(source.fetch(index) for index in range(4)) == sorted(draw(seed) for seed in range(4))
    assert [source.class_names[source.labels[index]] for index in range(4)] == ["cat", "cat", "dog", "dog"]
    again = pickle.loads(pickle.dumps(source))
    assert again.fetch(3) == source.fetch(3)
    source.read(0)
    assert len(pickle.dumps(source)) < 100_000


def build(rows: dict[str, Any], **features: Any) -> Any:
    return datasets.Dataset.from_dict(rows, features=datasets.Features(features))


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"bytes": draw(seed), "path": None} for seed in range(count)]


def test_columns_are_found_by_their_features() -> None:
    kind = datasets.ClassLabel(names=NAMES)
    source = HubSource(build({"picture": rows_of(2), "animal": [2, 0]}, picture=datasets.Image(), animal=kind), "x")
    assert (source.labels.values.tolist(), source.class_names, source.name(1)) == ([2, 0], tuple(NAMES), "x[1]")
    several = HubSource(
        build({"image": rows_of(2), "labels": [[2, 0], []]}, image=datasets.Image(), labels=datasets.List(kind)), "x"
    )
    assert [several.labels[index] for index in range(2)] == [(2, 0), ()]
    without = HubSource(build({"image": rows_of(1)}, image=datasets.Image()), "x")
    assert (without.labels[0], without.class_names) == ((), ())
    hidden = HubSource(build({"image": rows_of(2), "label": [-1, -1]}, image=datasets.Image(), label=kind), "x")
    assert (hidden.labels[1], hidden.class_names) == ((), ())
    with pytest.raises(ValueError, match=r"x\[1\].* without"):
        HubSource(build({"image": rows_of(2), "label": [1, -1]}, image=datasets.Image(), label=kind), "x")
    with pytest.raises(ValueError, match="columns a, b"):
        HubSource(build({"a": rows_of(1), "b": rows_of(1)}, a=datasets.Image(), b=datasets.Image()), "x")
    with pytest.raises(ValueError, match="columns text"):
        HubSource(build({"text": ["a"]}, text=datasets.Value("string")), "x")


def test_rows_without_an_image(tmp_path: Path) -> None:
    rows = [
        None,
        {"bytes": None, "path": "relative.png"},
        {"bytes": b"nothing", "path": None},
        {"bytes": draw(0), "path": None},
    ]
    write(tmp_path / "data" / "train.parquet", {"image": pa.array(rows, IMAGE)}, {"image": {"_type": "Image"}})
    source = open_loaded(load(tmp_path / "data", tmp_path / "cache"), "here", "train")
    for index in range(3):
        with pytest.raises(BadImage, match=rf"here/train\[{index}\]"):
            source.read(index)
    assert source.read(3)[0].width == 7


def test_splits_by_other_names() -> None:
    dataset = build({"image": rows_of(1)}, image=datasets.Image())
    assert len(open_loaded({"full": dataset}, "x", None)) == 1
    assert len(open_loaded({"validation": dataset, "extra": dataset}, "x", "val")) == 1
    with pytest.raises(ValueError, match="splits a, b"):
        open_loaded({"a": dataset, "b": dataset}, "x", None)


def test_without_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"pip install 'vitrine\[datasets\]'"):
        open_hub("hf://datasets/a/b", "train")


def test_offline_mode_of_datasets_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("vitrine.core.hub.list_repository_files", lambda *asked: pytest.fail("the hub was called"))
    with pytest.raises(OSError, match="HF_DATASETS_OFFLINE"):
        open_hub("hf://datasets/nobody/nothing", "train")
