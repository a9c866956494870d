"""Saving: whole or not at all, and what is said of it."""

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


def test_a_model_without_preprocessing_gets_the_papers(tmp_path: Path) -> None:
    with pytest.warns(VitrineWarning, match="records the paper's preprocessing .* since no other was given"):
        vitrine.save_model(build_filled(cases.VIT), tmp_path / "out")
    assert load_quietly(tmp_path / "out").preprocessing == build_inception_preprocessing((24, 24))


def test_a_model_with_preprocessing_and_names(tmp_path: Path) -> None:
    preprocessing = build_imagenet_preprocessing((24, 24))
    save_model(build_filled(cases.VIT), tmp_path / "out", preprocessing=preprocessing, class_names=tuple("abcde"))
    again = load_quietly(tmp_path / "out")
    assert (again.preprocessing, again.class_names) == (preprocessing, tuple("abcde"))


@pytest.mark.parametrize(
    ("form", "name", "sentence"),
    [
        ("timm", "out", r"a file ending in .safetensors or .pth or .pt, not to .*out"),
        ("google-2020", "out.safetensors", r"a file ending in .npz"),
        ("hf", "out.safetensors", "is written as a folder"),
        ("vitrine", "out.npz", "is written as a folder"),
        ("keras", "out", "Unknown format 'keras'; there are vitrine, google-2020"),
    ],
)
def test_the_path_must_suit_the_format(form: Any, name: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        save_checkpoint(make_checkpoint(cases.VIT), tmp_path / name, form)


def test_other_readers_usual_facts_are_said(tmp_path: Path) -> None:
    with pytest.warns(VitrineWarning, match=r"with tanh GELU, where erf is usual for timm"):
        save_checkpoint(make_checkpoint(cases.VIT), tmp_path / "a.safetensors", "timm")
    with pytest.warns(VitrineWarning, match=r"with erf GELU, where tanh is usual for google-2020"):
        save_checkpoint(make_checkpoint(cases.OBLONG), tmp_path / "a.npz", "google-2020")
    save_checkpoint(make_checkpoint(cases.OBLONG), tmp_path / "b.safetensors", "timm")  # usual there: nothing to say
    save_checkpoint(make_checkpoint(cases.VIT), tmp_path / "c", "hf")  # its configuration says it


@pytest.mark.parametrize("form", ["vitrine", "hf", "timm", "google-2020", "torchvision"])
def test_a_failure_leaves_the_old_and_nothing_half(form: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"out{cases.ENDINGS[form]}"
    old = make_checkpoint(cases.VIT)
    save_quietly(old, path, form)
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))

    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError("No space left on device")

    for name in ("save_file", "write_json"):
        monkeypatch.setattr(saving, name, fail)
    with pytest.raises(OSError, match="No space left"):
        save_quietly(make_checkpoint(cases.OBLONG), path, form)
    assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == before
    assert load_quietly(path).model.config == cases.VIT


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    """Even with a config.json in it, which half of all projects have."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "config.json").write_text("{}")
    (tmp_path / "project" / "thesis.txt").write_text("years")
    with pytest.raises(FileExistsError, match=r"Cannot write the folder .*project: there is something else .*thesis.txt"):
        save_checkpoint(make_checkpoint(cases.VIT), tmp_path / "project")
    assert (tmp_path / "project" / "thesis.txt").read_text() == "years"


@pytest.mark.parametrize(
    "error", [RuntimeError("unexpected pos 64 vs 0"), SafetensorError("Error while serializing: I/O error")]
)
def test_a_librarys_word_for_a_full_disk(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(saving, "save_file", fail)
    with pytest.raises(OSError, match=r"Cannot write .*out: .* See whether there is room, and whether you may write\."):
        save_quietly(make_checkpoint(cases.VIT), tmp_path / "out", "vitrine")
    assert list(tmp_path.iterdir()) == []


def test_a_safetensors_file_loses_the_side_file_of_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    side = tmp_path / "a.safetensors.vitrine.json"
    side.write_text("{}")
    save_quietly(make_checkpoint(cases.VIT), path, "timm")
    assert not side.exists()
    assert load_quietly(path).model.config == cases.VIT


def test_saving_does_not_change_the_model(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(cases.VIT)
    before = {name: tensor.clone() for name, tensor in checkpoint.model.state_dict().items()}
    for form, ending in cases.ENDINGS.items():
        if form != "bit":
            save_quietly(checkpoint, tmp_path / f"{form}{ending}", form)
    assert all(torch.equal(before[name], tensor) for name, tensor in checkpoint.model.state_dict().items())
