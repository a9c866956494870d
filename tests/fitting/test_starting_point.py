"""The model that is chosen where the user names none."""

from collections.abc import Callable

import pytest

from vitrine.core.console import VitrineWarning
from vitrine.fitting import starting_point as module
from vitrine.fitting.starting_point import describe_point, load_starting_point, measure_machine
from vitrine.formats.pretrained import list_starting_points

SMALL = "hf://timm/vit_tiny_patch16_224.augreg_in21k"


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the models that were loaded; the machine is slow."""
    names: list[str] = []
    monkeypatch.setattr(module, "load_checkpoint", lambda name, image_size: names.append(name) or "checkpoint")
    monkeypatch.setattr(module, "measure_machine", lambda device: 1e9)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return names


def cached(*names: str) -> Callable[[str], bool]:
    return lambda name: name in names


def test_little_time_takes_a_small_model(loaded: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    name, checkpoint = load_starting_point(100, 10.0)
    assert checkpoint == "checkpoint"
    assert loaded == [name]
    small = next(point for point in list_starting_points() if point.name == name)
    assert small.num_parameters < 2e7 or small.macs < 2e9
    assert name in capsys.readouterr().err
    larger, _ = load_starting_point(10, 1e5)
    assert next(point for point in list_starting_points() if point.name == larger).macs > small.macs


def test_no_time_at_all_takes_the_smallest_model(loaded: list[str]) -> None:
    """Whether there is time for it is asked when its speed is known, and the answer names minutes."""
    assert load_starting_point(100, -5.0) == load_starting_point(100, 0.0)


def test_larger_images_leave_time_for_a_smaller_model(loaded: list[str]) -> None:
    own, larger = (load_starting_point(40, 2000.0, image_size)[0] for image_size in (None, 448))
    points = {point.name: point for point in list_starting_points()}
    assert points[larger].macs < points[own].macs
    assert points[larger].count_macs(448) * 40 <= module.FEATURE_FRACTION * module.NO_LIMIT_S * 1e9


def test_name_and_licence_are_told() -> None:
    point = list_starting_points(["vit_tiny_patch16_224.augreg_in21k"])[0]
    assert describe_point(point).startswith(f"Starting from {SMALL}: AugReg ViT-Ti/16, 10 million parameters, 78.22 %")
    assert describe_point(point).endswith("licence apache-2.0.")


def test_offline_only_what_is_here_is_taken(loaded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(module, "is_model_cached", cached(SMALL))
    assert load_starting_point(100, 1e6)[0] == SMALL
    monkeypatch.setattr(module, "is_model_cached", cached())
    with pytest.raises(OSError, match="pass model"):
        load_starting_point(100, 1e6)


def test_without_a_connection_a_cached_model_is_taken(loaded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, image_size: int | None) -> str:
        if name != SMALL:
            raise OSError("no route to the hub")
        return "small"

    monkeypatch.setattr(module, "load_checkpoint", load)
    monkeypatch.setattr(module, "is_model_cached", cached(SMALL))
    with pytest.warns(VitrineWarning, match="no route to the hub"):
        assert load_starting_point(100, 1e6) == (SMALL, "small")


def test_the_speed_of_the_machine_is_measured() -> None:
    assert 1e8 < measure_machine("cpu") < 1e15
