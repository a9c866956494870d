"""`vitrine data pack`: decode a dataset once, so that training reads pixels."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitrine.core.console import format_bytes, print_table
from vitrine.core.files import check_output_files, check_parent_folder, write_json
from vitrine.data.config import BadImages


def data_pack(
    data: Annotated[Positional[str], arg(metavar="DATA")],
    out: Annotated[Positional[Path], arg(metavar="OUT")],
    size: int,
    splits: tuple[str, ...] = (),
    channels: int = 3,
    bad_images: BadImages = "error",
    overwrite: bool = False,
    json: Path | None = None,
) -> None:
    """Decode every image once and store it resized, as plain pixels in one memory-mapped file.

    The result is a dataset: use OUT wherever DATA is expected. A warning is printed when the original data has changed since.

    Args:
        data: Folder, file, hf://datasets/org/name, or built-in name.
        out: Output folder.
        size: Resize images to this short side in pixels, e.g. 256 for training at 224; smaller images are kept.
        splits: Pack only these splits, e.g. train val.
        channels: 3, or 1 for grey.
        bad_images: On an unreadable image: stop with an error, or skip and count it.
        overwrite: Replace a packed set at OUT.
        json: Write the figures to this file.
    """
    if not overwrite and (out.exists() or out.is_symlink()):
        raise FileExistsError(f"{out} exists: choose another name, or add --overwrite.")
    check_parent_folder(out)
    check_output_files(json)

    from vitrine.data.pack import pack_data

    packed = pack_data(data, out, size, splits=splits, num_channels=channels, bad_images=bad_images, show_progress=True)
    rows, figures = [], []
    for part in packed:
        num_images, speed = len(part.sizes), f"{len(part.sizes) / part.seconds:,.0f}"
        rows.append((part.split or "all", f"{num_images:,}", str(part.num_skipped), format_bytes(part.num_bytes), speed))
        counts = {"num_images": num_images, "num_skipped": part.num_skipped, "num_bytes": part.num_bytes}
        figures.append({"split": part.split, **counts, "seconds": part.seconds})
    print_table(("split", "images", "skipped", "size", "images per second"), rows)
    if json is not None:
        write_json(json, {"data": data, "out": str(out), "size": size, "splits": figures})
