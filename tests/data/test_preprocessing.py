"""Preprocessing against Hugging Face's image processors, torchvision's published formulas and closed forms."""

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
from PIL import Image
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
    """Pixels bit by bit; numbers up to the rounding of 1/255, by which the peer multiplies where we divide."""
    pixels = preprocessing.prepare(image)
    peer.do_rescale, peer.do_normalize = False, False
    assert torch.equal(pixels, run_peer(peer, image).to(torch.uint8))
    peer.do_rescale, peer.do_normalize = True, True
    torch.testing.assert_close(preprocessing.normalise(pixels), run_peer(peer, image).float(), rtol=0, atol=1e-6)


def build_bit_peer(preprocessing: Preprocessing) -> BitImageProcessorPil:
    """Short side and centre crop with the numbers given; the defaults are CLIP's."""
    return BitImageProcessorPil(
        size={"shortest_edge": preprocessing.resize},
        crop_size={"height": preprocessing.crop[0], "width": preprocessing.crop[1]},
        resample=Image.Resampling[preprocessing.interpolation.upper()],
        image_mean=preprocessing.mean,
        image_std=preprocessing.std,
    )


@pytest.mark.parametrize("size", [(300, 500), (500, 300), (224, 224), (97, 31), (1, 9)])
def test_straight_resize_is_hugging_faces_vit(size: tuple[int, int]) -> None:
    require_equal_to_peer(build_inception_preprocessing((224, 224)), ViTImageProcessorPil(), build_noise(*size))


def test_straight_resize_and_centre_crop_is_hugging_faces_deit() -> None:
    preprocessing = Preprocessing(resize=(256, 256), crop=(224, 224), interpolation="bicubic")
    require_equal_to_peer(preprocessing, DeiTImageProcessorPil(), build_noise(300, 500))


# The long sides are 426 (= 256 * 500 / 300 truncated), 341, 256 and 819, so margins are 202, 117, 32 and 595: of an odd one,
# the smaller half comes first in both. (torchvision would round 297.5 to 298.)
@pytest.mark.parametrize("size", [(300, 500), (400, 300), (64, 64), (100, 320)])
@pytest.mark.parametrize("interpolation", get_args(Interpolation))
def test_short_side_and_centre_crop_is_hugging_faces_bit(size: tuple[int, int], interpolation: Any) -> None:
    preprocessing = replace(build_imagenet_preprocessing((224, 224)), interpolation=interpolation)
    require_equal_to_peer(preprocessing, build_bit_peer(preprocessing), build_noise(*size))


@pytest.mark.parametrize("label", ["000", "207", "950"])
def test_a_photograph_is_prepared_as_by_hugging_face(label: str, assets: Path) -> None:
    path = sorted((assets / "imagenet-val-1000" / label).iterdir())[0]
    with Image.open(path) as file:
        image = file.convert("RGB")
    inception = build_inception_preprocessing((224, 224))
    require_equal_to_peer(inception, ViTImageProcessorPil(), image)
    assert torch.equal(inception.load(path), inception.prepare(image))
    # The photographs are 341 x 256: the first is only cropped (margins 117 and 32), the second resized too (85 and 24).
    for resize, crop in ((256, 224), (184, 160)):
        preprocessing = replace(build_imagenet_preprocessing((crop, crop)), resize=resize)
        require_equal_to_peer(preprocessing, build_bit_peer(preprocessing), image)


@settings(deadline=None, max_examples=150)
@given(SIZES, SIZES, st.one_of(st.none(), SIDES, SIZES), st.sampled_from(get_args(Interpolation)), st.sampled_from([1, 3]))
def test_the_result_always_has_the_size_of_the_crop(
    image_size: tuple[int, int], crop: tuple[int, int], resize: Any, interpolation: Any, num_channels: int
) -> None:
    half = (0.5,) * num_channels
    preprocessing = Preprocessing(resize=resize, crop=crop, interpolation=interpolation, mean=half, std=half)
    pixels = preprocessing.prepare(Image.new("RGB", image_size[::-1], (200, 200, 200)))
    assert (pixels.shape, pixels.dtype, pixels.is_contiguous()) == ((num_channels, *crop), torch.uint8, True)
    # No filter changes a constant, so nothing was padded. Grey of equal parts is that part.
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
        (10, (100, 100), (100, 199), (100, 199)),  # the crop does not fit: from the image itself, not from 10 x 19
        (256, (384, 128), (100, 200), (384, 768)),
        (256, (128, 640), (100, 200), (320, 640)),
        (None, (224, 224), (300, 500), (300, 500)),
        (None, (224, 224), (100, 500), (224, 1120)),
        ((64, 32), (64, 32), (100, 500), (64, 32)),
        ((64, 32), (64, 64), (100, 500), (128, 64)),
    ],
)
def test_the_size_before_the_crop(
    resize: Any, crop: tuple[int, int], image_size: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert Preprocessing(resize=resize, crop=crop).compute_resized_size(*image_size) == expected


def test_an_image_of_the_right_size_is_not_resampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "resize", None)
    image = build_noise(256, 300)
    pixels = build_imagenet_preprocessing((224, 224)).prepare(image)
    np.testing.assert_array_equal(pixels.permute(1, 2, 0).numpy(), np.asarray(image)[16:240, 38:262])


@pytest.mark.parametrize("interpolation", get_args(Interpolation))
@pytest.mark.parametrize("size", [(20, 600), (700, 30)])
def test_a_strip_is_prepared_without_the_whole_of_it(
    size: tuple[int, int], interpolation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    preprocessing = Preprocessing(resize=64, crop=(48, 56), interpolation=interpolation)
    # Values from 64 to 191: where a filter overshoots 0 or 255, Pillow clips between its two passes, and takes them in
    # another order for another shape.
    image = build_noise(*size).point([64 + value // 2 for value in range(256)] * 3)
    expected = preprocessing.prepare(image)
    monkeypatch.setattr(module, "MAX_RESIZED_PIXELS", 64 * 64)
    difference = (preprocessing.prepare(image).int() - expected.int()).abs()
    if interpolation in ("nearest", "box"):
        # Filters with edges: where the box, in float32, falls beside one, a row is its neighbour.
        assert (difference > 1).float().mean() < 0.05
    else:
        assert difference.max() <= 1


def test_the_thinnest_of_images_needs_no_memory_to_speak_of() -> None:
    """Resized in whole it would have 256 x 12,800,000 pixels, ten gigabytes."""
    pixels = build_imagenet_preprocessing((224, 224)).prepare(Image.new("RGB", (50_000, 1), (9, 8, 7)))
    assert torch.equal(pixels, torch.tensor([9, 8, 7], dtype=torch.uint8).view(3, 1, 1).expand(3, 224, 224))


def test_an_image_that_pillow_opened_is_prepared_as_from_its_file(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "turned.png"
    build_noise(40, 30).convert("RGBA").save(path, exif=exif)
    for preprocessing in (build_imagenet_preprocessing((24, 32)), build_imagenet_preprocessing((24, 32), num_channels=1)):
        with Image.open(path) as image:
            assert torch.equal(preprocessing.prepare(image), preprocessing.load(path))
    broken = io.BytesIO(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"^The image is damaged or truncated"):
        preprocessing.prepare(Image.open(broken))


def test_normalise_is_its_formula() -> None:
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
    # One rounding at the end, and none of the means: half of the last digit, around 2.
    torch.testing.assert_close(normalised, ((images.double() - mean) / std).to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)
    assert normalised.dtype == dtype


def test_normalise_refuses_other_channels_and_other_numbers() -> None:
    preprocessing = build_inception_preprocessing((8, 8))
    for shape in ((1, 8, 8), (2, 8, 8, 3), (8, 8)):
        with pytest.raises(ValueError, match=rf"images of shape {re.escape(str(shape))} must be \(\.\., 3, H, W\)"):
            preprocessing.normalise(torch.zeros(shape, dtype=torch.uint8))
    for dtype in (torch.int64, torch.int8, torch.bool):
        with pytest.raises(ValueError, match=rf"images of {dtype} must be uint8, in 0\.\.255, or floating-point"):
            preprocessing.normalise(torch.zeros(3, 8, 8, dtype=dtype))


def test_builders_are_as_released() -> None:
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
        with pytest.raises(ValueError, match=r"num_channels=4 must be 1 \(grey\) or 3"):
            build((224, 224), num_channels=4)


def test_resized_keeps_the_part_that_is_seen() -> None:
    imagenet = build_imagenet_preprocessing((224, 224))
    assert imagenet.resized((384, 512)) == replace(imagenet, resize=439, crop=(384, 512))
    assert imagenet.resized((384, 384)).resized((224, 224)) == imagenet
    straight = Preprocessing(resize=(256, 512), crop=(224, 448))
    assert straight.resized((112, 448)) == Preprocessing(resize=(128, 512), crop=(112, 448))
    assert Preprocessing(resize=None, crop=(32, 32)).resized((48, 40)) == Preprocessing(resize=None, crop=(48, 40))
    assert Preprocessing(resize=1, crop=(100, 100)).resized((2, 2)).resize == 1
    with pytest.raises(ValueError, match=r"crop=\(0, 4\) must be height and width"):
        imagenet.resized((0, 4))


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"crop": 224}, "crop=224 must be height and width, 1 to 65535 pixels, as (224, 224)."),
    ({"crop": (224,)}, "crop=(224,) must be height and width"),
    ({"crop": [224, 224]}, "crop=[224, 224] must be height and width"),
    ({"crop": (224, 224.0)}, "crop=(224, 224.0) must be height and width"),
    ({"crop": (224, 0)}, "crop=(224, 0) must be height and width"),
    ({"crop": (224, 65536)}, "crop=(224, 65536) must be height and width"),
    ({"crop": None}, "crop=None must be height and width"),
    ({"resize": 0}, "resize=0 must be the short side, as 256, or height and width, as (224, 224)"),
    ({"resize": True}, "resize=True must be the short side"),
    ({"resize": 256.0}, "resize=256.0 must be the short side"),
    ({"resize": (256, -1)}, "resize=(256, -1) must be the short side"),
    ({"resize": (1, 2, 3)}, "resize=(1, 2, 3) must be the short side"),
    ({"interpolation": "cubic"}, "interpolation='cubic' must be one of nearest, box, bilinear, hamming, bicubic, lanczos."),
    ({"interpolation": None}, "interpolation=None must be one of"),
    ({"mean": 0.5}, "mean=0.5 must be a tuple of finite numbers, one for each channel."),
    ({"mean": [0.5, 0.5, 0.5]}, "mean=[0.5, 0.5, 0.5] must be a tuple"),
    ({"mean": (0.5, "0.5", 0.5)}, "mean=(0.5, '0.5', 0.5) must be a tuple of finite numbers"),
    ({"mean": (0.5, float("nan"), 0.5)}, "mean=(0.5, nan, 0.5) must be a tuple of finite numbers"),
    ({"std": (0.5, float("inf"), 0.5)}, "std=(0.5, inf, 0.5) must be a tuple of finite numbers"),
    ({"std": (0.5, 10**400, 0.5)}, "must be a tuple of finite numbers"),
    ({"std": (0.5, True, 0.5)}, "std=(0.5, True, 0.5) must be a tuple of finite numbers"),
    ({"mean": (), "std": ()}, "mean=() and std=() must both have 1 or both have 3 numbers"),
    ({"mean": (0.5,)}, "mean=(0.5,) and std=(0.5, 0.5, 0.5) must both have 1 or both have 3 numbers"),
    ({"mean": (0.5,) * 4, "std": (0.5,) * 4}, "must both have 1 or both have 3 numbers"),
    ({"std": (0.5, 0.0, 0.5)}, "std=(0.5, 0.0, 0.5) must be above 0 in every channel."),
    ({"std": (0.5, 0.5, -1)}, "std=(0.5, 0.5, -1) must be above 0"),
    ({"std": (0.5, 0.5, 1e-60)}, "std=(0.5, 0.5, 1e-60) must be above 0"),  # which is 0 in float32
]


@pytest.mark.parametrize(("changes", "message"), MISTAKES)
def test_mistakes_cost_a_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Preprocessing(**{"resize": 256, "crop": (224, 224), **changes})


def test_it_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        build_imagenet_preprocessing((224, 224)).crop = (1, 1)  # pyright: ignore


@pytest.mark.parametrize("resize", [256, (256, 300), None])
@pytest.mark.parametrize("num_channels", [1, 3])
def test_json_brings_back_the_same(resize: Any, num_channels: int) -> None:
    preprocessing = replace(build_imagenet_preprocessing((224, 192), num_channels), resize=resize)
    content = preprocessing.to_json()
    assert json.loads(json.dumps(content)) == content
    again = Preprocessing.from_json(json.loads(json.dumps(content)))
    assert again == preprocessing
    assert repr(again) == repr(preprocessing)


def test_json_of_another_shape_costs_a_sentence() -> None:
    content = build_imagenet_preprocessing((224, 224)).to_json()
    for other, kind in ((None, "NoneType"), ([content], "list"), ("crop", "str"), (3, "int")):
        with pytest.raises(ValueError, match=rf"The preprocessing is a {kind}; an object as `to_json` writes it was needed"):
            Preprocessing.from_json(other)
    fewer = {name: value for name, value in content.items() if name not in ("crop", "std")}
    fields = "write exactly the fields resize, crop, interpolation, mean, std."
    for wrong, faults in (
        (fewer, "crop is missing; std is missing"),
        ({**content, "gamma": 2, 7: 1}, "'gamma' is unknown; 7 is unknown"),
        ({**fewer, "Crop": [224, 224]}, "crop is missing; std is missing; 'Crop' is unknown"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"The preprocessing's {faults}: {fields}")):
            Preprocessing.from_json(wrong)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(["resize", "crop", "interpolation", "mean", "std"]), ANYTHING)
def test_json_of_mistyped_fields_is_taken_or_costs_a_sentence(name: str, value: Any) -> None:
    content = {**build_imagenet_preprocessing((224, 224)).to_json(), name: value}
    try:
        taken = Preprocessing.from_json(content)
    except ValueError as error:
        assert f"{name}=" in str(error)  # noqa: PT017
    else:
        assert taken.to_json() == content


def test_importing_it_brings_neither_torch_nor_pillow() -> None:
    code = "import sys, vitrine.data.preprocessing; print({'torch', 'PIL', 'numpy'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("set()\n", "")
