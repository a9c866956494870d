"""Datasets of the Hugging Face hub, by the `datasets` package: hf://datasets/[owner/]name[:configuration][@revision].

`datasets` downloads all splits on first use and caches them. Its cache, token, endpoint and offline mode are set by the
environment: HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE or HF_DATASETS_OFFLINE. Code in a repository is never run.
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
from vitrine.data.sources.parquet import choose_columns, is_feature, parse_labels

if TYPE_CHECKING:
    import datasets

REFERENCE = re.compile(
    rf"{hub.DATASET_SCHEME}(?P<repository>(?:{hub.NAME}/)?{hub.NAME})(?::(?P<configuration>{hub.STEP}))?{hub.REVISION}",
    re.ASCII,
)
COMMIT = re.compile(r"[0-9a-f]{7,40}")


class Reference(NamedTuple):
    """Parts of a reference to a dataset on the hub."""

    repository: str
    configuration: str | None
    revision: str | None


def parse_reference(spec: str) -> Reference:
    """Split hf://datasets/owner/name:configuration@revision into its parts."""
    expected = f"{hub.DATASET_SCHEME}owner/name, optionally followed by :configuration or @revision"
    return Reference(**hub.match_reference(spec, REFERENCE, f"a dataset on the hub; expected {expected}").groupdict())


def list_hub_splits(spec: str) -> tuple[str, ...]:
    """Return the splits of a dataset on the hub, without downloading its images."""
    reference = parse_reference(spec)
    with connect(spec, reference) as (datasets, _):
        names = datasets.get_dataset_split_names(
            hub.DATASET_SCHEME + reference.repository, config_name=reference.configuration, revision=reference.revision
        )
    return order_splits(match_splits(names))


def open_hub(spec: str, split: str | None) -> "HubSource":
    """Open a split of a dataset on the hub, downloaded if it is not cached yet."""
    reference = parse_reference(spec)
    with connect(spec, reference) as (datasets, problem):
        # The scheme is needed: without it, a local folder of the same name would be opened.
        loaded = datasets.load_dataset(
            hub.DATASET_SCHEME + reference.repository, name=reference.configuration, revision=reference.revision
        )
    if problem is not None:
        check_cached_copy(spec, reference, loaded, problem)
    return open_loaded(loaded, spec, split)


def open_loaded(loaded: "Mapping[Any, datasets.Dataset]", spec: str, split: str | None) -> "HubSource":
    """Open a split of what `datasets.load_dataset` returns."""
    name = choose_split(loaded, spec, split)
    return HubSource(loaded[name], spec, split, [loaded[other] for other in loaded if other != name])


@contextmanager
def connect(spec: str, reference: Reference) -> Iterator[tuple[Any, Exception | None]]:
    """Give the `datasets` package, and the error if the hub cannot be reached, in which case only its cache is used."""
    try:
        import datasets
    except ImportError:
        raise ValueError(f"{spec} needs the package datasets: pip install 'vitrine[datasets]'.") from None
    from datasets import config
    from huggingface_hub.errors import OfflineModeIsEnabled, RevisionNotFoundError

    if config.HF_HUB_OFFLINE:  # also set by HF_DATASETS_OFFLINE, which huggingface_hub does not read
        problem = OfflineModeIsEnabled()
    else:
        _, problem = hub.list_repository_files("dataset", reference.repository, reference.revision)
    try:
        if isinstance(problem, RevisionNotFoundError):  # the cache could only give another revision
            raise problem
        with quiet_datasets(datasets, is_offline=problem is not None):
            yield datasets, problem
    except Exception as error:  # connection errors are httpx's, and a broken repository may cause any error
        raise (explain_datasets_error(spec, error) if problem is None else hub.explain_hub_error(spec, problem)) from error


def explain_datasets_error(spec: str, error: BaseException) -> ValueError | OSError:
    """Turn an error of the package `datasets` into one sentence, given that the hub could be reached."""
    from datasets.exceptions import DatasetNotFoundError, DatasetsError

    if isinstance(error, DatasetNotFoundError):  # it exists, otherwise the hub would have said so
        return ValueError(hub.explain_gated_repository(spec))
    # `datasets` wraps errors of the connection or the disk in its own; a plain FileNotFoundError hides them as its context.
    own = (DatasetsError, ValueError, TypeError, LookupError, RuntimeError, FileNotFoundError)
    while isinstance(error, own) and (inner := error.__context__ if type(error) is FileNotFoundError else error.__cause__):
        error = inner
    if not isinstance(error, own):
        return hub.explain_hub_error(spec, error)
    cause, url = hub.format_cause(error), hub.repository_url(spec)
    return ValueError(f"{spec} cannot be read by the package datasets ({cause}): check its files at {url}.")


@contextmanager
def quiet_datasets(datasets: Any, is_offline: bool) -> Iterator[None]:
    """Switch off progress bars and logs of `datasets`, and set its offline mode, for which it has no argument."""
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


def check_cached_copy(spec: str, reference: Reference, loaded: "Mapping[Any, datasets.Dataset]", problem: Exception) -> None:
    """Warn that the cache's newest copy is used, or raise OSError if it is not the requested commit."""
    commit = Path(next(iter(loaded.values())).cache_files[0]["filename"]).parent.name
    requested = reference.revision or ""
    if not commit.startswith(requested) and COMMIT.fullmatch(requested):
        raise OSError(f"{spec} is not in the cache, which has commit {commit}; {hub.explain_download_error(problem)}.")
    if not commit.startswith(requested) or not hub.is_offline(problem):
        hub.warn_about_cached_copy(spec, commit, problem)


def choose_split(datasets: Mapping[Any, Any], data: str, split: str | None) -> Any:
    """Return the key of a split in a `DatasetDict`, or of its only dataset if that is not named like a split."""
    splits = match_splits(list(datasets))
    require_split(data, split, order_splits(splits))
    if split is None and len(datasets) != 1:
        raise ValueError(f"{data} has the splits {join_names([*map(str, datasets)])}; expected train, val or test.")
    return next(iter(datasets)) if split is None else splits[split]


def match_splits(names: Sequence[Any]) -> dict[str, Any]:
    """Return {train, val or test: name in the dataset}; the first of several names with the same meaning."""
    splits: dict[str, Any] = {}
    for name in names:
        if (split := normalise_split(str(name))) is not None:
            splits.setdefault(split, name)
    return splits


class HubSource(Source):
    """Images of a `datasets.Dataset`. Tables on disk are pickled as paths."""

    def __init__(
        self, dataset: "datasets.Dataset", title: str, split: str | None = None, others: "Sequence[datasets.Dataset]" = ()
    ) -> None:
        """Take one split and, in `others`, the other splits, so that all have the same classes if these have no names."""
        self.title = title if split is None else f"{title}/{split}"
        self.labels, self.class_names = Labels.none_each(len(dataset)), ()
        declared: Any = dataset.features
        features = declared.to_dict()
        images = [name for name in dataset.column_names if is_feature(features[name], "Image")]
        columns = choose_columns(dataset.column_names, images, features, self.title)
        self.images = select_undecoded(dataset, columns.image)
        if columns.label is not None and len(dataset) > 0:
            other_columns = [read_column(other, columns.label) for other in others if columns.label in other.column_names]
            parsed = parse_labels(read_column(dataset, columns.label), other_columns, columns.class_names, self.title)
            self.labels, self.class_names = validate_labels(*parsed, self.title, self.name)

    def fetch(self, index: int) -> bytes:
        """Return the bytes of one image of the downloaded dataset, for `Source.read`."""
        [image] = self.images[index].values()
        if image is not None and image["bytes"] is not None:
            return image["bytes"]
        # `datasets` itself writes absolute paths into its cache; other paths come from the data and mean nothing here.
        if image is None or image["path"] is None or not Path(image["path"]).is_absolute():
            raise OSError("its row contains no image bytes")
        return Path(image["path"]).read_bytes()

    def name(self, index: int) -> str:
        return f"{self.title}[{index}]"

    def files(self) -> list[Path]:
        return [Path(file["filename"]) for file in self.images.cache_files]


def select_undecoded(dataset: "datasets.Dataset", image: str) -> "datasets.Dataset":
    """Select the image column as bytes or paths, which Vitrine decodes itself."""
    import datasets

    return dataset.with_format(None).select_columns([image]).cast_column(image, datasets.Image(decode=False))


def read_column(dataset: "datasets.Dataset", column: str) -> Any:
    """Read a whole column as an Arrow array."""
    table: Any = dataset.select_columns([column]).with_format("arrow")[:]
    return table.column(column)
