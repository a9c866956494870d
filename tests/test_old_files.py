"""Files written before the code was restructured are still read: checkpoint, stopped run, packed data, caches.

Everything goes through the command line, because Python names may change and files may not.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from vitrine.cli import main

OLD = Path(__file__).parent / "fixtures" / "before_reshape"
CHECKPOINT = OLD / "checkpoint"
EXPECTED: dict[str, Any] = json.loads((OLD / "expected.json").read_text())

# Another CPU type rounds differently. That moves a loss a little, and an accuracy by whole images.
LOSS_TOLERANCE, NUM_IMAGES_TOLERANCE = 1e-4, 3
ACCURACY_TOLERANCES = {
    "accuracy": NUM_IMAGES_TOLERANCE / 640,
    "held_out_top1": NUM_IMAGES_TOLERANCE / 144,
    "held_out_top5": NUM_IMAGES_TOLERANCE / 144,
    "few_shot_5": NUM_IMAGES_TOLERANCE / 144,
    "best": NUM_IMAGES_TOLERANCE / 144,
    "test_top1": NUM_IMAGES_TOLERANCE / 360,
    "test_top5": NUM_IMAGES_TOLERANCE / 360,
}
TIMINGS = {"images_per_s", "waited", "seconds", "device_hours"}


@pytest.fixture(autouse=True)
def own_random_state() -> Iterator[None]:
    with torch.random.fork_rng():
        yield


@pytest.mark.usefixtures("cache")
def test_checkpoint_predicts_the_same_probabilities(tmp_path: Path) -> None:
    run("predict", CHECKPOINT, OLD / "pictures", "--top", 10, "--json", tmp_path / "out.json")
    found = {
        str(Path(each["image"]).relative_to(OLD)): dict(zip(each["classes"], each["probabilities"], strict=True))
        for each in read(tmp_path / "out.json")["found"]
    }
    assert found.keys() == EXPECTED["predict"].keys()
    for image, probabilities in EXPECTED["predict"].items():
        assert found[image] == pytest.approx(probabilities, rel=1e-4, abs=1e-6)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("data", ["digits", str(OLD / "packed")], ids=["digits", "packed"])
def test_checkpoint_evaluates_the_same_on_data_and_on_old_packed_data(data: str, tmp_path: Path) -> None:
    run("evaluate", CHECKPOINT, data, "--num-workers", 0, "--json", tmp_path / "out.json")
    report = read(tmp_path / "out.json")
    assert report["num_images"] == 360
    assert {name: report[name]["value"] for name in EXPECTED["evaluate"]} == pytest.approx(EXPECTED["evaluate"], rel=1e-3)


def test_stopped_run_resumes_to_the_same_end(tmp_path: Path) -> None:
    shutil.copytree(OLD / "run", tmp_path / "run")
    run("train", tmp_path / "run" / "recipe.json", "--out", tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == len(EXPECTED["metrics"])
    for line, expected in zip(lines, EXPECTED["metrics"], strict=True):
        assert_close(json.loads(line), expected)
    assert_close(read(tmp_path / "run" / "summary.json"), EXPECTED["summary"])


def test_features_come_from_the_old_cache(cache: Path, tmp_path: Path) -> None:
    (path,) = (OLD / "cache").glob("*.safetensors")
    old = load_file(path)
    marked = {**old, "values": old["values"] + 1}  # what no model computes, so it can only come from the cache
    (cache / "features").mkdir(parents=True)
    save_file(marked, cache / "features" / path.name)
    run("features", CHECKPOINT, "digits", "--split", "test", "--out", tmp_path / "cached.npz")
    run("features", CHECKPOINT, "digits", "--split", "test", "--no-cache", "--out", tmp_path / "computed.npz")
    with np.load(tmp_path / "cached.npz") as cached, np.load(tmp_path / "computed.npz") as computed:
        np.testing.assert_array_equal(cached["features"], marked["values"])
        np.testing.assert_allclose(computed["features"], old["values"], rtol=1e-4, atol=1e-4)


def test_data_check_reads_the_old_cache(cache: Path, tmp_path: Path) -> None:
    pictures = shutil.copytree(OLD / "pictures", tmp_path / "pictures")
    run("data", "check", pictures)
    (chunk,) = cache.rglob("000000.npz")
    shutil.copyfile(OLD / "cache" / "image_stats.npz", chunk)  # it was written while one picture was truncated
    with pytest.raises(SystemExit) as stopped:
        run("data", "check", pictures, "--json", tmp_path / "out.json")
    assert stopped.value.code == 1
    (finding,) = read(tmp_path / "out.json")["findings"]
    assert [image["name"] for image in finding["images"]] == ["b/5.png"]


def run(*arguments: object) -> None:
    main([str(argument) for argument in arguments])


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def assert_close(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual.keys() - TIMINGS == expected.keys()
    for name, value in expected.items():
        if name in ACCURACY_TOLERANCES:
            assert actual[name] == pytest.approx(value, abs=ACCURACY_TOLERANCES[name]), name
        elif isinstance(value, float):
            assert actual[name] == pytest.approx(value, rel=LOSS_TOLERANCE), name
        else:
            assert actual[name] == value, name
