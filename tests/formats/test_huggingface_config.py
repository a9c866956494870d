"""JSON files of Hugging Face folders, compared with transformers' own classes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoConfig, BitImageProcessorPil, DeiTImageProcessorPil, ViTImageProcessorPil

from tests.filling import build_filled
from tests.formats import cases
from tests.formats.cases import forget, load_quietly, save_quietly
from vitrine.data.preprocessing import Preprocessing, build_imagenet_preprocessing, build_inception_preprocessing
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.huggingface_config import preprocessing_from_huggingface

SIZE = cases.VIT.image_size


def write(preprocessing: Preprocessing, folder: Path) -> None:
    names = tuple("abcde")
    save_quietly(Checkpoint(build_filled(cases.VIT), preprocessing, names), folder, "hf")


@pytest.mark.parametrize(
    ("preprocessing", "kind"),
    [
        (build_inception_preprocessing(SIZE), ViTImageProcessorPil),
        (build_imagenet_preprocessing(SIZE), BitImageProcessorPil),
    ],
)
def test_a_written_processor_makes_the_same_image(preprocessing: Preprocessing, kind: Any, tmp_path: Path) -> None:
    write(preprocessing, tmp_path / "out")
    noise = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    processor = kind.from_pretrained(tmp_path / "out")
    theirs = processor(image, return_tensors="pt")["pixel_values"][0]
    ours = preprocessing.normalise(preprocessing.prepare(image))
    torch.testing.assert_close(ours, theirs.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "preprocessing",
    [
        build_inception_preprocessing(SIZE),
        build_imagenet_preprocessing(SIZE),
        Preprocessing(resize=(30, 40), crop=SIZE, interpolation="box"),
        Preprocessing(resize=None, crop=SIZE, mean=(0.0,) * 3, std=(1.0,) * 3),
    ],
)
def test_preprocessing_is_read_back_from_the_json_alone(preprocessing: Preprocessing, tmp_path: Path) -> None:
    write(preprocessing, tmp_path / "out")
    again = load_quietly(forget(tmp_path / "out"))
    assert again.preprocessing == preprocessing
    assert again.class_names == tuple("abcde")
    assert again.model.config == cases.VIT


def test_transformers_reads_our_config(tmp_path: Path) -> None:
    write(build_inception_preprocessing(SIZE), tmp_path / "out")
    config = AutoConfig.from_pretrained(tmp_path / "out")
    assert (config.model_type, config.hidden_size, config.num_attention_heads) == ("vit", 16, 2)
    assert (config.hidden_act, config.layer_norm_eps) == ("gelu_pytorch_tanh", 1e-6)
    assert config.id2label == dict(enumerate("abcde"))


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (DeiTImageProcessorPil, {"feature_extractor_type": "DeiTFeatureExtractor", "size": 28, "crop_size": 24}),
        (
            DeiTImageProcessorPil,
            {"image_processor_type": "DeiTImageProcessor", "size": {"height": 30, "width": 26}, "crop_size": 24},
        ),
        (BitImageProcessorPil, {"image_processor_type": "BitImageProcessor", "size": 28, "crop_size": 24}),
        (ViTImageProcessorPil, {"feature_extractor_type": "ViTFeatureExtractor", "size": 24}),
        (
            ViTImageProcessorPil,
            {"image_processor_type": "ViTImageProcessor", "size": {"height": 24, "width": 24}, "resample": 3},
        ),
    ],
)
def test_processor_files_of_all_versions_make_the_same_image(kind: Any, content: dict[str, Any]) -> None:
    """One number is the short side for one processor and both sides for another; defaults differ too."""
    content = {**content, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8))
    options = {name: value for name, value in content.items() if not name.endswith("_type")}
    theirs = kind(**options)(image, return_tensors="pt")["pixel_values"][0]
    ours = preprocessing_from_huggingface(content, cases.VIT)
    torch.testing.assert_close(ours.normalise(ours.prepare(image)), theirs.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("content", [{"do_rescale": False}, {"rescale_factor": 1 / 127.5}])
def test_another_scale_of_values_is_an_error(content: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="1/255"):
        preprocessing_from_huggingface({"size": 24, **content}, cases.VIT)
