"""A configuration survives JSON, and whatever else comes instead of one is refused in a sentence."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.formats import cases
from vitrine.models.config import ModelConfig
from vitrine.models.description import KINDS, describe_config, parse_config
from vitrine.models.registry import FAMILIES, MODELS, resolve_config

SETTINGS = settings(max_examples=300, deadline=None, derandomize=True)
VIT = describe_config(cases.VIT)
KNOWN = {"vit": VIT, "hybrid": describe_config(cases.HYBRID), "resnet": describe_config(cases.BIT)}


def through_json(content: object) -> Any:
    return json.loads(json.dumps(content))


def assert_survives(config: ModelConfig) -> None:
    again = parse_config(through_json(describe_config(config)))
    assert again == config
    assert type(again) is type(config)
    assert hash(again) == hash(config)  # a list that stayed a list would have none


def test_every_family_has_a_kind() -> None:
    assert set(KINDS.values()) == set(FAMILIES)


@pytest.mark.parametrize("name", MODELS)
def test_every_listed_model_survives(name: str) -> None:
    assert_survives(resolve_config(name))


@SETTINGS
@given(config=st.one_of(cases.vits(), cases.hybrids(), cases.resnets()))
def test_any_model_survives(config: ModelConfig) -> None:
    assert_survives(config)


def test_every_field_is_written_down() -> None:
    assert describe_config(cases.BIT) == {"kind": "resnet", **vars(cases.BIT)}


def test_fields_with_defaults_may_be_absent() -> None:
    """So that what an older version wrote can still be read."""
    sizes = {name: VIT[name] for name in ("kind", "width", "depth", "num_heads", "mlp_dim")}
    assert parse_config(sizes) == resolve_config("ViT-Ti/16", **{n: v for n, v in sizes.items() if n != "kind"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "must name its kind, one of vit, axial, hybrid, resnet; it is None"),
        ([VIT], "must name its kind"),
        ({**VIT, "kind": "vgg"}, "must name its kind, one of vit, axial, hybrid, resnet; it is {'kind': 'vgg'"),
        ({**VIT, "kind": ["vit"]}, "must name its kind"),
        ({**VIT, "kind": {}}, "must name its kind"),
        ({**VIT, "kind": None}, "must name its kind"),
        ({**VIT, "heads": 3}, r"A vit has no field 'heads'; nearest: .*\. A newer version may have written it\."),
        ({**VIT, "qqqq": 3}, r"A vit has no field 'qqqq'\. A newer version may have written it\."),
        ({**VIT, "stages": [1]}, "A vit has no field 'stages'"),
        ({"kind": "vit", "width": 8}, r"The description of a vit lacks depth, num_heads, mlp_dim\."),
        ({"kind": "resnet"}, r"The description of a resnet lacks stages\."),
        ({**VIT, "width": 10**400}, "width=1000.* is no size of a model"),
        ({**VIT, "width": -(10**30)}, "is no size of a model"),
        ({**VIT, "norm_eps": float("nan")}, "norm_eps=nan is no size of a model"),
        ({**VIT, "norm_eps": float("inf")}, "norm_eps=inf is no size of a model"),
        ({**VIT, "image_size": [224, 10**20]}, "image_size=.* is no size of a model"),
        ({**VIT, "image_size": [[224], [224]]}, "image_size=.* must be a tuple of whole numbers"),
        ({**VIT, "image_size": {"height": 224}}, "image_size=.* must be a tuple of whole numbers"),
        ({**VIT, "image_size": []}, "image_size=.* must be two numbers"),
        ({**VIT, "width": [16]}, "width=.* must be a whole number"),
        ({**VIT, "width": 16.0}, r"width=16\.0 must be a whole number"),
        ({**VIT, "width": "16"}, "width='16' must be a whole number"),
        ({**VIT, "width": True}, "width=True must be a whole number"),
        ({**VIT, "pool": ["class"]}, "pool=.* must be one of class, mean, map"),
        ({**VIT, "hidden_head": 1}, "hidden_head=1 must be True or False"),
        ({**KNOWN["resnet"], "stages": 3}, "stages=3 must be a tuple"),
        ({**KNOWN["hybrid"], "stem_stages": [1, "2"]}, "stem_stages=.* must be a tuple of whole numbers"),
    ],
)
def test_hostile_content_costs_a_sentence(content: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_config(content)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([10**400, "vit", "class"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "width", ""]), inner),
    max_leaves=6,
)


@SETTINGS
@given(content=ANYTHING)
def test_anything_at_all_is_refused(content: object) -> None:
    with pytest.raises(ValueError, match=r"must name its kind|has no field|is no size of a model|lacks"):
        parse_config(content)


@SETTINGS
@given(kind=st.sampled_from(list(KNOWN)), data=st.data(), value=ANYTHING)
def test_anything_in_a_field_is_refused_or_a_model(kind: str, data: st.DataObject, value: object) -> None:
    field = data.draw(st.sampled_from(list(KNOWN[kind])))
    try:
        config = parse_config({**KNOWN[kind], field: value})
    except ValueError:
        return
    assert_survives(config)
