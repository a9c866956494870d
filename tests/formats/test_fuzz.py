"""Damaged and hostile files: a clean error or the same model, never a hang, a crash, another exception or a wrong model."""

import json
import pickle
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random

import pytest

from tests.corruptions import (
    ANY_FILE,
    HOSTILE_VALUES,
    JSON,
    SAFETENSORS,
    SAFETENSORS_WITHOUT_CHECKSUM,
    ZIP,
    Corruption,
    list_fields,
    only_metadata,
    replace_field,
)
from tests.formats.hostile import HOSTILE, MARKER, pickle_call
from tests.formats.originals import INDEX, SHARDS, find_source, save_originals
from tests.formats.watching import Strictness, judge, require_clean, watch
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.load import load_checkpoint


@dataclass(frozen=True)
class Kind:
    damaged: tuple[str, ...]
    """One of these is damaged in each attempt."""
    corruptions: tuple[Corruption, ...]
    strictness: Strictness = "exact"
    """Whether a file that loads must equal the original, in everything or unless there is a warning, or only in its parameters:
    our own JSON files may be edited, and those of others have no checksum."""


HF_CONFIGS = ("transformers/config.json", "transformers/preprocessor_config.json")
KINDS: dict[str, Kind] = {
    "own": Kind(("own/model.safetensors",), SAFETENSORS),
    "own config": Kind(("own/config.json",), JSON, "warned"),
    "timm safetensors": Kind(("timm.safetensors",), SAFETENSORS),
    "metadata": Kind(("timm.safetensors",), tuple(only_metadata(corruption) for corruption in JSON)),
    "timm pth": Kind(("timm.pth",), ZIP),
    "side file": Kind(("timm.pth.vitrine.json",), JSON, "warned"),
    "old pth": Kind(("old.pth",), ANY_FILE),
    "google npz": Kind(("google.npz",), ZIP),
    "packed npz": Kind(("packed.npz",), ZIP),
    "shards": Kind(SHARDS, SAFETENSORS_WITHOUT_CHECKSUM),
    "index": Kind((INDEX,), JSON),
    "timm config": Kind(("shards/config.json",), JSON, "parameters"),
    "hf configs": Kind(HF_CONFIGS, JSON, "parameters"),
}
# Our metadata, and the JSON files of other formats.
SWEPT = ("timm.pth.vitrine.json", *HF_CONFIGS, "shards/config.json")
# The values that differ most, for every run.
FEW_VALUES = ("missing", "null", "five", "ten million", "two lines", "list of numbers")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("originals")
    save_originals(folder)
    return folder


@pytest.mark.parametrize("count", [30, pytest.param(500, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_file(kind: str, count: int, originals: Path, tmp_path: Path) -> None:
    require_clean(partial(check_variant, kind, originals, tmp_path / "scratch"), list_variants(kind, count))


def list_variants(kind: str, count: int) -> list[str]:
    corruptions = KINDS[kind].corruptions
    return [f"{seed}: {corruptions[seed % len(corruptions)].__name__}" for seed in range(count)]


def check_variant(kind: str, originals: Path, scratch: Path, label: str) -> str | None:
    """Check one damaged variant; `label` is e.g. "17: flip_bit", with which a reported problem begins."""
    chosen, random = KINDS[kind], Random(f"{kind} {label}")
    corruption = next(c for c in chosen.corruptions if c.__name__ == label.split(": ")[1])
    damaged = random.choice(chosen.damaged)
    changed = corruption(random, (originals / damaged).read_bytes())
    return check_changed(chosen, originals, scratch, damaged, changed)


def check_changed(kind: Kind, originals: Path, scratch: Path, damaged: str, changed: bytes) -> str | None:
    if not scratch.exists():
        shutil.copytree(originals, scratch)
    for name in kind.damaged:
        shutil.copy(originals / name, scratch / name)  # here, because the last attempt may have killed its process
    (scratch / damaged).write_bytes(changed)
    source = find_source(damaged)
    return judge(scratch / source, load_original(originals / source), kind.strictness)


@cache
def load_original(path: Path) -> Checkpoint:
    return load_checkpoint(path)


@pytest.mark.parametrize("values", [FEW_VALUES, pytest.param(HOSTILE_VALUES, marks=pytest.mark.full)], ids=["few", "all"])
@pytest.mark.parametrize("damaged", SWEPT)
def test_every_field_of_json(damaged: str, values: Iterable[str], originals: Path, tmp_path: Path) -> None:
    fields = list_fields(json.loads((originals / damaged).read_bytes()))
    labels = [f"{damaged} {'/'.join(way)}: {name}" for way in fields for name in values]
    require_clean(partial(check_field, originals, tmp_path / "scratch"), labels)


def check_field(originals: Path, scratch: Path, label: str) -> str | None:
    damaged, field = label.split(" ", 1)
    way, name = field.split(": ")
    changed = replace_field((originals / damaged).read_bytes(), way.split("/"), HOSTILE_VALUES[name])
    strictness = "warned" if damaged.endswith(".vitrine.json") else "parameters"
    return check_changed(Kind((damaged,), (), strictness), originals, scratch, damaged, changed)


@pytest.fixture(scope="module")
def outcomes(originals: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    return watch(partial(check_hostile, originals, tmp_path_factory.mktemp("hostile")), list(HOSTILE))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file(name: str, outcomes: dict[str, str | None]) -> None:
    assert outcomes[name] is None, outcomes[name]


def check_hostile(originals: Path, scratch: Path, name: str) -> str | None:
    folder = scratch / str(list(HOSTILE).index(name))
    shutil.copytree(originals, folder)
    outcome = judge(HOSTILE[name](folder), None)
    has_run = (folder / MARKER).exists()
    shutil.rmtree(folder)  # leave no terabyte and no pipe in pytest's folders
    return f"it ran the pickle's command ({outcome})" if has_run else outcome


def test_the_hostile_pickle_works(tmp_path: Path) -> None:
    """Without this, the absence of its marker would show nothing."""
    pickle.loads(pickle_call(tmp_path))
    assert (tmp_path / MARKER).exists()
