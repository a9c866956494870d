"""The table of pretrained models, its layouts as timm states them, and the choice of a starting point.

tests/fixtures/timm_layouts.json has, for each row, config.json as timm writes it, the tensors of timm's network, and what
neither shows: heads, epsilons, GELU. No row is downloaded. Each is loaded twice: in full size, without reading the numbers, and
through a hub on this machine, with random numbers but narrow and of one block. So names, shapes, counts and arithmetic are
timm's, and the whole way from the hub is taken.
"""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from tests.formats.cases import load_quietly
from tests.hub_server import Files, Repository, serve_hub
from vitrine.core.console import COMMAND_OPTIONS
from vitrine.formats import tensor_files
from vitrine.formats.pretrained import COLUMNS, FAMILIES, StartingPoint, choose_starting_point, list_starting_points
from vitrine.models.config import ModelConfig, ResNetConfig, ViTConfig
from vitrine.models.cost import compute_cost

LAYOUTS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "fixtures" / "timm_layouts.json").read_text())
POINTS = list_starting_points()
Shapes = dict[str, tuple[int, ...]]
PATCHES, STEM = "patch_embed.proj.weight", "patch_embed.backbone."


def name_row(point: StartingPoint) -> str:
    return point.name.rpartition("/")[2]


def expand_blocks(tensors: dict[str, list[int]]) -> Shapes:
    """Return every tensor by itself: blocks.0-11.norm1.weight stands for twelve."""
    shapes: Shapes = {}
    for name, shape in tensors.items():
        match = re.fullmatch(r"(.*\bblocks\.)(\d+)-(\d+)(\..*)", name)
        numbers = [] if match is None else range(int(match[2]), int(match[3]) + 1)
        shapes |= {name: tuple(shape)} if match is None else {f"{match[1]}{n}{match[4]}": tuple(shape) for n in numbers}
    return shapes


# The table.


def test_the_table_is_of_the_size_that_a_user_can_read() -> None:
    assert 20 <= len(POINTS) <= 35
    assert len({point.name for point in POINTS}) == len(POINTS)
    assert {point.family for point in POINTS} == FAMILIES.keys()
    assert all(re.fullmatch(r"hf://timm/[\w.]+", point.name) for point in POINTS)
    assert all(5e6 < compute_cost(point.config, num_classes=0).num_parameters < 320e6 for point in POINTS)


def test_a_figure_has_a_source_and_no_figure_has_none() -> None:
    assert all((point.imagenet_top1 is None) == (point.source == "") for point in POINTS)
    figures = {name_row(point): point.imagenet_top1 for point in POINTS}
    assert figures["vit_base_patch16_224.augreg_in21k"] == 85.49  # vision_transformer's README
    assert figures["vit_large_patch16_224.orig_in21k"] == 85.15  # table 5 of the paper
    assert figures["vit_base_patch32_224.augreg_in21k"] is None  # the README's figure is of other weights


def test_names_filter_the_table() -> None:
    assert {point.family for point in list_starting_points(["dinov2"])} == {"DINOv2", "DINOv2 with registers"}
    assert {point.model for point in list_starting_points(["vit-l/14"])} == {"ViT-L/14"}
    both = list_starting_points(["R101x1", "tiny"])
    assert {point.model for point in both} == {"R101x1", "ViT-Ti/16"}
    assert both == tuple(point for point in POINTS if point in both)
    with pytest.raises(ValueError, match=r"'swin'.*AugReg"):
        list_starting_points(["ViT-B/16", "swin"])


def test_the_row_as_json() -> None:
    content = POINTS[0].to_json()
    assert set(content) == {*COLUMNS, "macs"}
    assert json.loads(json.dumps(content)) == content


# Layouts in full size: the numbers are not read, so that 300 million parameters take no time and no memory.


def write_sparse(shapes: Shapes, path: Path) -> None:
    """Write a safetensors file with a complete header and a hole instead of the numbers."""
    header, end = dict[str, Any](), 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def read_no_numbers(path: Path, name: str) -> Tensor:
    with tensor_files.safe_open(path, "pt") as file:
        return torch.empty(file.get_slice(name).get_shape(), device="meta")


def forget_arithmetic(config: ModelConfig) -> ModelConfig:
    """Return a config with only what the table knows: without GELU and epsilons."""
    return (
        replace(config, standardise_eps=None)
        if isinstance(config, ResNetConfig)
        else replace(config, gelu="erf", norm_eps=1e-6)
    )


def describe_arithmetic(config: ModelConfig) -> dict[str, Any]:
    """Return what the fixture has of timm's networks: heads, epsilons and GELU(1)."""
    if isinstance(config, ResNetConfig):
        norm_eps, standardise_eps = config.epsilons
        return {"norm_eps": norm_eps, "standardise_eps": standardise_eps}
    assert isinstance(config, ViTConfig)
    gelus = {"erf": (1 + math.erf(math.sqrt(0.5))) / 2, "quick": 1 / (1 + math.exp(-1.702))}
    gelus["tanh"] = (1 + math.tanh(math.sqrt(2 / math.pi) * 1.044715)) / 2
    return {"num_heads": config.num_heads, "norm_eps": config.norm_eps, "gelu": round(gelus[config.gelu], 6)}


@pytest.mark.parametrize("point", POINTS, ids=name_row)
def test_the_layout_in_full_size(point: StartingPoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = LAYOUTS[point.name]
    (tmp_path / "config.json").write_text(json.dumps(layout["config"]))
    write_sparse(expand_blocks(layout["tensors"]), tmp_path / "model.safetensors")
    monkeypatch.setattr(tensor_files, "read_safetensors", read_no_numbers)
    with torch.device("meta"):
        checkpoint = load_quietly(tmp_path)
    assert sum(parameter.numel() for parameter in checkpoint.model.parameters()) == point.num_parameters
    assert compute_cost(point.config).num_parameters == point.num_parameters
    assert forget_arithmetic(checkpoint.model.config) == forget_arithmetic(point.config)
    assert checkpoint.model.config.image_size == checkpoint.preprocessing.crop == (point.image_size, point.image_size)
    assert describe_arithmetic(checkpoint.model.config) == layout["hidden"]
    stated = layout["config"]["pretrained_cfg"]
    assert list(checkpoint.preprocessing.mean) == stated["mean"]
    assert checkpoint.preprocessing.interpolation == stated["interpolation"]


# Layouts through the hub: one block of width 64, or one unit per stage of width 32, and three classes.


def shrink(shapes: Shapes) -> Shapes:
    """Return the tensors of a narrower network with the first block, or the first unit of each stage, and three classes."""
    root = shapes.get("stem.conv.weight") or shapes.get(f"{STEM}stem.conv.weight")
    conv_divisor = 1 if root is None else root[0] // 32  # group norm has 32 groups
    divisor = shapes[PATCHES][0] // 64 if PATCHES in shapes else conv_divisor
    small: Shapes = {}
    for name, shape in shapes.items():
        block = re.search(r"\bblocks\.(\d+)\.", name)
        if block is not None and block[1] != "0":
            continue
        first, *others = shape
        if name.startswith("head"):
            small[name] = (3, *narrow(others, divisor))
        elif name == "pos_embed":  # its second axis is the number of tokens
            small[name] = (*shape[:2], shape[2] // divisor)
        elif name == PATCHES:
            small[name] = (first // divisor, *narrow(others, conv_divisor))
        else:
            small[name] = narrow(shape, conv_divisor if name.startswith(STEM) else divisor)
    return small


def narrow(shape: Sequence[int], divisor: int) -> tuple[int, ...]:
    """Divide the axes of channels; shorter ones are kernels, colours and registers."""
    return tuple(size // divisor if size >= 64 else size for size in shape)


@cache
def build_files(name: str) -> tuple[Files, float, int]:
    """Return a small repository in the layout of a row, the sum of its numbers and how many there are."""
    generator = torch.Generator().manual_seed(0)
    shapes = shrink(expand_blocks(LAYOUTS[name]["tensors"]))
    state = {each: torch.randn(shape, generator=generator) for each, shape in shapes.items()}
    files = {"config.json": json.dumps(LAYOUTS[name]["config"]).encode(), "model.safetensors": save(state)}
    return files, sum(float(tensor.double().sum()) for tensor in state.values()), sum(map(torch.numel, state.values()))


LOAD = """
import json, sys, warnings
warnings.simplefilter("ignore")
from vitrine.core.hub import is_model_cached
from vitrine.formats.load import load_checkpoint

for name in sys.argv[1:]:
    was_cached = is_model_cached(name)
    checkpoint = load_checkpoint(name)
    numbers = [parameter.detach().double() for parameter in checkpoint.model.parameters()]
    print(json.dumps({
        "sum": sum(float(each.sum()) for each in numbers),
        "count": sum(each.numel() for each in numbers),
        "image_size": checkpoint.model.config.image_size,
        "format": checkpoint.provenance["format"],
        "cached": [was_cached, is_model_cached(name)],
    }), flush=True)
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Load every row from a hub on this machine, in one process, because huggingface_hub reads its settings at import."""
    repositories = {
        point.name.removeprefix("hf://"): Repository(revisions={"main": build_files(point.name)[0]}) for point in POINTS
    }
    names = [point.name for point in POINTS]
    with serve_hub(repositories) as hub:
        patient = {"HF_HUB_ETAG_TIMEOUT": "300", "HF_HUB_DOWNLOAD_TIMEOUT": "300", "HF_HUB_OFFLINE": "0"}
        settings = {**patient, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path_factory.mktemp("home"))}
        command = [sys.executable, "-c", LOAD, *names]
        result = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr
    return dict(zip(names, map(json.loads, result.stdout.splitlines()), strict=True))


@pytest.mark.xdist_group("hub")
@pytest.mark.parametrize("point", POINTS, ids=name_row)
def test_the_layout_from_the_hub(point: StartingPoint, loaded: dict[str, dict[str, Any]]) -> None:
    _, total, count = build_files(point.name)
    found = loaded[point.name]
    assert (found["format"], found["image_size"]) == ("timm", [point.image_size, point.image_size])
    assert found["count"] == count
    assert found["sum"] == pytest.approx(total, rel=1e-9)
    assert found["cached"] == [False, True]


# The choice.

SPEED = 1e11  # MACs per second of an imagined machine


def compute_seconds(point: StartingPoint, num_images: int) -> float:
    return point.macs * num_images / SPEED


@pytest.mark.parametrize("seconds", [1, 20, 40, 50, 200, 400, 700, 3000, 1e6])
def test_the_best_that_fits_is_chosen(seconds: float) -> None:
    chosen = choose_starting_point(1000, seconds, SPEED)
    affordable = [point for point in POINTS if compute_seconds(point, 1000) <= seconds and point.licence == "apache-2.0"]
    if affordable:
        assert chosen in affordable
        assert chosen.imagenet_top1 == max(point.imagenet_top1 or 0.0 for point in affordable)
    else:
        assert chosen.macs == min(point.macs for point in POINTS)


def test_more_time_is_never_a_worse_choice() -> None:
    figures = [choose_starting_point(500, seconds, SPEED).imagenet_top1 or 0.0 for seconds in (0, 10, 30, 100, 1000)]
    assert figures == sorted(figures)
    assert name_row(choose_starting_point(500, 1000, SPEED)) == "vit_large_patch16_224.augreg_in21k"


def test_the_cost_of_another_size_is_that_of_its_network() -> None:
    for point in (POINTS[0], *list_starting_points(["dinov2", "siglip", "resnetv2_50x1"])):
        assert point.count_macs(point.image_size) == point.macs
        side = 392 if "patch14" in point.name else 384
        changed = replace(point.config, image_size=(side, side), num_classes=0)
        assert point.count_macs(side) == compute_cost(changed).macs > point.macs or point.image_size > side


def test_only_cached_ones_are_chosen_without_a_connection() -> None:
    cached = {f"hf://timm/{name}" for name in ("deit_small_patch16_224.fb_in1k", "vit_small_patch14_dinov2.lvd142m")}
    assert name_row(choose_starting_point(1000, 1e6, SPEED, cached.__contains__)) == "vit_small_patch14_dinov2.lvd142m"
    assert name_row(choose_starting_point(1000, 100, SPEED, cached.__contains__)) == "deit_small_patch16_224.fb_in1k"
    assert name_row(choose_starting_point(1000, 1, SPEED, cached.__contains__)) == "deit_small_patch16_224.fb_in1k"


def test_a_licence_that_forbids_commercial_use_is_never_chosen() -> None:
    restricted = [point for point in POINTS if not point.is_permissive]
    assert {point.licence for point in restricted} == {"cc-by-nc-4.0"}
    with pytest.raises(OSError, match="none of the pretrained models"):
        choose_starting_point(1000, 1e6, SPEED, {point.name for point in restricted}.__contains__)


def test_nothing_cached_and_no_connection_is_one_sentence() -> None:
    with pytest.raises(OSError, match="model='PATH', or connect") as caught:
        choose_starting_point(1000, 60, SPEED, lambda name: False)
    assert str(caught.value).count(". ") == 0
    token = COMMAND_OPTIONS.set(lambda: ["--model"])
    try:
        with pytest.raises(OSError, match="pass --model PATH, or connect"):
            choose_starting_point(1000, 60, SPEED, lambda name: False)
    finally:
        COMMAND_OPTIONS.reset(token)


@pytest.mark.parametrize(
    "arguments", [(-1, 60, SPEED), (10, -1, SPEED), (10, 60, 0), (10, math.nan, SPEED), (10, 60, math.inf)]
)
def test_impossible_amounts_are_errors(arguments: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match="macs_per_second="):
        choose_starting_point(*arguments)
