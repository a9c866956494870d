"""`vitrine fit`: what it prints and writes, and its mistakes."""

import json
from pathlib import Path

import pytest

from tests.fitting.colours import save_tiny, write_divided
from vitrine import cli


def test_a_classifier_from_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, model, out = write_divided(tmp_path / "photos"), save_tiny(tmp_path / "tiny"), tmp_path / "out"
    words = ["fit", str(data), "--model", model, "--out", str(out), "--minutes", "0", "--num-workers", "0"]
    cli.main([*words, "--json", str(tmp_path / "fit.json")])
    printed = capsys.readouterr().out
    assert "Linear discriminant" in printed or "Ridge regression" in printed
    assert "on 30 test images" in printed
    assert f"vitrine predict {out / 'model'}" in printed.replace("\n", " ")
    assert (out / "report.html").is_file()
    assert json.loads((tmp_path / "fit.json").read_text())["is_tested"] is True
    cli.main(["predict", str(out / "model"), str(data / "test" / "red" / "000.png")])
    assert "red" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--minutes", "-1"], "minutes=-1"),
        (["--framing", "wide"], "--framing"),
        (["--model", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as raised:
        cli.main(["fit", str(write_divided(tmp_path / "photos", 3, 2)), *words])
    assert raised.value.code == 2
    assert message in capsys.readouterr().err
