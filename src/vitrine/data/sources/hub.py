"""Data sets of the Hugging Face hub, through the `datasets` package, named by

    hf://datasets/[owner/]name[:configuration][@revision]

`datasets` fetches all splits on first use and keeps them. Its cache, the token, the endpoint and offline mode are as the
environment sets them: HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE or HF_DATASETS_OFFLINE. Code of a repository is never run.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vitrine.core import hub
from vitrine.core.console import join_names
from vitrine.data.dataset_format import normalise_split, order_splits, require_split
from vitrine.data.source import Labels, Source
from vitrine.data.sources.annotations import validate_labels
from vitrine.data.sources.parquet import choose_columns, find_labels, is_feature

if TYPE_CHECKING:
    import datasets

REFERENCE = re.compile(
    rf"{hub.DATASET_SCHEME}(?P<repository>(?:{hub.NAME}/)?{hub.NAME})(?::(?P<configuration>{hub.STEP}))?{hub.REVISION}",
    re.ASCII,
)
COMMIT = re.compile(r"[0-9a-f]{7,40}")


class Reference(NamedTuple):
    repository: str
    configuration: str | None
    revision: str | None


def parse_reference(spec: str) -> Reference:
    form = f"it must read {hub.DATASET_SCHEME}owner/name, with :configuration or @revision behind it where needed"
    return Reference(**hub.match_reference(spec, REFERENCE, f"data on the hub: {form}").groupdict())


def list_hub_splits(spec: str) -> tuple[str, ...]:
    """As train, val, test; found without fetching the images."""
    reference = parse_reference(spec)
    with reach_hub(spec, reference) as (datasets, _):
        theirs = datasets.get_dataset_split_names(
            hub.DATASET_SCHEME + reference.repository, config_name=reference.configuration, revision=reference.revision
        )
    return order_splits(name_splits(theirs))


def open_hub(spec: str, split: str | None) -> "HubSource":
    reference = parse_reference(spec)
    with reach_hub(spec, reference) as (datasets, trouble):
        # With the scheme, because a folder of the same name would be taken otherwise.
        loaded = datasets.load_dataset(
            hub.DATASET_SCHEME + reference.repository, name=reference.configuration, revision=reference.revision
        )
    if trouble is not None:
        tell_cached(spec, reference, loaded, trouble)
    return open_loaded(loaded, spec, split)


@contextmanager
def reach_hub(spec: str, reference: Reference) -> Iterator[tuple[Any, Exception | None]]:
    """The package `datasets`, silent, and what kept the hub from answering, if anything did: then it uses its cache alone."""
    try:
        import datasets
    except ImportError:
        raise ValueError(f"{spec} needs the package datasets: pip install 'vitrine[datasets]'.") from None
    from datasets import config
    from huggingface_hub.errors import OfflineModeIsEnabled, RevisionNotFoundError

    if config.HF_HUB_OFFLINE:  # also by HF_DATASETS_OFFLINE, of which huggingface_hub does not know
        trouble = OfflineModeIsEnabled()
    else:
        _, trouble = hub.list_repository_files("dataset", reference.repository, reference.revision)
    try:
        if isinstance(trouble, RevisionNotFoundError):  # any that the cache had would be another
            raise trouble
        with silence(datasets, is_offline=trouble is not None):
            yield datasets, trouble
    except Exception as error:  # those of the connection are httpx's, and a broken repository may bring about any
        raise (describe_refusal(spec, error) if trouble is None else hub.explain_hub_error(spec, trouble)) from error


def describe_refusal(spec: str, error: BaseException) -> ValueError | OSError:
    """Why `datasets` failed although the hub had answered."""
    from datasets.exceptions import DatasetNotFoundError, DatasetsError

    if isinstance(error, DatasetNotFoundError):  # and it is there, or the hub would have said so
        return ValueError(hub.explain_gated_repository(spec))
    # What it says of the data, at times around an error of the connection or the disk; a plain FileNotFoundError hides it.
    own = (DatasetsError, ValueError, TypeError, LookupError, RuntimeError, FileNotFoundError)
    while isinstance(error, own) and (inner := error.__context__ if type(error) is FileNotFoundError else error.__cause__):
        error = inner
    if not isinstance(error, own):
        return hub.explain_hub_error(spec, error)
    return ValueError(
        f"{spec} cannot be read by the package datasets ({hub.format_cause(error)}): check its configurations and files at "
        f"{hub.repository_url(spec)}, or take other data."
    )


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
    commit = Path(next(iter(loaded.values())).cache_files[0]["filename"]).parent.name
    asked = reference.revision or ""
    if not commit.startswith(asked) and COMMIT.fullmatch(asked):
        raise OSError(f"{spec} was needed, and the cache has the commit {commit}; {hub.explain_download_error(trouble)}.")
    if not commit.startswith(asked) or not hub.is_offline(trouble):
        hub.warn_about_cached_copy(spec, commit, trouble)


def open_loaded(loaded: "Mapping[Any, datasets.Dataset]", spec: str, split: str | None) -> "HubSource":
    """A split of what `load_dataset` gives."""
    splits = name_splits(list(loaded))
    require_split(spec, split, order_splits(splits))
    if split is None and len(loaded) != 1:
        raise ValueError(f"{spec} has the splits {join_names([*map(str, loaded)])}: one of train, val, test was needed.")
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
            found = find_labels(read_arrow(dataset, columns.label), rest, columns.class_names, self.title)
            self.labels, self.class_names = validate_labels(*found, self.title, self.name)

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
