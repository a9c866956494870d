"""Model names and what is suggested for wrong ones; configs as JSON, and hostile JSON."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.filling import build_filled
from tests.formats import cases
from vitrine.models.config import AxialConfig, HybridConfig, ModelConfig, ResNetConfig, ViTConfig
from vitrine.models.registry import (
    FAMILIES,
    MODELS,
    build_model,
    config_from_json,
    config_to_json,
    find_family,
    parse_model_name,
    resolve_config,
)


def test_every_family_is_listed() -> None:
    assert {find_family(parse_model_name(name)) for name in MODELS} == set(FAMILIES)


@pytest.mark.parametrize(
    ("name", "kind", "fields"),
    [
        ("ViT-S/8", ViTConfig, {"patch_size": 8, "width": 384, "num_heads": 6}),
        ("ViT-b/16", ViTConfig, {"width": 384, "depth": 12, "mlp_dim": 1536, "num_heads": 12}),
        ("ViT-B/16", ViTConfig, {"width": 768, "pool": "class", "position": "learned-1d", "gelu": "tanh", "norm_eps": 1e-6}),
        ("ViT-L/7", ViTConfig, {"patch_size": 7, "depth": 24}),
        ("Axial-ViT-S/8", AxialConfig, {"patch_size": 8, "pool": "mean"}),
        ("R26x3", ResNetConfig, {"stages": (2, 2, 2, 2), "width_factor": 3.0}),
        ("R50x0.5", ResNetConfig, {"width_factor": 0.5}),
        ("R26x2+ViT-S/16", HybridConfig, {"stem_stages": (2, 2, 4), "stem_width_factor": 2.0}),
        ("R+ViT-S/32", HybridConfig, {"stem_stages": (), "patch_size": 16}),
    ],
)
def test_the_grammar_goes_beyond_the_list(name: str, kind: type[ModelConfig], fields: dict[str, object]) -> None:
    config = parse_model_name(name)
    assert type(config) is kind
    assert {field: getattr(config, field) for field in fields} == fields


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("vit-b/16", "ViT-B/16"),
        ("ViT-B16", "ViT-B/16"),
        ("ViT-X/16", "ViT-B/16"),
        ("ViT-B/0", "ViT-B/8"),
        ("R51x1", "R50x1"),
        ("R50", "R50x1"),
        ("R50+ViT-B/8", "R50+ViT-B/16"),
        ("resnet", "R50x1"),
        ("", "ViT-B/16"),
    ],
)
def test_a_wrong_name_offers_the_nearest(name: str, offered: str) -> None:
    with pytest.raises(ValueError, match="Unknown model") as error:
        build_model(name)
    assert offered in str(error.value)


def test_a_wrong_field_offers_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"num_head.*num_heads"):
        build_model("ViT-B/16", num_head=3)
    with pytest.raises(ValueError, match="'pool'"):
        resolve_config(parse_model_name("R50x1"), pool="mean")


def test_neither_name_nor_config_is_refused() -> None:
    for model in (None, 16, ["ViT-B/16"], ViTConfig):
        with pytest.raises(ValueError, match="not a model"):
            build_model(model)


def test_a_large_patch_needs_only_a_large_image() -> None:
    assert resolve_config("ViT-B/256", image_size=512).grid == (2, 2)
    with pytest.raises(ValueError, match="256 x 256"):
        resolve_config("ViT-B/256")


def test_a_config_builds_the_model_of_its_name() -> None:
    with torch.device("meta"):
        by_name = build_model("ViT-Ti/16", num_classes=7, image_size=(32, 48), depth=1)
        by_config = build_model(parse_model_name("ViT-Ti/16"), num_classes=7, image_size=(32, 48), depth=1)
    assert by_name.config == by_config.config
    assert by_name.config.image_size == (32, 48)


@pytest.mark.full
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_every_listed_model_runs_at_full_size(name: str) -> None:
    logits = build_filled(name, num_classes=10)(torch.randn(1, 3, 224, 224))
    assert logits.shape == (1, 10)
    assert logits.isfinite().all()
    assert logits.std() > 0


SETTINGS = settings(max_examples=300, deadline=None, derandomize=True)
VIT = config_to_json(cases.VIT)
KNOWN = {"vit": VIT, "hybrid": config_to_json(cases.HYBRID), "resnet": config_to_json(cases.BIT)}


def through_json(content: object) -> Any:
    return json.loads(json.dumps(content))


def assert_survives(config: ModelConfig) -> None:
    again = config_from_json(through_json(config_to_json(config)))
    assert again == config
    assert type(again) is type(config)
    assert hash(again) == hash(config)  # a list that stayed a list would have none


@pytest.mark.parametrize("name", MODELS)
def test_every_listed_model_survives(name: str) -> None:
    assert_survives(resolve_config(name))


@SETTINGS
@given(config=st.one_of(cases.vits(), cases.hybrids(), cases.resnets()))
def test_any_model_survives(config: ModelConfig) -> None:
    assert_survives(config)


def test_every_field_is_written_and_optional_ones_only_where_they_are_set() -> None:
    bit = config_to_json(cases.BIT)
    assert {"kind": "resnet", **vars(cases.BIT)} == {**bit, "pool_padding": "zeros"}
    assert "pool_padding" not in bit
    plain = config_to_json(cases.VIT)
    unset = {"readout_layers": (), "readout": None, "hidden_head_dim": None, "pre_norm": False}
    unset |= {"patch_bias": True, "qkv_bias": True, "register_position": False}
    assert {"kind": "vit", **vars(cases.VIT)} == {**plain, **unset}
    assert not unset.keys() & plain.keys()
    config = resolve_config(cases.VIT, readout_layers=(0, 1), readout="both")
    assert through_json(config_to_json(config)) == {**through_json(plain), "readout_layers": [0, 1], "readout": "both"}
    assert_survives(config)


def test_fields_with_defaults_may_be_absent() -> None:
    """Check that files of older versions can still be read."""
    sizes = {name: VIT[name] for name in ("kind", "width", "depth", "num_heads", "mlp_dim")}
    assert config_from_json(sizes) == resolve_config("ViT-Ti/16", **{n: v for n, v in sizes.items() if n != "kind"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "vit, axial, hybrid, resnet.*None"),
        ([VIT], "kind"),
        ({**VIT, "kind": "vgg"}, "kind.*vgg"),
        ({**VIT, "kind": ["vit"]}, "kind"),
        ({**VIT, "kind": {}}, "kind"),
        ({**VIT, "kind": None}, "kind"),
        ({**VIT, "heads": 3}, r"'heads'.*nearest.*newer version"),
        ({**VIT, "qqqq": 3}, r"'qqqq'.*newer version"),
        ({**VIT, "stages": [1]}, "'stages'"),
        ({"kind": "vit", "width": 8}, "depth, num_heads, mlp_dim"),
        ({"kind": "resnet"}, "lacks stages"),
        ({**VIT, "width": 10**400}, "width=1000.*range"),
        ({**VIT, "width": -(10**30)}, "range"),
        ({**VIT, "norm_eps": float("nan")}, "norm_eps=nan"),
        ({**VIT, "norm_eps": float("inf")}, "norm_eps=inf"),
        ({**VIT, "image_size": [224, 10**20]}, "image_size=.*range"),
        ({**VIT, "image_size": [[224], [224]]}, "image_size=.*whole numbers"),
        ({**VIT, "image_size": {"height": 224}}, "image_size=.*whole numbers"),
        ({**VIT, "image_size": []}, "image_size=.*two"),
        ({**VIT, "width": [16]}, "width=.*whole number"),
        ({**VIT, "width": 16.0}, r"width=16\.0"),
        ({**VIT, "width": "16"}, "width='16'"),
        ({**VIT, "width": True}, "width=True"),
        ({**VIT, "pool": ["class"]}, "pool=.*class, mean, map"),
        ({**VIT, "hidden_head": 1}, "hidden_head=1"),
        ({**VIT, "readout_layers": None}, "readout_layers=None"),
        ({**VIT, "readout_layers": [[0], 1]}, "readout_layers="),
        ({**VIT, "readout_layers": {"0": 1}}, "readout_layers="),
        ({**KNOWN["resnet"], "stages": 3}, "stages=3"),
        ({**KNOWN["hybrid"], "stem_stages": [1, "2"]}, "stem_stages=.*whole numbers"),
    ],
)
def test_hostile_content_is_refused(content: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_from_json(content)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([10**400, "vit", "class"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "width", ""]), inner),
    max_leaves=6,
)


@SETTINGS
@given(content=ANYTHING)
def test_anything_at_all_is_refused(content: object) -> None:
    with pytest.raises(ValueError, match=r"kind|no field|range|lacks"):
        config_from_json(content)


@SETTINGS
@given(kind=st.sampled_from(list(KNOWN)), data=st.data(), value=ANYTHING)
def test_anything_in_a_field_is_refused_or_a_model(kind: str, data: st.DataObject, value: object) -> None:
    field = data.draw(st.sampled_from([*KNOWN[kind], "readout_layers", "readout"]))
    try:
        config = config_from_json({**KNOWN[kind], field: value})
    except ValueError:
        return
    assert_survives(config)
