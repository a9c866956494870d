"""Notes of a survey: written whole, read back, and not relied on when they are damaged."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.pictures import draw_picture, write_picture
from vitrine.core.notices import Notice
from vitrine.data.opening import open_data
from vitrine.data.signature import Signatures, compute_signature
from vitrine.data.stored import StoredImage
from vitrine.data.survey import Survey
from vitrine.data.survey_notes import SurveyNotes, open_notes


def make_survey() -> Survey:
    signature = compute_signature(StoredImage(np.asarray(draw_picture(0)), "picture"))
    signatures = Signatures.join([signature, Signatures.empty(1)])
    digests = np.arange(32, dtype=np.uint8).reshape(2, 16)
    return Survey(digests, signatures, np.array([[3, 4], [0, 0]]), {1: "ein Bild fehlt: ü"}, {0: "PNG"})


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    notes, survey = SurveyNotes(tmp_path, [2, 5]), make_survey()
    notes.save(0, survey)
    ((number, found),) = notes.load_all().items()
    assert number == 0
    assert np.array_equal(found.digests, survey.digests)
    assert np.array_equal(found.signatures.words, survey.signatures.words)
    assert found.signatures.is_flat.tolist() == [False, True]
    assert (found.unreadable, found.disguised) == (survey.unreadable, survey.disguised)


@pytest.mark.parametrize("damage", ["cut", "other", "empty"])
def test_damaged_notes_are_not_relied_on(damage: str, tmp_path: Path) -> None:
    notes = SurveyNotes(tmp_path, [2])
    notes.save(0, make_survey())
    path = notes.locate(0)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        notes.chunk_sizes = [3]  # of other images
    assert notes.load_all() == {}
    with pytest.raises(ValueError, match="set VITRINE_CACHE to a folder that all processes share"):
        notes.require(0)


def test_a_place_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    notes = SurveyNotes(tmp_path / "file" / "notes", [2])
    with pytest.warns(Notice, match="cannot be kept for the next time"):
        notes.save(0, make_survey())
    notes.save(0, make_survey())


def test_other_images_have_other_notes(tmp_path: Path, cache: Path) -> None:
    write_picture(tmp_path / "data" / "all" / "a.jpg", 0)
    first = open_notes(open_data(tmp_path / "data"), [1])
    write_picture(tmp_path / "data" / "all" / "b.jpg", 1)
    second = open_notes(open_data(tmp_path / "data"), [2])
    assert first is not None
    assert second is not None
    assert first.folder != second.folder
    assert first.folder.parent == cache / "surveys"
    assert open_notes(open_data("digits", "test"), [1]) is None
