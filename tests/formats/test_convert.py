"""The library function `convert`; its command is tested in tests/commands/test_convert.py."""

from pathlib import Path

import pytest

from tests.formats import cases
from tests.formats.cases import make_checkpoint
from vitrine.core.console import VitrineWarning
from vitrine.formats.convert import convert
from vitrine.formats.load import load_checkpoint


def test_the_function_takes_a_checkpoint_and_returns_a_result(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(cases.VIT)
    with pytest.warns(VitrineWarning, match="class names"):
        result = convert(
            checkpoint, tmp_path / "out", "vitrine", image_size=36, class_names=tuple("abcde"), verify=True, seed=3
        )
    assert (result.path, result.format, result.config.image_size) == (tmp_path / "out", "vitrine", (36, 36))
    assert [(row.reader, row.is_equal) for row in result.comparisons] == [("vitrine", True)]
    assert result.different_readers == []
    assert result.num_parameters == sum(p.numel() for p in load_checkpoint(tmp_path / "out").model.parameters())
    assert load_checkpoint(tmp_path / "out").class_names == tuple("abcde")
    assert checkpoint.model.config == cases.VIT  # its own model is not changed
    assert convert(checkpoint, tmp_path / "b", "vitrine").comparisons == ()
    with pytest.raises(FileExistsError, match="out"):
        convert(checkpoint, tmp_path / "out", "vitrine")


def test_bad_arguments_write_nothing(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(cases.VIT)
    out = tmp_path / "out"
    for options in ({"images": ["a.png"]}, {"seed": 1}, {"device": "cuda"}):
        with pytest.raises(ValueError, match="verify"):
            convert(checkpoint, out, "vitrine", **options)
    with pytest.raises(ValueError, match="image_size"):
        convert(checkpoint, out, "vitrine", resize_method="timm")
    with pytest.raises(FileNotFoundError, match=r"none\.png"):
        convert(checkpoint, out, "vitrine", verify=True, images=[tmp_path / "none.png"])
    with pytest.raises(ValueError, match="npz"):
        convert(checkpoint, out, "bit")
    assert list(tmp_path.iterdir()) == []
