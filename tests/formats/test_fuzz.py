"""Damaged and hostile files: one clean error or the very same model, never a hang, a crash, another exception, a wrong model.

Files are loaded in processes apart, one for each kind of file and watched from outside, because a hang or a crash must be
laid to the attempt that caused it and leave the others alone. A complaint begins with the seed and the corruption; to repeat
it, call `check_variant(kind, originals, scratch, "17: flip_bit")`.
"""

import io
import json
import math
import multiprocessing
import os
import pickle
import resource
import shutil
import struct
import sys
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.filling import build_filled
from vitrine.data.preprocessing import build_imagenet_preprocessing
from vitrine.formats import Checkpoint, load_checkpoint, save_checkpoint
from vitrine.models.config import ViTConfig

Corruption = Callable[[Random, bytes], bytes]
Check = Callable[[str], str | None]
"""From the label of an attempt to what is wrong with its outcome."""

# Two heads where 64 wide ones are usual: a description that got lost without an error shows as another model.
CONFIG = ViTConfig(width=64, depth=1, num_heads=2, mlp_dim=8, patch_size=2, image_size=(4, 4), num_classes=3, gelu="erf")

PATIENCE_S = 60  # no limit on speed: an attempt takes milliseconds
MEMORY_BYTES = 3 * 2**30  # for each process, so that what asks for everything does not get the machine's
MAX_GROWTH_BYTES = 2**28  # what reading files of a few megabytes may take at its height
BOMB_MIB = 1024

# The server imports once and has no threads, so forking it is quick and safe. The first is what torch itself imports, for
# seconds, when a model on the meta device is initialised.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["vitrine.formats.load", "vitrine.formats.save", "pytest"])

# One worker for all: it starts the server once.
pytestmark = pytest.mark.xdist_group("fuzz")


# The originals.


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("originals")
    checkpoint = Checkpoint(build_filled(CONFIG), build_imagenet_preprocessing(CONFIG.image_size), ("cat", "dog", "eel"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # erf is not usual for google-2020
        save_checkpoint(checkpoint, folder / "own")
        save_checkpoint(checkpoint, folder / "timm.safetensors", "timm")
        save_checkpoint(checkpoint, folder / "timm.pth", "timm")
        save_checkpoint(checkpoint, folder / "google.npz", "google-2020")
        save_checkpoint(checkpoint, folder / "transformers", "hf")
    # Two more ways to write the same tensors.
    torch.save(torch.load(folder / "timm.pth", weights_only=True), folder / "old.pth", _use_new_zipfile_serialization=False)
    with np.load(folder / "google.npz") as arrays:
        np.savez_compressed(folder / "packed.npz", **arrays)
    shutil.copy(folder / "timm.pth.vitrine.json", folder / "old.pth.vitrine.json")
    shutil.copy(folder / "google.npz.vitrine.json", folder / "packed.npz.vitrine.json")
    # As others write them, without our description.
    weights = folder / "transformers" / "model.safetensors"
    save_file(load_file(weights), weights, metadata={"format": "pt"})
    write_shards(folder / "shards", load_file(folder / "timm.safetensors"))
    return folder


def write_shards(folder: Path, state: dict[str, torch.Tensor]) -> None:
    folder.mkdir()
    names = sorted(state)
    shards = {f"model-{i + 1:05d}-of-00002.safetensors": names[i::2] for i in range(2)}
    for shard, held in shards.items():
        save_file({name: state[name] for name in held}, folder / shard)
    places = {name: shard for shard, held in shards.items() for name in held}
    index = {"metadata": {"total_size": sum(tensor.nbytes for tensor in state.values())}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    known = {"input_size": [3, 4, 4], "interpolation": "bicubic", "crop_pct": 0.9, "mean": [0.5] * 3, "std": [0.5] * 3}
    (folder / "config.json").write_text(json.dumps({"architecture": "vit", "num_classes": 3, "pretrained_cfg": known}))


# Corruptions of any file.


def choose_place(random: Random, size: int) -> int:
    """Half of them near one of the ends, where headers and directories are."""
    if size > 4000 and random.random() < 0.5:
        return random.choice((random.randrange(2000), size - 1 - random.randrange(2000)))
    return random.randrange(size)


def truncate(random: Random, content: bytes) -> bytes:
    return content[: choose_place(random, len(content))]


def flip_bit(random: Random, content: bytes) -> bytes:
    place = choose_place(random, len(content))
    return content[:place] + bytes([content[place] ^ 1 << random.randrange(8)]) + content[place + 1 :]


def overwrite_run(random: Random, content: bytes) -> bytes:
    place, run = choose_place(random, len(content)), random.randbytes(random.randint(1, 64))
    return (content[:place] + run + content[place + len(run) :])[: len(content)]


def delete_run(random: Random, content: bytes) -> bytes:
    place = choose_place(random, len(content))
    return content[:place] + content[place + random.choice((1, 8, 64, 4096)) :]


def insert_run(random: Random, content: bytes) -> bytes:
    place = choose_place(random, len(content))
    return content[:place] + random.randbytes(random.choice((1, 8, 64, 4096))) + content[place:]


def zero_block(random: Random, content: bytes) -> bytes:
    place, size = choose_place(random, len(content)), random.choice((16, 512, 4096))
    return (content[:place] + bytes(size) + content[place + size :])[: len(content)]


def swap_blocks(random: Random, content: bytes) -> bytes:
    size = min(random.choice((4, 64, 512)), len(content) // 2)
    first, second = sorted(random.sample(range(len(content) // size), 2))
    a, b = first * size, second * size
    return content[:a] + content[b : b + size] + content[a + size : b] + content[a : a + size] + content[b + size :]


ANY_FILE = (truncate, flip_bit, overwrite_run, delete_run, insert_run, zero_block, swap_blocks)


# Corruptions of safetensors: eight bytes of length, a header in JSON, the numbers.


def split_safetensors(content: bytes) -> tuple[dict[str, Any], bytes]:
    start = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:start]), content[start:]


def join_safetensors(header: dict[str, Any], numbers: bytes) -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + numbers


def tamper_header_length(random: Random, content: bytes) -> bytes:
    length = int.from_bytes(content[:8], "little")
    near = (length - 8, length - 1, length + 1, length + 8, length + 4096, random.randrange(2 * len(content)))
    wrong = random.choice((*near, 0, 1, 10**8, 2**31, 2**32 + length, 2**63, 2**64 - 8 + length % 8))
    return wrong.to_bytes(8, "little") + content[8:]


def tamper_header_field(random: Random, content: bytes) -> bytes:
    header, numbers = split_safetensors(content)
    entry = header[random.choice([name for name in header if name != "__metadata__"])]
    field = random.choice(("dtype", "shape", "data_offsets"))
    if field == "dtype":
        entry[field] = random.choice(("F64", "F16", "BF16", "I32", "U32", "F8_E4M3", "BOOL", "f32", "", None, 32))
    else:
        entry[field] = random.choice(tamper_numbers(random, entry[field]))
    return join_safetensors(header, numbers)


def tamper_numbers(random: Random, numbers: list[int]) -> list[Any]:
    """Ways to be wrong about a shape or a range."""
    place = random.randrange(len(numbers))
    replaced = [[*numbers[:place], wrong, *numbers[place + 1 :]] for wrong in (-1, 0, 4, 2**32, 2**62, 10**30, 0.5, "1", None)]
    shifted = [number + random.choice((-4, 4, 1024)) for number in numbers]
    return [*replaced, shifted, numbers[::-1], [1, *numbers], [*numbers, 2], numbers[1:], [], None, {"0": 1}]


def rename_tensor(random: Random, content: bytes) -> bytes:
    header, numbers = split_safetensors(content)
    old, new = choose_names(random, [name for name in header if name != "__metadata__"])
    swapped = {old: new, new: old}
    return join_safetensors({swapped.get(name, name): value for name, value in header.items()}, numbers)


def choose_names(random: Random, names: list[str]) -> tuple[str, str]:
    """A name and what it becomes: another tensor's, or one that nothing has."""
    old, other = random.sample(names, 2)
    strange = ("", "two\nlines", "../../outside", "x" * 100_000, f"module.{old}", f"params/{old}", old.upper(), f"{old}\0")
    return old, random.choice((other, *strange))


def only_header(corruption: Corruption) -> Corruption:
    def corrupt(random: Random, content: bytes) -> bytes:
        start = 8 + int.from_bytes(content[:8], "little")
        return corruption(random, content[:start]) + content[start:]

    corrupt.__name__ = f"{corruption.__name__}_of_header"
    return corrupt


def rename_apart(random: Random, content: bytes) -> bytes:
    """As above, but never to another tensor's name."""
    header, numbers = split_safetensors(content)
    old, new = choose_names(random, list(header))
    return join_safetensors({f"{new}{old}" if name == old else name: value for name, value in header.items()}, numbers)


SAFETENSORS = (*ANY_FILE, tamper_header_length, tamper_header_field, rename_tensor)


# Corruptions of zip archives: members with small headers, a directory at the end.

# Place and size of the fields of a directory entry, and of the record that ends the file.
ENTRY_FIELDS = [(place, 2) for place in (4, 6, 8, 10, 12, 14, 28, 30, 32, 34, 36)]
ENTRY_FIELDS += [(place, 4) for place in (16, 20, 24, 38, 42)]
ENTRY_FIELDS += [(46, 1)]  # the first letter of its name
END_FIELDS = [(4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)]


def tamper_directory(random: Random, content: bytes) -> bytes:
    entry, end = random.choice([start for start, _ in iterate_directory(content)]), content.rindex(b"PK\5\6")
    fields = [(entry + place, size) for place, size in ENTRY_FIELDS] + [(end + place, size) for place, size in END_FIELDS]
    place, size = random.choice(fields)
    wrong = random.choice((bytes(size), b"\xff" * size, b"\1" + bytes(size - 1), random.randbytes(size)))
    return content[:place] + wrong + content[place + size :]


def iterate_directory(content: bytes) -> Iterator[tuple[int, str]]:
    """Where each entry starts, and the name of its member."""
    count, _, start = struct.unpack_from("<HII", content, content.rindex(b"PK\5\6") + 10)
    for _ in range(count):
        sizes = struct.unpack_from("<HHH", content, start + 28)
        yield start, content[start + 46 : start + 46 + sizes[0]].decode()
        start += 46 + sum(sizes)


def rewrite_zip(content: bytes, change: Callable[[str, bytes], tuple[str, bytes]]) -> bytes:
    """With checksums that fit, so that the damage is not found by them."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(written, "w") as target:
        for name in archive.namelist():
            target.writestr(*change(name, archive.read(name)))
    return written.getvalue()


def list_members(content: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(content)).namelist()


def tamper_member(random: Random, content: bytes) -> bytes:
    """The pickle of torch's archives, the numbers of either, or an array's own header."""
    members = list_members(content)
    pickles = [name for name in members if name.endswith(".pkl")]
    chosen = random.choice(pickles if pickles and random.random() < 0.8 else members)
    corruption = random.choice((truncate, flip_bit, overwrite_run, delete_run, insert_run))
    size = 128 if chosen.endswith(".npy") and random.random() < 0.8 else None

    def change(name: str, member: bytes) -> tuple[str, bytes]:
        return name, corruption(random, member[:size]) + (member[size:] if size else b"") if name == chosen else member

    return rewrite_zip(content, change)


def rename_member(random: Random, content: bytes) -> bytes:
    old, new = choose_names(random, list_members(content))
    swapped = {old: new[:60_000] or "x", new: old}  # zipfile writes no empty name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile notices a name that occurs twice
        return rewrite_zip(content, lambda name, member: (swapped.get(name, name), member))


ZIP = (*ANY_FILE, tamper_directory, tamper_member, rename_member)


# Corruptions of JSON.


class Missing:
    """In place of a value: the field is left out."""


HOSTILE_VALUES: dict[str, Any] = {
    "missing": Missing,
    "null": None,
    "true": True,
    "minus one": -1,
    "zero": 0,
    "five": 5,
    "a half": 0.5,
    "the least": 5e-324,
    "ten million": 10**7,
    "a billion": 10**9,
    "a quintillion": 10**18,
    "400 digits": 10**400,
    "nan": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "text": "gelu_pytorch_tanh",
    "two lines": "two\nlines",
    "half a character": "\ud800",
    "list": [],
    "list of numbers": [3, 4, 4],
    "list of lists": [[1], [2]],
    "object": {},
    "deep list": json.loads("[" * 500 + "]" * 500),
}
# The ones that differ most, for every run.
FEW_VALUES = ("missing", "null", "five", "the least", "ten million", "two lines", "list of numbers", "object")


def list_fields(content: Any) -> list[tuple[str, ...]]:
    """The way to every value, of lists only to the first."""
    if isinstance(content, dict):
        return [(name, *rest) for name, value in content.items() for rest in ((), *list_fields(value))]
    return [("0", *rest) for value in content[:1] for rest in ((), *list_fields(value))] if isinstance(content, list) else []


def replace_field(content: Any, way: Sequence[str], value: Any) -> None:
    for step in way[:-1]:
        content = content[int(step) if isinstance(content, list) else step]
    last = int(way[-1]) if isinstance(content, list) else way[-1]
    if value is Missing:
        del content[last]
    else:
        content[last] = value


def tamper_json(random: Random, content: bytes) -> bytes:
    parsed = json.loads(content)
    replace_field(parsed, random.choice(list_fields(parsed)), random.choice(list(HOSTILE_VALUES.values())))
    return json.dumps(parsed).encode()


def rename_field(random: Random, content: bytes) -> bytes:
    parsed = json.loads(content)
    way = random.choice(list_fields(parsed))
    old = json.dumps(way[-1])
    return content.replace(old.encode(), json.dumps(random.choice(list_fields(parsed))[-1]).encode())


JSON = (*ANY_FILE, tamper_json, rename_field)


def only_metadata(corruption: Corruption) -> Corruption:
    """Of the description that safetensors carries, in a header that is otherwise whole."""

    def corrupt(random: Random, content: bytes) -> bytes:
        header, numbers = split_safetensors(content)
        metadata = header["__metadata__"]
        metadata["vitrine"] = corruption(random, metadata["vitrine"].encode()).decode(errors="replace")
        return join_safetensors(header, numbers)

    corrupt.__name__ = f"{corruption.__name__}_of_metadata"
    return corrupt


# What is damaged, and how.


@dataclass(frozen=True)
class Kind:
    source: str
    """What is loaded."""
    damaged: tuple[str, ...]
    """One of these is damaged in each attempt."""
    corruptions: tuple[Corruption, ...]
    is_exact: bool = True
    """What loads must equal the original in everything. Otherwise in its parameters: JSON has no checksum of its own, and one
    name or number in place of another cannot be noticed."""


SHARDS = tuple(f"shards/model-{number}-of-00002.safetensors" for number in ("00001", "00002"))
# Without a checksum damaged numbers cannot be told from others, nor exchanged names: so here only what can be noticed.
SHARD_CORRUPTIONS = (
    truncate,
    *(only_header(corruption) for corruption in ANY_FILE if corruption is not swap_blocks),
    tamper_header_length,
    tamper_header_field,
    rename_apart,
)
KINDS: dict[str, Kind] = {
    "own": Kind("own", ("own/model.safetensors",), SAFETENSORS),
    "own config": Kind("own", ("own/config.json",), JSON, is_exact=False),
    "timm safetensors": Kind("timm.safetensors", ("timm.safetensors",), SAFETENSORS),
    "metadata": Kind("timm.safetensors", ("timm.safetensors",), tuple(only_metadata(corruption) for corruption in JSON)),
    "timm pth": Kind("timm.pth", ("timm.pth",), ZIP),
    "side file": Kind("timm.pth", ("timm.pth.vitrine.json",), JSON, is_exact=False),
    "old pth": Kind("old.pth", ("old.pth",), ANY_FILE),
    "google npz": Kind("google.npz", ("google.npz",), ZIP),
    "packed npz": Kind("packed.npz", ("packed.npz",), ZIP),
    "shards": Kind("shards", SHARDS, SHARD_CORRUPTIONS),
    "index": Kind("shards", ("shards/model.safetensors.index.json",), JSON),
    "timm config": Kind("shards", ("shards/config.json",), JSON, is_exact=False),
    "hf configs": Kind(
        "transformers", ("transformers/config.json", "transformers/preprocessor_config.json"), JSON, is_exact=False
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_file(kind: str, originals: Path, tmp_path: Path) -> None:
    require_clean(partial(check_variant, kind, originals, tmp_path / "scratch"), list_variants(kind, 50))


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_file_many_times(kind: str, originals: Path, tmp_path: Path) -> None:
    require_clean(partial(check_variant, kind, originals, tmp_path / "scratch"), list_variants(kind, 500))


def list_variants(kind: str, count: int) -> list[str]:
    corruptions = KINDS[kind].corruptions
    return [f"{seed}: {corruptions[seed % len(corruptions)].__name__}" for seed in range(count)]


def check_variant(kind: str, originals: Path, scratch: Path, label: str) -> str | None:
    chosen, random = KINDS[kind], Random(f"{kind} {label}")
    corruption = next(c for c in chosen.corruptions if c.__name__ == label.split(": ")[1])
    damaged = random.choice(chosen.damaged)
    changed = corruption(random, (originals / damaged).read_bytes())
    return check_changed(chosen, originals, scratch, damaged, changed)


def check_changed(kind: Kind, originals: Path, scratch: Path, damaged: str, changed: bytes) -> str | None:
    if not scratch.exists():
        shutil.copytree(originals, scratch)
    for name in kind.damaged:
        shutil.copy(originals / name, scratch / name)  # before, because the last attempt may have ended its process
    (scratch / damaged).write_bytes(changed)
    return judge(scratch / kind.source, load_original(originals / kind.source), is_exact=kind.is_exact)


# Of our description and of what others put beside their weights.
SWEPT = ("timm.pth.vitrine.json", "transformers/config.json", "transformers/preprocessor_config.json", "shards/config.json")


@pytest.mark.parametrize("damaged", SWEPT)
def test_every_field_of_json(damaged: str, originals: Path, tmp_path: Path) -> None:
    require_clean_fields(damaged, FEW_VALUES, originals, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("damaged", SWEPT)
def test_every_field_of_json_by_every_value(damaged: str, originals: Path, tmp_path: Path) -> None:
    require_clean_fields(damaged, HOSTILE_VALUES, originals, tmp_path)


def require_clean_fields(damaged: str, values: Iterable[str], originals: Path, folder: Path) -> None:
    fields = list_fields(json.loads((originals / damaged).read_bytes()))
    labels = [f"{damaged} {'/'.join(way)}: {name}" for way in fields for name in values]
    require_clean(partial(check_field, originals, folder / "scratch"), labels)


def check_field(originals: Path, scratch: Path, label: str) -> str | None:
    damaged, field = label.split(" ", 1)
    way, name = field.split(": ")
    content = json.loads((originals / damaged).read_bytes())
    replace_field(content, way.split("/"), HOSTILE_VALUES[name])
    kind = Kind(find_source(damaged), (damaged,), JSON, is_exact=False)
    return check_changed(kind, originals, scratch, damaged, json.dumps(content).encode())


def find_source(file: str) -> str:
    """What is loaded to come across a file: the folder it is in, or the weights it lies beside."""
    return file.split("/")[0].removesuffix(".vitrine.json")


# The outcome.


@cache
def load_original(path: Path) -> Checkpoint:
    return load_checkpoint(path)


def judge(path: Path, original: Checkpoint | None, *, is_exact: bool = True) -> str | None:
    """What is wrong with loading `path`; without an original there must be an error."""
    try:
        loaded = load_checkpoint(path)
    except (ValueError, OSError) as error:
        return judge_text(str(error), path)
    except BaseException as error:  # a panic in Rust is no Exception
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} from {place.filename}:{place.lineno}: {str(error)[:300]!r}"
    if original is None:
        return "it loaded"
    state, expected = loaded.model.state_dict(), original.model.state_dict()
    if state.keys() != expected.keys() or not all(is_same(state[name], expected[name]) for name in expected):
        return "it loaded with other parameters"
    if not is_exact:
        return None
    pairs = {
        "configuration": (loaded.model.config, original.model.config),
        "preprocessing": (loaded.preprocessing, original.preprocessing),
        "class names": (loaded.class_names, original.class_names),
    }
    return next((f"it loaded with another {name}: {a}" for name, (a, b) in pairs.items() if a != b), None)


def is_same(tensor: torch.Tensor, expected: torch.Tensor) -> bool:
    """Bit for bit, so that NaN equals itself and 0 is not -0."""
    return tensor.shape == expected.shape and torch.equal(tensor.view(torch.int32), expected.view(torch.int32))


def judge_text(text: str, path: Path) -> str | None:
    if len(text.splitlines()) != 1:
        return f"its error is not one line: {text[:300]!r}"
    beside = path if path.is_dir() else path.parent
    if str(path) not in text and not any(file.suffix and file.name in text for file in beside.iterdir()):
        return f"its error names no file: {text[:300]!r}"
    return None


# The watch.


def require_clean(check: Check, labels: Sequence[str]) -> None:
    complaints = [f"{label}: {outcome}" for label, outcome in watch(check, labels).items() if outcome is not None]
    shown = "\n".join(complaints[:40])
    assert not complaints, f"{len(complaints)} of {len(labels)} attempts:\n{shown}"


def watch(check: Check, labels: Sequence[str]) -> dict[str, str | None]:
    """The outcome of each. What hangs or dies takes its process with it, and the next goes on from there."""
    outcomes: dict[str, str | None] = {}
    while len(outcomes) < len(labels):
        waiting = labels[len(outcomes) :]
        receiver, sender = PROCESSES.Pipe(duplex=False)
        process = PROCESSES.Process(target=run_checks, args=(check, waiting, sender), daemon=True)
        process.start()
        sender.close()
        for label in waiting:
            if not receiver.poll(PATIENCE_S):
                outcomes[label] = f"nothing in {PATIENCE_S} s"
                break
            try:
                outcomes[label] = receiver.recv()
            except EOFError:
                process.join()
                outcomes[label] = f"the process died, exit code {process.exitcode}"
                break
        receiver.close()
        process.kill()
        process.join()
    return outcomes


def run_checks(check: Check, labels: Sequence[str], sender: Connection) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    for label in labels:
        height = measure_height()
        outcome = check(label)
        growth = measure_height() - height
        if outcome is None and growth > MAX_GROWTH_BYTES:
            outcome = f"it took {growth / 1e6:.0f} MB of memory"
        sender.send(outcome)


def measure_height() -> int:
    """The most memory that was ever resident. Linux counts in kilobytes, macOS in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# Hostile files, made on purpose. Each takes a fresh copy of the originals, spoils something and says what to load.

Spoil = Callable[[Path], Path]
MARKER = "marker"


@dataclass(frozen=True)
class Touch:
    """Unpickled, it runs a command."""

    path: Path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.path}'",)


def call_in_archive(folder: Path) -> Path:
    hostile = pickle.dumps(Touch(folder / MARKER), protocol=2)
    return rewrite(folder / "timm.pth", lambda name, member: (name, hostile if name.endswith(".pkl") else member))


def call_in_pickle(folder: Path) -> Path:
    (folder / "timm.pth").write_bytes(pickle.dumps(Touch(folder / MARKER), protocol=2))
    return folder / "timm.pth"


def call_in_old_file(folder: Path) -> Path:
    """As torch saved before 1.6: four pickles, the first two its magic number and version."""
    parts = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, {"head.weight": Touch(folder / MARKER)})
    (folder / "bin").mkdir()
    (folder / "bin" / "pytorch_model.bin").write_bytes(b"".join(pickle.dumps(part, protocol=2) for part in parts))
    return folder / "bin"


def call_in_objects(folder: Path) -> Path:
    """An array of objects whose pickle has just the size that its shape says."""
    hostile = pickle.dumps(Touch(folder / MARKER), protocol=2)
    hostile += bytes(-len(hostile) % 8)
    array = make_npy_header((len(hostile) // 8,), "|O") + hostile
    return rewrite(folder / "google.npz", lambda name, member: (name, array if name == "head/bias.npy" else member))


def rewrite(path: Path, change: Callable[[str, bytes], tuple[str, bytes]]) -> Path:
    path.write_bytes(rewrite_zip(path.read_bytes(), change))
    return path


def make_npy_header(shape: tuple[int, ...], kind: str = "<f4") -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": kind, "fortran_order": False, "shape": shape})
    return header.getvalue()


def bomb_npz(folder: Path) -> Path:
    return plant_bomb(
        folder / "google.npz", "head/kernel.npy", make_npy_header((CONFIG.width, BOMB_MIB * 2**18 // CONFIG.width))
    )


def bomb_pth(folder: Path) -> Path:
    """The pickle says how large the storage is, and torch believes the archive."""
    path = folder / "timm.pth"
    return plant_bomb(path, next(name for name in list_members(path.read_bytes()) if name.endswith("data/0")))


def plant_bomb(path: Path, member: str, start: bytes = b"") -> Path:
    """A member of a megabyte that becomes a gigabyte of zeros."""
    compressor = zlib.compressobj(9, wbits=-15)
    begun = compressor.compress(start) + compressor.flush(zlib.Z_FULL_FLUSH)
    block = compressor.compress(bytes(2**20)) + compressor.flush(zlib.Z_FULL_FLUSH)
    bomb = begun + block * BOMB_MIB + compressor.flush()
    rewrite(path, lambda name, content: (name, bomb if name == member else content))
    content = bytearray(path.read_bytes())
    for entry, name in list(iterate_directory(bytes(content))):
        if name == member:
            struct.pack_into("<H", content, entry + 10, zipfile.ZIP_DEFLATED)
            struct.pack_into("<I", content, entry + 24, len(start) + BOMB_MIB * 2**20)
    path.write_bytes(content)
    return path


def claim_many_blocks(folder: Path) -> Path:
    """A stack of a million million blocks, each of no numbers at all."""
    path = rewrite(folder / "google.npz", lambda name, member: (name, member))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("Transformer/encoderblock/LayerNorm_0/scale.npy", make_npy_header((10**12, 0)))
    return path


def claim_wide_stem(folder: Path) -> Path:
    """Each stage doubles the width, to more than 64 bits can count; tensors enough for so many stages."""
    state = load_file(folder / "own" / "model.safetensors")
    save_file({**state, **{f"extra.{i}": torch.zeros(1) for i in range(40)}}, folder / "own" / "model.safetensors")
    stem = {"kind": "hybrid", "stem_stages": [1] * 40, "stem_width_factor": 1e7}
    sizes = {"width": 64, "depth": 1, "num_heads": 1, "mlp_dim": 8, "num_classes": 3, "image_size": [10**7, 10**7]}
    return edit_json(folder / "own" / "config.json", model={**stem, **sizes}).parent


def edit_json(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))
    return path


def claim_terabyte(folder: Path) -> Path:
    path = folder / "own" / "model.safetensors"
    header = {"patches.projection.weight": {"dtype": "F32", "shape": [10**12 // 4], "data_offsets": [0, 10**12]}}
    path.write_bytes(join_safetensors(header, b""))
    os.truncate(path, path.stat().st_size + 10**12)
    return path.parent


def stretch(name: str, start: bytes, folder: Path) -> Path:
    """A terabyte of nothing after the first bytes."""
    path = folder / name
    path.write_bytes(start)
    os.truncate(path, 10**12)
    return folder / find_source(name)


def nest(name: str, folder: Path) -> Path:
    (folder / name).write_text('{"format": 1, "model": ' + '{"a": [' * 100_000 + "]}" * 100_000 + "}")
    return folder / find_source(name)


def nest_in_header(folder: Path) -> Path:
    text = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    (folder / "timm.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    return folder / "timm.safetensors"


def nest_in_metadata(folder: Path) -> Path:
    return edit_metadata(folder / "timm.safetensors", {"vitrine": '{"a": ' * 100_000 + "1" + "}" * 100_000})


def damage_key_of_metadata(folder: Path) -> Path:
    """One bit, and what is left is a file of timm's that says nothing of its heads."""
    path = folder / "timm.safetensors"
    header, _ = split_safetensors(path.read_bytes())
    metadata = dict(header["__metadata__"])
    return edit_metadata(path, {"vitrinf": metadata.pop("vitrine"), **metadata})


def edit_metadata(path: Path, metadata: dict[str, str]) -> Path:
    header, numbers = split_safetensors(path.read_bytes())
    path.write_bytes(join_safetensors({**header, "__metadata__": metadata}, numbers))
    return path


def link_to_itself(name: str, folder: Path) -> Path:
    path = folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(path)
    return folder / find_source(name)


def put_pipe(name: str, folder: Path) -> Path:
    """To open it for reading is to wait for a writer."""
    (folder / name).unlink()
    os.mkfifo(folder / name)
    return folder / find_source(name)


def misplace_shard(place: Any, folder: Path) -> Path:
    index = folder / "shards" / "model.safetensors.index.json"
    first = SHARDS[0].split("/")[1]
    places = json.loads(index.read_bytes())["weight_map"]
    edit_json(index, weight_map={name: place if held == first else held for name, held in places.items()})
    return index.parent


def empty(name: str, folder: Path) -> Path:
    (folder / name).write_bytes(b"")
    return folder / find_source(name)


def break_name_in_safetensors(folder: Path) -> Path:
    path = folder / "timm.safetensors"
    header, numbers = split_safetensors(path.read_bytes())
    path.write_bytes(join_safetensors({name.replace("head.", "two\nlines."): entry for name, entry in header.items()}, numbers))
    return path


def break_name_in_npz(folder: Path) -> Path:
    return rewrite(folder / "google.npz", lambda name, member: (name.replace("head/", "two\nlines/"), member))


def add_to_pth(key: Any, make: Callable[[], Any], folder: Path) -> Path:
    path = folder / "timm.pth"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype
        torch.save({**torch.load(path, weights_only=True), key: make()}, path)
    return path


def make_head(**options: Any) -> torch.Tensor:
    return torch.zeros(CONFIG.num_classes, CONFIG.width, **options)


# Tensors that are no plain numbers, under a name and of a shape that fit.
STRANGE_TENSORS: dict[str, Callable[[], Any]] = {
    "a negative view": lambda: torch.ops.aten._neg_view(make_head()),
    "nested": lambda: torch.nested.nested_tensor([make_head(), make_head()]),
    "sparse": lambda: make_head().to_sparse(),
    "meta": lambda: make_head(device="meta"),
    "complex": lambda: make_head(dtype=torch.complex64),
    "four bits": lambda: make_head(dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "a terabyte by strides of 0": lambda: torch.zeros(1).expand(10**12 // 4),
    "a gigabyte by strides of 0": lambda: torch.zeros(1).expand(10**9 // 4),
}
PLACES = ("../own/model.safetensors", "/etc/passwd", "..", ".", "", "two\nlines", "nul\0", "x" * 5000, "\ud800", 3, None, ["a"])
JSON_FILES = ("own/config.json", "timm.pth.vitrine.json", "shards/model.safetensors.index.json")
WEIGHTS = ("own/model.safetensors", "timm.pth", "google.npz", SHARDS[0])

HOSTILE: dict[str, Spoil] = {
    "a call in torch's archive": call_in_archive,
    "a call in a bare pickle": call_in_pickle,
    "a call in torch's old format": call_in_old_file,
    "a call in an array of objects": call_in_objects,
    "a bomb in npz": bomb_npz,
    "a bomb in pth": bomb_pth,
    "a stack of 10**12 empty blocks": claim_many_blocks,
    "a stem wider than 64 bits": claim_wide_stem,
    "a terabyte in safetensors": claim_terabyte,
    "a terabyte of zip": partial(stretch, "timm.pth", b"PK\3\4"),
    "a terabyte of pickle": partial(stretch, "timm.pth", b"\x80\2}"),
    "a terabyte of config": partial(stretch, "own/config.json", b"{"),
    "a terabyte of index": partial(stretch, "shards/model.safetensors.index.json", b"{"),
    **{f"depth in {name}": partial(nest, name) for name in JSON_FILES},
    "depth in the header": nest_in_header,
    "depth in the metadata": nest_in_metadata,
    "a flipped bit in the metadata's key": damage_key_of_metadata,
    **{f"a loop at {name}": partial(link_to_itself, name) for name in (*WEIGHTS, "own", "own/config.json")},
    **{f"a pipe at {name}": partial(put_pipe, name) for name in (*WEIGHTS, "own/config.json")},
    **{f"a shard at {str(place)[:30]!r}": partial(misplace_shard, place) for place in PLACES},
    **{f"nothing in {name}": partial(empty, name) for name in (*WEIGHTS, *JSON_FILES)},
    "a name of two lines in safetensors": break_name_in_safetensors,
    "a name of two lines in npz": break_name_in_npz,
    "a name of two lines in pth": partial(add_to_pth, "two\nlines", make_head),
    "a name of two lines without a tensor": partial(add_to_pth, "two\nlines", int),
    "a tensor for a name": partial(add_to_pth, torch.zeros(2, 2), make_head),
    **{f"a tensor that is {what}": partial(add_to_pth, "head.weight", make) for what, make in STRANGE_TENSORS.items()},
}


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
    shutil.rmtree(folder)  # nobody should come across a terabyte or a pipe in pytest's folders later
    return f"it ran the pickle's command ({outcome})" if has_run else outcome


def test_the_command_works(tmp_path: Path) -> None:
    """Or its absence would show nothing."""
    pickle.loads(pickle.dumps(Touch(tmp_path / MARKER), protocol=2))
    assert (tmp_path / MARKER).exists()
