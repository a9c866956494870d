"""The table of studies names what exists."""

from typing import get_args

import pytest

from vitrine.studies.config import Scale
from vitrine.studies.registry import STUDIES, find_study, load_study


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_the_one_of_its_name(name: str) -> None:
    study = load_study(name)
    assert study.name == name
    assert set(STUDIES[name].times) == set(get_args(Scale))
    assert len({claim.name for claim in study.claims}) == len(study.claims)


def test_an_unknown_study_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="data-size"):
        find_study("datasize")
