"""`vitrine cache`: location and size of the caches, and clearing them."""

from dataclasses import asdict
from pathlib import Path

from vitrine.core.caches import CacheKind, clear_caches, list_caches
from vitrine.core.console import format_bytes, print_lines, print_table
from vitrine.core.files import check_output_files, find_cache_folder, write_json


def cache(clear: tuple[CacheKind, ...] | None = None, json: Path | None = None) -> None:
    """Show where caches are and how large they are, or clear them.

    features: of images by a frozen model. glyphs: shapes of the characters that `glyphs` draws. image-stats: sizes and hashes
    of images (`vitrine data check`, `duplicates`). verified: packs and .npz data whose checksums were compared. All of it is
    computed again when needed. The folder is $VITRINE_CACHE (default: ~/.cache/vitrine). Models and datasets of the Hugging
    Face Hub are in its own cache: `hf cache`.

    Args:
        clear: Delete these caches, e.g. --clear features; --clear alone deletes all.
        json: Write the figures to this file.
    """
    check_output_files(json)
    infos = list_caches() if clear is None else clear_caches(clear)
    print_lines(f"{'' if clear is None else 'Deleted from '}{find_cache_folder()}")
    print_table(
        ("cache", "files", "size"), [(each.kind, f"{each.num_files:,}", format_bytes(each.num_bytes)) for each in infos]
    )
    if json is not None:
        write_json(json, [{**asdict(each), "path": str(each.path)} for each in infos])
