"""Preprocessing against Hugging Face's image processors, torchvision's formulas and closed forms."""

import io
import json
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torch import Tensor
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from vitrine.data import preprocessing as module
from vitrine.data.preprocessing import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Interpolation,
    Preprocessing,
    build_imagenet_preprocessing,
    build_inception_preprocessing,
)

SIDES = st.integers(min_value=1, max_value=300)
SIZES = st.tuples(SIDES, SIDES)


def build_noise(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def run_peer(peer: Any, image: Image.Image) -> Tensor:
    return peer(image, return_tensors="pt")["pixel_values"][0]


def require_equal_to_peer(preprocessing: Preprocessing, peer: Any, image: Image.Image) -> None:
    """Pixels are equal; normalised values up to the rounding of 1/255, by which the peer multiplies instead of dividing."""
    pixels = preprocessing.prepare(image)
    peer.do_rescale, peer.do_normalize = False, False
    assert torch.equal(pixels, run_peer(peer, image).to(torch.uint8))
    peer.do_rescale, peer.do_normalize = True, True
    torch.testing.assert_close(preprocessing.normalise(pixels), run_peer(peer, image).float(), rtol=0, atol=1e-6)


def build_bit_peer(preprocessing: Preprocessing) -> BitImageProcessorPil:
    """Short side and centre crop; the defaults of this processor are CLIP's."""
    return BitImageProcessorPil(
        size={"shortest_edge": preprocessing.resize},
        crop_size={"height": preprocessing.crop[0], "width": preprocessing.crop[1]},
        resample=Image.Resampling[preprocessing.interpolation.upper()],
        image_mean=preprocessing.mean,
        image_std=preprocessing.std,
    )


@pytest.mark.parametrize("size", [(300, 500), (500, 300), (224, 224), (97, 31), (1, 9)])
def test_resize_equals_hugging_face_vit(size: tuple[int, int]) -> None:
    require_equal_to_peer(build_inception_preprocessing((224, 224)), ViTImageProcessorPil(), build_noise(*size))


def test_resize_and_centre_crop_equal_hugging_face_deit() -> None:
    preprocessing = Preprocessing(resize=(256, 256), crop=(224, 224), interpolation="bicubic")
    require_equal_to_peer(preprocessing, DeiTImageProcessorPil(), build_noise(300, 500))


# Long sides are 426 (= 256 * 500 / 300 rounded down), 341, 256 and 819, so margins are 202, 117, 32 and 595: half of an odd
# one is rounded down in both. (torchvision would round 297.5 to 298.)
@pytest.mark.parametrize("size", [(300, 500), (400, 300), (64, 64), (100, 320)])
@pytest.mark.parametrize("interpolation", get_args(Interpolation))
def test_short_side_and_centre_crop_equal_hugging_face_bit(size: tuple[int, int], interpolation: Any) -> None:
    preprocessing = replace(build_imagenet_preprocessing((224, 224)), interpolation=interpolation)
    require_equal_to_peer(preprocessing, build_bit_peer(preprocessing), build_noise(*size))


@pytest.mark.parametrize("label", ["000", "207", "950"])
def test_photograph_equals_hugging_face(label: str, assets: Path) -> None:
    path = sorted((assets / "imagenet-val-1000" / label).iterdir())[0]
    with Image.open(path) as file:
        image = file.convert("RGB")
    inception = build_inception_preprocessing((224, 224))
    require_equal_to_peer(inception, ViTImageProcessorPil(), image)
    assert torch.equal(inception.load(path), inception.prepare(image))
    # The photographs are 341 x 256: first only cropped (margins 117 and 32), then also resized (85 and 24).
    for resize, crop in ((256, 224), (184, 160)):
        preprocessing = replace(build_imagenet_preprocessing((crop, crop)), resize=resize)
        require_equal_to_peer(preprocessing, build_bit_peer(preprocessing), image)


@settings(deadline=None, max_examples=150)
@given(SIZES, SIZES, st.one_of(st.none(), SIDES, SIZES), st.sampled_from(get_args(Interpolation)), st.sampled_from([1, 3]))
def test_result_always_has_the_size_of_the_crop(
    image_size: tuple[int, int], crop: tuple[int, int], resize: Any, interpolation: Any, num_channels: int
) -> None:
    half = (0.5,) * num_channels
    preprocessing = Preprocessing(resize=resize, crop=crop, interpolation=interpolation, mean=half, std=half)
    pixels = preprocessing.prepare(Image.new("RGB", image_size[::-1], (200, 200, 200)))
    assert (pixels.shape, pixels.dtype, pixels.is_contiguous()) == ((num_channels, *crop), torch.uint8, True)
    # Filters do not change a constant, so nothing was padded.
    assert (pixels == 200).all()
    height, width = preprocessing.compute_resized_size(*image_size)
    assert height >= crop[0]
    assert width >= crop[1]


@pytest.mark.parametrize(
    ("resize", "crop", "image_size", "expected"),
    [
        (256, (224, 224), (300, 500), (256, 426)),  # torchvision: int(256 * 500 / 300)
        (256, (224, 224), (500, 300), (426, 256)),
        (256, (224, 224), (256, 999), (256, 999)),
        (10, (100, 100), (100, 199), (100, 199)),  # the crop does not fit: scaled from the image, not from 10 x 19
        (256, (384, 128), (100, 200), (384, 768)),
        (256, (128, 640), (100, 200), (320, 640)),
        (None, (224, 224), (300, 500), (300, 500)),
        (None, (224, 224), (100, 500), (224, 1120)),
        ((64, 32), (64, 32), (100, 500), (64, 32)),
        ((64, 32), (64, 64), (100, 500), (128, 64)),
    ],
)
def test_size_before_the_crop(
    resize: Any, crop: tuple[int, int], image_size: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert Preprocessing(resize=resize, crop=crop).compute_resized_size(*image_size) == expected


@pytest.mark.parametrize("size", [(320, 200), (100, 100), (64, 48), (400, 50), (20, 240)])
@pytest.mark.parametrize("num_channels", [3, 1])
def test_letterbox_equals_pillow(size: tuple[int, int], num_channels: int) -> None:
    """Sizes (width and height) whose bars are equal on both sides: Pillow rounds odd ones to the other side."""
    mean = (0.485, 0.456, 0.406)[:num_channels]
    base = Preprocessing(resize=256, crop=(48, 64), interpolation="bicubic", mean=mean, std=(0.2,) * num_channels)
    image = build_noise(*size[::-1]).convert("RGB" if num_channels == 3 else "L")
    colour = tuple(round(255 * each) for each in mean)
    padded = ImageOps.pad(image, (64, 48), Image.Resampling.BICUBIC, colour if num_channels == 3 else colour[0])
    np.testing.assert_array_equal(np.asarray(base.with_framing("letterbox").resize_and_crop(image)), np.asarray(padded))


def test_framings() -> None:
    """A portrait image, white above and black below: what each framing shows of it."""
    image = Image.fromarray(np.repeat(np.array([255, 0], np.uint8), (50, 50))[:, None].repeat(40, axis=1))
    base = Preprocessing(resize=40, crop=(32, 32), mean=(0.5,), std=(0.5,), interpolation="nearest")
    assert base.framing == "crop"
    shown = {framing: base.with_framing(framing).prepare(image)[0] for framing in ("crop", "letterbox", "squash")}
    for framing, pixels in shown.items():
        assert base.with_framing(framing).framing == framing
        assert set(pixels[:16, 16].tolist()) == {255}, framing
        assert set(pixels[16:, 16].tolist()) == {0}, framing
    width = round(40 * 32 / 100)  # of the letterboxed image, 9.5 or 10 pixels at each side
    assert (shown["letterbox"][0] == 128).sum() == 32 - width
    assert (shown["crop"] == 128).sum() == (shown["squash"] == 128).sum() == 0
    assert base.with_framing("squash").with_framing("crop").resize == 32
    assert base.with_framing("crop") is base
    assert base.with_framing("letterbox").resized((64, 48)).framing == "letterbox"


def test_the_box_of_a_letterbox_is_larger_than_the_image() -> None:
    preprocessing = Preprocessing(resize=(32, 32), crop=(32, 32), letterbox=True)
    assert preprocessing.compute_box(100, 50) == (-25, 0, 75, 100)
    assert preprocessing.compute_box(50, 100) == (0, -25, 100, 75)


def test_image_of_the_right_size_is_not_resampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "resize", None)
    image = build_noise(256, 300)
    pixels = build_imagenet_preprocessing((224, 224)).prepare(image)
    np.testing.assert_array_equal(pixels.permute(1, 2, 0).numpy(), np.asarray(image)[16:240, 38:262])


@pytest.mark.parametrize("interpolation", get_args(Interpolation))
@pytest.mark.parametrize("size", [(20, 600), (700, 30)])
def test_strip_is_resized_only_inside_the_crop(
    size: tuple[int, int], interpolation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    preprocessing = Preprocessing(resize=64, crop=(48, 56), interpolation=interpolation)
    # Values from 64 to 191: if a filter overshoots 0 or 255, Pillow clips between its two passes, whose order depends on the
    # shape.
    image = build_noise(*size).point([64 + value // 2 for value in range(256)] * 3)
    expected = preprocessing.prepare(image)
    monkeypatch.setattr(module, "MAX_RESIZED_PIXELS", 64 * 64)
    difference = (preprocessing.prepare(image).int() - expected.int()).abs()
    if interpolation in ("nearest", "box"):
        # Discontinuous filters: rounding of the box to float32 can select the neighbouring row.
        assert (difference > 1).float().mean() < 0.05
    else:
        assert difference.max() <= 1


def test_thin_image_needs_little_memory() -> None:
    """The whole resized image would have 256 x 12,800,000 pixels, ten gigabytes."""
    pixels = build_imagenet_preprocessing((224, 224)).prepare(Image.new("RGB", (50_000, 1), (9, 8, 7)))
    assert torch.equal(pixels, torch.tensor([9, 8, 7], dtype=torch.uint8).view(3, 1, 1).expand(3, 224, 224))


def test_pil_image_and_its_file_agree(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "turned.png"
    build_noise(40, 30).convert("RGBA").save(path, exif=exif)
    for preprocessing in (build_imagenet_preprocessing((24, 32)), build_imagenet_preprocessing((24, 32), num_channels=1)):
        with Image.open(path) as image:
            assert torch.equal(preprocessing.prepare(image), preprocessing.load(path))
    broken = io.BytesIO(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match="damaged"):
        preprocessing.prepare(Image.open(broken))


def test_normalise_formula() -> None:
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, 3, 16, 16)
    normalised = build_imagenet_preprocessing((16, 16)).normalise(levels)
    assert normalised.dtype == torch.float32
    for channel, (mean, std) in enumerate(zip(IMAGENET_MEAN, IMAGENET_STD, strict=True)):
        expected = (np.arange(256) / 255 - mean) / std
        np.testing.assert_allclose(normalised[1, channel].flatten().numpy(), expected, rtol=0, atol=1e-6)
    symmetric = build_inception_preprocessing((16, 16)).normalise(levels[0])
    np.testing.assert_allclose(symmetric[0].flatten().numpy(), (np.arange(256) - 127.5) / 127.5, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_normalise_takes_floating_point_as_0_to_1(dtype: torch.dtype) -> None:
    images = torch.rand(2, 3, 5, 4, dtype=torch.float64).to(dtype)
    normalised = build_imagenet_preprocessing((5, 4)).normalise(images)
    mean, std = (torch.tensor(numbers, dtype=torch.float64).view(3, 1, 1) for numbers in (IMAGENET_MEAN, IMAGENET_STD))
    # Rounded once, at the end.
    torch.testing.assert_close(normalised, ((images.double() - mean) / std).to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)
    assert normalised.dtype == dtype


def test_normalise_rejects_other_shapes_and_types() -> None:
    preprocessing = build_inception_preprocessing((8, 8))
    for shape in ((1, 8, 8), (2, 8, 8, 3), (8, 8)):
        with pytest.raises(ValueError, match=re.escape(str(shape))):
            preprocessing.normalise(torch.zeros(shape, dtype=torch.uint8))
    for dtype in (torch.int64, torch.int8, torch.bool):
        with pytest.raises(ValueError, match=str(dtype)):
            preprocessing.normalise(torch.zeros(3, 8, 8, dtype=dtype))


def test_presets_equal_the_released_ones() -> None:
    assert build_imagenet_preprocessing((224, 224)) == Preprocessing(
        resize=256, crop=(224, 224), interpolation="bicubic", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
    )
    assert build_imagenet_preprocessing((384, 384)).resize == 439  # 256 / 224 * 384 = 438.86
    assert build_imagenet_preprocessing((384, 224)).resize == 256
    assert build_inception_preprocessing((384, 224)) == Preprocessing(
        resize=(384, 224), crop=(384, 224), interpolation="bilinear", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
    )
    grey = build_imagenet_preprocessing((28, 28), num_channels=1)
    assert grey.num_channels == 1
    assert grey.mean + grey.std == pytest.approx((0.449, 0.226))
    assert build_inception_preprocessing((28, 28), num_channels=1).mean == (0.5,)
    for build in (build_imagenet_preprocessing, build_inception_preprocessing):
        with pytest.raises(ValueError, match="num_channels=4"):
            build((224, 224), num_channels=4)


def test_resized_keeps_the_ratio_of_the_crop() -> None:
    imagenet = build_imagenet_preprocessing((224, 224))
    assert imagenet.resized((384, 512)) == replace(imagenet, resize=439, crop=(384, 512))
    assert imagenet.resized((384, 384)).resized((224, 224)) == imagenet
    straight = Preprocessing(resize=(256, 512), crop=(224, 448))
    assert straight.resized((112, 448)) == Preprocessing(resize=(128, 512), crop=(112, 448))
    assert Preprocessing(resize=None, crop=(32, 32)).resized((48, 40)) == Preprocessing(resize=None, crop=(48, 40))
    assert Preprocessing(resize=1, crop=(100, 100)).resized((2, 2)).resize == 1
    with pytest.raises(ValueError, match=r"crop=\(0, 4\)"):
        imagenet.resized((0, 4))


INVALID: list[tuple[str, Any]] = [
    *(("crop", value) for value in (224, (224,), [224, 224], (224, 224.0), (224, 0), (224, 65536), None)),
    *(("resize", value) for value in (0, True, 256.0, (256, -1), (1, 2, 3))),
    *(("interpolation", value) for value in ("cubic", None)),
    *(("mean", value) for value in (0.5, [0.5, 0.5, 0.5], (0.5, "0.5", 0.5), (0.5, float("nan"), 0.5), (0.5,), ())),
    *(("std", value) for value in ((0.5, float("inf"), 0.5), (0.5, 10**400, 0.5), (0.5, True, 0.5), (0.5, 0.0, 0.5))),
    *(("std", value) for value in ((0.5, 0.5, -1), (0.5, 0.5, 1e-60))),  # 1e-60 is 0 in float32
]


@pytest.mark.parametrize(("name", "value"), INVALID)
def test_invalid_values_are_named_in_the_error(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{name}={value!r} ")):
        Preprocessing(**{"resize": 256, "crop": (224, 224), name: value})


@pytest.mark.parametrize("num_channels", [0, 2, 4])
def test_mean_and_std_need_one_or_three_channels(num_channels: int) -> None:
    half = (0.5,) * num_channels
    with pytest.raises(ValueError, match="1 or 3"):
        Preprocessing(resize=256, crop=(224, 224), mean=half, std=half)


def test_preprocessing_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        build_imagenet_preprocessing((224, 224)).crop = (1, 1)  # pyright: ignore


@pytest.mark.parametrize("resize", [256, (256, 300), None])
@pytest.mark.parametrize("num_channels", [1, 3])
def test_json_round_trip(resize: Any, num_channels: int) -> None:
    preprocessing = replace(build_imagenet_preprocessing((224, 192), num_channels), resize=resize)
    content = preprocessing.to_json()
    assert json.loads(json.dumps(content)) == content
    again = Preprocessing.from_json(json.loads(json.dumps(content)))
    assert again == preprocessing
    assert repr(again) == repr(preprocessing)


def test_invalid_json() -> None:
    content = build_imagenet_preprocessing((224, 224)).to_json()
    for other, kind in ((None, "NoneType"), ([content], "list"), ("crop", "str"), (3, "int")):
        with pytest.raises(ValueError, match=kind):
            Preprocessing.from_json(other)
    fewer = {name: value for name, value in content.items() if name not in ("crop", "std")}
    for wrong, problems in (
        (fewer, "crop is missing; std is missing"),
        ({**content, "gamma": 2, 7: 1}, "'gamma' is unknown; 7 is unknown"),
        ({**fewer, "Crop": [224, 224]}, "crop is missing; std is missing; 'Crop' is unknown"),
    ):
        with pytest.raises(ValueError, match=problems):
            Preprocessing.from_json(wrong)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(["resize", "crop", "interpolation", "mean", "std"]), ANYTHING)
def test_json_of_mistyped_fields_is_accepted_or_named(name: str, value: Any) -> None:
    content = {**build_imagenet_preprocessing((224, 224)).to_json(), name: value}
    try:
        taken = Preprocessing.from_json(content)
    except ValueError as error:
        assert f"{name}=" in str(error)  # noqa: PT017
    else:
        assert taken.to_json() == content


def test_import_needs_neither_torch_nor_pillow() -> None:
    code = "import sys, vitrine.data.preprocessing; print({'torch', 'PIL', 'numpy'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("set()\n", "")
