"""Hugging Face Hub: references to models and datasets, model download, readable errors.

Cache, token, endpoint and offline mode are huggingface_hub's own settings (HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE).
It is slow to import, so only the functions that need it do.
"""

import re
from functools import partial
from pathlib import Path
from typing import Literal

from vitrine.core.console import join_names, summarise_error, warn_user

SCHEME = "hf://"
DATASET_SCHEME = f"{SCHEME}datasets/"

# What huggingface_hub accepts for owner and name, so that a bad reference is rejected here, with a better message.
NAME = r"\w(?:[\w.-]{0,94}\w)?"
# Branches, tags, commits and refs/pr/3. A revision becomes a path in the cache, so no part of it may start with a dot.
STEP = r"\w[\w.+-]*"
REVISION = rf"(?:@(?P<revision>{STEP}(?:/{STEP})*))?"
MODEL_REFERENCE = re.compile(rf"{SCHEME}(?P<repository>{NAME}/{NAME}){REVISION}", re.ASCII)
# The hub's kinds of repositories are not owners; the cache writes "/" as "--"; .git ends an address.
FORBIDDEN = re.compile(r"^(models|datasets|spaces|kernels|buckets)/|--|\.git$")

CONFIGS = ("config.json", "preprocessor_config.json")
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = "model-*-of-*.safetensors"
PICKLED = "pytorch_model.bin"

TOKEN = "`hf auth login` or HF_TOKEN"


def is_hub_reference(source: str) -> bool:
    return source.startswith(SCHEME)


def parse_model_reference(source: str) -> tuple[str, str | None]:
    """Return repository and revision of hf://owner/name[@revision]; None is the newest commit of the main branch."""
    expected = "hf://owner/name or hf://owner/name@revision, in letters, digits, '-', '_' and '.'"
    match = match_reference(source, MODEL_REFERENCE, f"a model on the hub; expected {expected}")
    return match["repository"], match["revision"]


def match_reference(source: str, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
    """Match a reference with a pattern that has a group `repository`; raise a ValueError that says what was expected."""
    match = pattern.fullmatch(source)
    if match is None or ".." in source or FORBIDDEN.search(match["repository"]):
        raise ValueError(f"{source!r} does not name {expected}. Copy owner/name from the top of its page.")
    return match


def repository_url(source: str) -> str:
    """Return the web address of a reference, without its :configuration and @revision."""
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{re.split('[:@]', source.removeprefix(SCHEME))[0]}"


def download_model(source: str) -> Path:
    """Return the snapshot folder of a model, with its JSON files and one form of its weights, downloaded if not yet cached.

    If the hub cannot be reached, a complete cached copy is used, with a warning unless offline mode is set.
    """
    repository, revision = parse_model_reference(source)
    files, problem = list_repository_files("model", repository, revision)
    try:
        folder = download_snapshot(repository, revision, only_cached=problem is not None)
    except Exception as error:  # errors of the connection are neither OSError nor ValueError
        cause = problem or error
        raise explain_hub_error(source, cause) from cause
    if problem is not None and not is_offline(problem):
        warn_about_cached_copy(source, folder.name, problem)
    if not has_weights(folder):
        files = files or [path.name for path in folder.glob("*")]
        expected = f"{SINGLE}, {INDEX} with its shards, or {PICKLED}: choose another repository or revision"
        raise ValueError(f"{source} contains {join_names(files) or 'no files'}; expected {expected}.")
    return folder


def list_repository_files(
    kind: Literal["model", "dataset"], repository: str, revision: str | None
) -> tuple[list[str], Exception | None]:
    """Return the file names of a repository, or the error if the hub cannot be reached.

    Call this first: it is one request with a time limit, while `snapshot_download` and `datasets` wait without one, or try six
    times over 23 seconds if the connection is refused.
    """
    from huggingface_hub import HfApi, constants

    request = HfApi().dataset_info if kind == "dataset" else HfApi().model_info
    try:
        info = request(repository, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # errors of the connection are httpx's or httpx2's, neither OSError nor ValueError
        return [], error
    return sorted(file.rfilename for file in info.siblings or []), None


def download_snapshot(repository: str, revision: str | None, only_cached: bool) -> Path:
    """Download in two steps: the first shows in which form the weights are, since most repositories have several."""
    from huggingface_hub import snapshot_download

    download = partial(snapshot_download, repository, local_files_only=only_cached)
    folder = Path(download(revision=revision, allow_patterns=[*CONFIGS, SINGLE, INDEX]))
    if not (folder / SINGLE).exists():
        weights = SHARDS if (folder / INDEX).exists() else PICKLED
        # The folder is named by its commit; a branch may have moved since the first step.
        download(revision=folder.name, allow_patterns=[*CONFIGS, weights])
    return folder


def has_weights(folder: Path) -> bool:
    """Return whether a snapshot folder holds weights in one of their forms."""
    return any((folder / name).exists() for name in (SINGLE, INDEX, PICKLED))


def is_model_cached(source: str) -> bool:
    """Return whether a complete copy of a model is in the hub's cache, so that it can be loaded without a connection."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    repository, revision = parse_model_reference(source)
    try:
        return has_weights(download_snapshot(repository, revision, only_cached=True))
    except LocalEntryNotFoundError:
        return False


def is_offline(error: Exception) -> bool:
    """Return whether the hub was not reached because offline mode is set."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    return isinstance(error, OfflineModeIsEnabled)


def warn_about_cached_copy(source: str, commit: str, error: Exception) -> None:
    """Warn that a cached copy is used because the hub could not be reached."""
    warn_user(f"{source}: using the cached copy (commit {commit}), because the hub failed ({format_cause(error)}).")


def explain_hub_error(source: str, error: BaseException) -> ValueError | OSError:
    """Turn an error of huggingface_hub into one line: a ValueError if the user can correct it, else an OSError."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__  # why the hub could not be asked for what is not cached
    if isinstance(error, errors.GatedRepoError):  # before RepositoryNotFoundError, its base class
        return ValueError(explain_gated_repository(source))
    if isinstance(error, errors.RepositoryNotFoundError):
        advice = f"check the name, or, if it is private, give a token with access by {TOKEN}"
        return ValueError(f"{source} was not found at {constants.ENDPOINT}: {advice}.")
    if isinstance(error, errors.RevisionNotFoundError):
        advice = "pass one of its branches, tags or commits, or leave @revision out for the newest"
        return ValueError(f"{source} has no revision {source.partition('@')[2] or 'main'!r}: {advice}.")
    return OSError(f"{source} is not completely cached, and {explain_download_error(error)}.")


def explain_gated_repository(source: str) -> str:
    return f"{source} is gated: request access at {repository_url(source)}, then give your token by {TOKEN}."


def explain_download_error(error: BaseException) -> str:
    """Return cause and remedy of a failed download, as the second half of a sentence."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.OfflineModeIsEnabled):
        switch = "HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else "HF_DATASETS_OFFLINE"
        return f"{switch} forbids downloading it: unset {switch}, or download it once with a connection"
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        advice = f"check your token and give it by {TOKEN}" if status in (401, 403) else "try again later"
        return f"{constants.ENDPOINT} answered with status {status}: {advice}"
    if isinstance(error, OSError) and error.errno is not None:  # of the disk; errors of the connection are not OSErrors
        return f"its files cannot be stored in {constants.HF_HUB_CACHE} ({format_cause(error)}): free some space or set HF_HOME"
    advice = "check the connection and HF_ENDPOINT, then try again; complete files are kept"
    return f"downloading it from {constants.ENDPOINT} failed ({format_cause(error)}): {advice}"


def format_cause(error: BaseException) -> str:
    """Return an error as its type and first sentence."""
    kind, first = type(error).__name__, summarise_error(error)
    return kind if first == kind else f"{kind}: {first}"
