"""Saving: completely or not at all, and its warnings."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

import vitrine
from tests.filling import build_filled
from tests.formats import cases
from tests.formats.cases import load_quietly, make_checkpoint, save_quietly
from vitrine.core.console import VitrineWarning
from vitrine.data.preprocessing import build_imagenet_preprocessing, build_inception_preprocessing
from vitrine.formats import save as saving
from vitrine.formats.save import save_checkpoint, save_model


def test_a_model_without_preprocessing_records_the_papers(tmp_path: Path) -> None:
    with pytest.warns(VitrineWarning, match="paper's preprocessing"):
        vitrine.save_model(build_filled(cases.VIT), tmp_path / "out")
    assert load_quietly(tmp_path / "out").preprocessing == build_inception_preprocessing((24, 24))


def test_a_model_with_preprocessing_and_names(tmp_path: Path) -> None:
    preprocessing = build_imagenet_preprocessing((24, 24))
    save_model(build_filled(cases.VIT), tmp_path / "out", preprocessing=preprocessing, class_names=tuple("abcde"))
    again = load_quietly(tmp_path / "out")
    assert (again.preprocessing, again.class_names) == (preprocessing, tuple("abcde"))


@pytest.mark.parametrize(
    ("fmt", "name", "sentence"),
    [
        ("timm", "out", ".safetensors or .pth or .pt"),
        ("google-2020", "out.safetensors", ".npz"),
        ("hf", "out.safetensors", "folder"),
        ("vitrine", "out.npz", "folder"),
        ("keras", "out", "'keras'.* vitrine, google-2020"),
    ],
)
def test_the_path_must_suit_the_format(fmt: Any, name: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        save_checkpoint(make_checkpoint(cases.VIT), tmp_path / name, fmt)


def test_settings_that_other_programs_would_miss_are_reported(tmp_path: Path) -> None:
    with pytest.warns(VitrineWarning, match="tanh GELU .*erf.* timm"):
        save_checkpoint(make_checkpoint(cases.VIT), tmp_path / "a.safetensors", "timm")
    with pytest.warns(VitrineWarning, match="erf GELU .*tanh.* google-2020"):
        save_checkpoint(make_checkpoint(cases.OBLONG), tmp_path / "a.npz", "google-2020")
    save_checkpoint(make_checkpoint(cases.OBLONG), tmp_path / "b.safetensors", "timm")  # its default
    save_checkpoint(make_checkpoint(cases.VIT), tmp_path / "c", "hf")  # its config.json states it


@pytest.mark.parametrize("fmt", ["vitrine", "hf", "timm", "google-2020", "torchvision"])
def test_a_failure_leaves_the_old_checkpoint(fmt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"out{cases.ENDINGS[fmt]}"
    old = make_checkpoint(cases.VIT)
    save_quietly(old, path, fmt)
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))

    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError("No space left on device")

    for name in ("save_file", "write_json"):
        monkeypatch.setattr(saving, name, fail)
    with pytest.raises(OSError, match="No space left"):
        save_quietly(make_checkpoint(cases.OBLONG), path, fmt)
    assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == before
    assert load_quietly(path).model.config == cases.VIT


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    """Even with a config.json in it, which many projects have."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "config.json").write_text("{}")
    (tmp_path / "project" / "thesis.txt").write_text("years")
    with pytest.raises(FileExistsError, match=r"project.*thesis\.txt"):
        save_checkpoint(make_checkpoint(cases.VIT), tmp_path / "project")
    assert (tmp_path / "project" / "thesis.txt").read_text() == "years"


@pytest.mark.parametrize(
    "error", [RuntimeError("unexpected pos 64 vs 0"), SafetensorError("Error while serializing: I/O error")]
)
def test_library_errors_become_os_errors(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(saving, "save_file", fail)
    with pytest.raises(OSError, match=r"Cannot write .*out: "):
        save_quietly(make_checkpoint(cases.VIT), tmp_path / "out", "vitrine")
    assert list(tmp_path.iterdir()) == []


def test_the_side_file_of_an_older_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    side = tmp_path / "a.safetensors.vitrine.json"
    side.write_text("{}")
    save_quietly(make_checkpoint(cases.VIT), path, "timm")
    assert not side.exists()
    assert load_quietly(path).model.config == cases.VIT


def test_saving_does_not_change_the_model(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(cases.VIT)
    before = {name: tensor.clone() for name, tensor in checkpoint.model.state_dict().items()}
    for fmt, ending in cases.ENDINGS.items():
        if fmt != "bit":
            save_quietly(checkpoint, tmp_path / f"{fmt}{ending}", fmt)
    assert all(torch.equal(before[name], tensor) for name, tensor in checkpoint.model.state_dict().items())
