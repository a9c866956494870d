"""`vitrine convert`: a checkpoint from one format to another, and the proof that it is the same."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from vitrine.core.console import parse_image_size, print_table
from vitrine.core.files import require_folder_of, write_json
from vitrine.formats.config import Facts, FormatName
from vitrine.models.config import ResizeMethod

if TYPE_CHECKING:
    from torch import Tensor

    from vitrine.formats.checkpoint import Checkpoint
    from vitrine.formats.verify import Comparison

NUM_IMAGES = 8


def convert(
    model: Annotated[Positional[str], arg(metavar="MODEL")],
    out: Annotated[Positional[Path], arg(metavar="OUT")],
    format: FormatName,
    image_size: str | None = None,
    num_classes: int | None = None,
    resize_method: ResizeMethod = "paper",
    class_names: Path | None = None,
    preprocess: Annotated[str | None, arg(metavar="{None,imagenet,inception,FILE}")] = None,
    gelu: Literal["tanh", "erf"] | None = None,
    norm_eps: float | None = None,
    num_heads: int | None = None,
    grid: str | None = None,
    overwrite: bool = False,
    verify: bool = False,
    images: tuple[Path, ...] = (),
    seed: int = 0,
    device: str = "cpu",
    json: Path | None = None,
) -> None:
    """Write a checkpoint in another format.

    Formats: vitrine and hf are folders; google-2020, google-linen, big-vision and bit are .npz files; timm and torchvision
    .safetensors or .pth. What a format cannot hold lies beside it, so that reading it back gives the same model.

    Args:
        model: A folder or file in any known format, or hf://org/name[@revision].
        out: The folder or file to write.
        format: The format to write.
        image_size: Pixels of the side, or height and width as 224x320; positions are resized to it.
        num_classes: A new head of zeros for so many classes, if they are not as many; 0 leaves the head out.
        resize_method: How positions are resized: as the paper's code, as timm, or as Hugging Face.
        class_names: A text file with one name per line, in the order of the classes.
        preprocess: What the model expects of images, where its file does not say: imagenet (short side 256, crop 224),
            inception (straight to the size, values in [-1, 1]), or a file of JSON.
        gelu: Which GELU the model was trained with, where its file does not say.
        norm_eps: Epsilon of its LayerNorms, where its file does not say.
        num_heads: Number of its heads, where its file does not say.
        grid: Rows and columns of its patches, as 14x20, where its positions are no square.
        overwrite: Replace what is at OUT.
        verify: Read it back, run both on the same images and compare; with transformers on its own format, too.
        images: Image files to verify with, instead of eight drawn ones.
        seed: Of the drawn images.
        device: Where to run the models for --verify, as cuda.
        json: Write the comparison to this file.
    """
    if not verify and (images or json is not None or seed != 0 or device != "cpu"):
        raise ValueError("--images, --seed, --device and --json belong to --verify: add it, or leave them out.")
    if image_size is None and resize_method != "paper":
        raise ValueError(f"--resize-method {resize_method} belongs to --image-size: say to which size, or leave it out.")
    if not overwrite and (out.exists() or out.is_symlink()):
        raise FileExistsError(f"{out} exists: choose another name, or add --overwrite.")
    facts = Facts(
        gelu=gelu,
        norm_eps=norm_eps,
        num_heads=num_heads,
        grid=None if grid is None else parse_image_size(grid, "--grid"),
        preprocess=preprocess if preprocess in ("imagenet", "inception", None) else Path(preprocess),
    )
    size = None if image_size is None else parse_image_size(image_size, "--image-size")
    names = None if class_names is None else read_class_names(class_names)
    check_places(out, images, json)

    from vitrine.core.device import require_device
    from vitrine.formats.load import load_checkpoint
    from vitrine.formats.save import require_path, save_checkpoint

    require_path(format, out)
    require_device(device)
    checkpoint = load_checkpoint(model, num_classes, size, facts=facts, resize_method=resize_method)
    checkpoint = checkpoint if names is None else replace(checkpoint, class_names=names)
    shown = read_images(checkpoint, images, seed) if verify else None  # a bad image is found before anything is written
    save_checkpoint(checkpoint, out, format)
    print(f"{out}: {describe(checkpoint)}, {format}")
    if shown is not None:
        report(checkpoint, out, shown, device, json)


def check_places(out: Path, images: tuple[Path, ...], json: Path | None) -> None:
    """Before anything is loaded, which can take minutes."""
    for path in (out, *([] if json is None else [json])):
        require_folder_of(path)
    for path in images:
        if not path.is_file():
            raise FileNotFoundError(f"--images {path} is no file: give the files of images to verify with.")


def read_class_names(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--class-names {path} must be a text file with one name per line: {error}.") from None


def describe(checkpoint: "Checkpoint") -> str:
    config = checkpoint.model.config
    num_parameters = sum(parameter.numel() for parameter in checkpoint.model.parameters())
    height, width = config.image_size
    return f"{num_parameters:,} parameters, {height} x {width} pixels, {config.num_classes} classes"


def read_images(checkpoint: "Checkpoint", paths: tuple[Path, ...], seed: int) -> "Tensor":
    from torch import stack

    from vitrine.formats.verify import draw_images

    if not paths:
        return draw_images(checkpoint, NUM_IMAGES, seed)
    return stack([checkpoint.preprocessing.load(path) for path in paths])


def report(checkpoint: "Checkpoint", out: Path, images: "Tensor", device: str, json: Path | None) -> None:
    from vitrine.formats.verify import TOLERANCE, verify_checkpoint

    comparisons = verify_checkpoint(checkpoint, out, images, device)
    columns = ("read by", "largest difference of logits", "of features", "largest logit", "same answer", "")
    print_table(columns, map(format_row, comparisons))
    if json is not None:
        write_json(json, [describe_comparison(comparison) for comparison in comparisons])
    different = [comparison.reader for comparison in comparisons if not comparison.is_equal]
    if different:
        raise ValueError(
            f"{out} is not the same as read by {' and '.join(different)}: logits or features differ by more than {TOLERANCE:g} "
            "of the largest, or preprocessing or class names differ; what was written was left for you to look at."
        )


def format_row(comparison: "Comparison") -> list[str]:
    return [
        comparison.reader,
        f"{comparison.max_difference:.2g}",
        f"{comparison.max_feature_difference:.2g}",
        f"{comparison.max_logit:.4g}",
        f"{comparison.same_answers} of {comparison.num_images}",
        "equal" if comparison.is_equal else "DIFFERENT",
    ]


def describe_comparison(comparison: "Comparison") -> dict[str, Any]:
    return {**asdict(comparison), "is_equal": comparison.is_equal}
