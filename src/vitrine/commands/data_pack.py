"""`vitrine data pack`: decode a data set once, so that training reads pixels."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vitrine.core.console import format_bytes, print_table
from vitrine.core.files import require_folder_of, write_json
from vitrine.data.config import BadImages

if TYPE_CHECKING:
    from vitrine.data.pack import PackedSplit


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
    """Decode every image once and store it shrunk, as plain pixels in one memory-mapped file.

    What is written is data like any other: give OUT wherever DATA is asked for. It says so when the data that it was made of
    has changed since, and when it was cut short.

    Args:
        data: A folder, file, hf://datasets/org/name, or a built-in name.
        out: The folder to write.
        size: Images with a short side above so many pixels are shrunk to it, as 256 for training at 224; none is enlarged.
        splits: Pack these only, as train val.
        channels: 3, or 1 for grey.
        bad_images: What to do with an image that cannot be read: stop and name it, or go on without it and count it.
        overwrite: Replace a packed set at OUT.
        json: Write the figures to this file.
    """
    if not overwrite and (out.exists() or out.is_symlink()):
        raise FileExistsError(f"{out} exists: choose another name, or add --overwrite.")
    for path in (out, *([] if json is None else [json])):
        require_folder_of(path)
    if json is not None and json.is_dir():
        raise IsADirectoryError(f"--json {json} is a folder: give the name of a file in it.")

    from vitrine.data.open_data import find_data
    from vitrine.data.pack import pack

    found = find_data(data)
    packed = pack(found, out, size, splits=splits, num_channels=channels, bad_images=bad_images, show_progress=True)
    print_table(("split", "images", "skipped", "size", "images per second"), map(format_row, packed))
    if json is not None:
        write_json(json, {"data": data, "out": str(out), "size": size, "splits": [pack_to_json(part) for part in packed]})


def format_row(part: "PackedSplit") -> list[str]:
    num_images = len(part.sizes)
    speed = f"{num_images / part.seconds:,.0f}"
    return [part.split or "all", f"{num_images:,}", str(part.num_skipped), format_bytes(part.num_bytes), speed]


def pack_to_json(part: "PackedSplit") -> dict[str, Any]:
    return {
        "split": part.split,
        "num_images": len(part.sizes),
        "num_skipped": part.num_skipped,
        "num_bytes": part.num_bytes,
        "seconds": part.seconds,
    }
