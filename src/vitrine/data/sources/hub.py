"""Data sets of the Hugging Face hub, through the `datasets` package, named by

    hf://datasets/[owner/]name[:configuration][@revision]

`datasets` fetches all splits on first use and keeps them. Its cache, the token, the endpoint and offline mode are as the
environment sets them: HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE. Code of a repository is never run.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vitrine.core.notices import notice
from vitrine.core.sentences import list_names, summarise
from vitrine.data.kind import SPLITS, normalise_split, require_split
from vitrine.data.source import Labels, Source
from vitrine.data.sources.columns import choose_columns, is_feature, read_labels

if TYPE_CHECKING:
    import datasets

SCHEME = "hf://datasets/"
# What the hub allows for a name; a step of a revision becomes a path in the cache, so none may start with a dot.
NAME = r"\w(?:[\w.-]{0,94}\w)?"
STEP = r"\w[\w.+-]*"
REFERENCE = re.compile(
    rf"{SCHEME}(?P<repository>(?:{NAME}/)?{NAME})(?::(?P<configuration>{STEP}))?(?:@(?P<revision>{STEP}(?:/{STEP})*))?",
    re.ASCII,
)
COMMIT = re.compile(r"[0-9a-f]{7,40}")


class Reference(NamedTuple):
    repository: str
    configuration: str | None
    revision: str | None


def parse_reference(spec: str) -> Reference:
    match = REFERENCE.fullmatch(spec)
    if match is None or ".." in spec or "--" in match["repository"]:
        raise ValueError(
            f"{spec!r} does not name data on the hub: it must read {SCHEME}owner/name, with :configuration or @revision behind "
            "it where needed. Copy owner/name from the top of the data set's page."
        )
    return Reference(**match.groupdict())


def list_hub_splits(spec: str) -> tuple[str, ...]:
    """As train, val, test; found without fetching the images."""
    reference = parse_reference(spec)
    with reach_hub(spec, reference) as (datasets, _):
        theirs = datasets.get_dataset_split_names(
            SCHEME + reference.repository, config_name=reference.configuration, revision=reference.revision
        )
    return tuple(split for split in SPLITS if split in name_splits(theirs))


def open_hub(spec: str, split: str | None) -> "HubSource":
    reference = parse_reference(spec)
    with reach_hub(spec, reference) as (datasets, trouble):
        # With the scheme, because a folder of the same name would be taken otherwise.
        loaded = datasets.load_dataset(SCHEME + reference.repository, name=reference.configuration, revision=reference.revision)
    if trouble is not None:
        tell_cached(spec, reference, loaded, trouble)
    return open_loaded(loaded, spec, split)


@contextmanager
def reach_hub(spec: str, reference: Reference) -> Iterator[tuple[Any, Exception | None]]:
    """The package `datasets`, silent, and what kept the hub from answering, if anything did: then it uses its cache alone."""
    try:
        import datasets
    except ImportError:
        raise ValueError(
            f"{spec} needs the package datasets, which is not installed: pip install 'vitrine[datasets]'."
        ) from None
    from huggingface_hub.errors import RevisionNotFoundError

    trouble = ask_hub(reference)
    try:
        if isinstance(trouble, RevisionNotFoundError):  # any that the cache had would be another
            raise trouble
        with silence(datasets, is_offline=trouble is not None):
            yield datasets, trouble
    except Exception as error:  # those of the connection are httpx's, and a broken repository may bring about any
        # What the cache lacks it says in a ValueError; all else repeats, in more words, why it was asked at all.
        cause = error if trouble is None or isinstance(error, ValueError) else trouble
        raise ValueError(
            f"{spec} was not to be had ({describe_cause(cause)}): check its name and revision, the connection and, for "
            "private or gated data, the token of `hf auth login`."
        ) from error


def ask_hub(reference: Reference) -> Exception | None:
    """Whether the hub knows it: one question with a time limit, where `datasets` would ask for 23 seconds."""
    from huggingface_hub import HfApi, constants

    try:
        HfApi().dataset_info(reference.repository, revision=reference.revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:
        return error
    return None


@contextmanager
def silence(datasets: Any, is_offline: bool) -> Iterator[None]:
    """No bars and no log of its own on the terminal; whether it may ask the hub, it takes no argument for."""
    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    had_bars, was_offline = not datasets.are_progress_bars_disabled(), datasets.config.HF_HUB_OFFLINE
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        datasets.disable_progress_bars()
        datasets.config.HF_HUB_OFFLINE = was_offline or is_offline
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if had_bars:
            datasets.enable_progress_bars()
        datasets.config.HF_HUB_OFFLINE = was_offline


def tell_cached(spec: str, reference: Reference, loaded: "Mapping[Any, datasets.Dataset]", trouble: Exception) -> None:
    """The cache gives the newest that it has, of whatever revision; the folder of its files is called as the commit."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    commit = Path(next(iter(loaded.values())).cache_files[0]["filename"]).parent.name
    asked, cause = reference.revision or "", describe_cause(trouble)
    if not commit.startswith(asked) and COMMIT.fullmatch(asked):
        raise ValueError(f"{spec} was not to be had ({cause}), and the cache has the commit {commit}: connect, or ask for it.")
    if not commit.startswith(asked) or not isinstance(trouble, OfflineModeIsEnabled):
        notice(f"{spec} comes from the cache, which has the commit {commit}, as the hub was not to be asked ({cause}).")


def describe_cause(error: BaseException) -> str:
    kind, first = type(error).__name__, summarise(error)
    return kind if first == kind else f"{kind}: {first}"


def open_loaded(loaded: "Mapping[Any, datasets.Dataset]", spec: str, split: str | None) -> "HubSource":
    """A split of what `load_dataset` gives."""
    splits = name_splits(list(loaded))
    require_split(spec, split, tuple(each for each in SPLITS if each in splits))
    if split is None and len(loaded) != 1:
        raise ValueError(
            f"{spec} has the splits {list_names([str(name) for name in loaded])}: one of train, val, test was needed."
        )
    name = next(iter(loaded)) if split is None else splits[split]
    return HubSource(loaded[name], spec, split, [loaded[other] for other in loaded if other != name])


def name_splits(theirs: Sequence[Any]) -> dict[str, Any]:
    """Our names of the splits -> theirs; the first of several that mean the same."""
    found: dict[str, Any] = {}
    for name in theirs:
        if (split := normalise_split(str(name))) is not None:
            found.setdefault(split, name)
    return found


class HubSource(Source):
    """A split that `datasets` has on disk. It can be sent to another process: of its tables, only the paths are."""

    def __init__(
        self, dataset: "datasets.Dataset", title: str, split: str | None = None, others: "Sequence[datasets.Dataset]" = ()
    ) -> None:
        """`others` are the other splits, so that each counts the same classes where they have no names."""
        self.title = title if split is None else f"{title}/{split}"
        self.labels, self.class_names = Labels.none_each(len(dataset)), ()
        features = describe_features(dataset)
        noted = [name for name in dataset.column_names if is_feature(features[name], "Image")]
        columns = choose_columns(dataset.column_names, noted, features, self.title)
        self.images = undecoded(dataset, columns.image)
        if columns.label is not None and len(dataset) > 0:
            rest = [read_arrow(each, columns.label) for each in others if columns.label in each.column_names]
            read_labels(self, read_arrow(dataset, columns.label), rest, columns.class_names, self.title)

    def fetch(self, index: int) -> bytes:
        [image] = self.images[index].values()
        if image is not None and image["bytes"] is not None:
            return image["bytes"]
        # `datasets` itself gives whole paths into its cache; any other was in the data, and means nothing here.
        if image is None or image["path"] is None or not Path(image["path"]).is_absolute():
            raise OSError("its row holds no image")
        return Path(image["path"]).read_bytes()

    def name(self, index: int) -> str:
        return f"{self.title}[{index}]"

    def files(self) -> list[Path]:
        return [Path(file["filename"]) for file in self.images.cache_files]


def describe_features(dataset: "datasets.Dataset") -> dict[str, Any]:
    features: Any = dataset.features
    return features.to_dict()


def undecoded(dataset: "datasets.Dataset", image: str) -> "datasets.Dataset":
    """The one column, as bytes or a path: decoding is ours."""
    import datasets

    return dataset.with_format(None).select_columns([image]).cast_column(image, datasets.Image(decode=False))


def read_arrow(dataset: "datasets.Dataset", column: str) -> Any:
    table: Any = dataset.select_columns([column]).with_format("arrow")[:]
    return table.column(column)
