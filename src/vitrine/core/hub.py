"""Hugging Face Hub: references, model download, errors.

What models and data sets of the Hugging Face hub have in common: their names, one question, and failures as sentences.

The token, the endpoint and offline mode are huggingface_hub's, which is slow to import: only the functions that need it do.
Models named by `hf://owner/name[@revision]`: the part of a Hugging Face repository that loads one, on the local disk.

The cache, the token, the endpoint and offline mode are huggingface_hub's, as the environment sets them: HF_HOME, HF_TOKEN,
HF_ENDPOINT, HF_HUB_OFFLINE.
"""

import re
from functools import partial
from pathlib import Path
from typing import Literal

from vitrine.core.console import join_names, summarise, warn_user

SCHEME = "hf://"
DATASET_SCHEME = f"{SCHEME}datasets/"

# What huggingface_hub itself accepts for each half of a name, so that it never has to complain in its own words.
NAME = r"\w(?:[\w.-]{0,94}\w)?"
# Branches, tags, commits and refs/pr/3. A revision becomes a path in the cache, so no step of it may start with a dot.
STEP = r"\w[\w.+-]*"
REVISION = rf"(?:@(?P<revision>{STEP}(?:/{STEP})*))?"
# Beyond that: the hub's own words are no owners, two dashes are how the cache writes the slash, .git is an address's ending.
FORBIDDEN = re.compile(r"^(models|datasets|spaces|kernels|buckets)/|--|\.git$")

TOKEN = "`hf auth login` or HF_TOKEN"


def match_reference(source: str, form: re.Pattern[str], wanted: str) -> re.Match[str]:
    """Of a form with a group `repository`; `wanted` says in words what it takes."""
    match = form.fullmatch(source)
    if match is None or ".." in source or FORBIDDEN.search(match["repository"]):
        raise ValueError(f"{source!r} does not name {wanted}. Copy owner/name from the top of its page.")
    return match


def ask_hub(kind: Literal["model", "dataset"], repository: str, revision: str | None) -> tuple[list[str], Exception | None]:
    """The files' names, or why the hub did not give them. To be asked first, as one question with a time limit: both
    `snapshot_download` and `datasets` wait without one, or ask six times over 23 seconds where the connection is refused."""
    from huggingface_hub import HfApi, constants

    ask = HfApi().dataset_info if kind == "dataset" else HfApi().model_info
    try:
        info = ask(repository, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # of any kind: those of the connection are httpx's or httpx2's, no OSError and no ValueError
        return [], error
    return sorted(file.rfilename for file in info.siblings or []), None


def is_offline(trouble: Exception) -> bool:
    from huggingface_hub.errors import OfflineModeIsEnabled

    return isinstance(trouble, OfflineModeIsEnabled)


def notice_cache(source: str, commit: str, trouble: Exception) -> None:
    cause = describe_cause(trouble)
    warn_user(f"{source} comes from the cache, which has the commit {commit}, because the hub did not give it ({cause}).")


def describe_failure(source: str, error: BaseException) -> ValueError | OSError:
    """One line in place of huggingface_hub's paragraphs: ValueError for what the caller can correct, else OSError."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__  # why the hub could not be asked for what the cache lacks
    if isinstance(error, errors.GatedRepoError):  # before the next, which it is one of
        return ValueError(describe_gate(source))
    if isinstance(error, errors.RepositoryNotFoundError):
        advice = f"check its name, or, if it is private, give a token that may read it by {TOKEN}"
        return ValueError(f"{source} is not at {constants.ENDPOINT}: {advice}.")
    if isinstance(error, errors.RevisionNotFoundError):
        advice = "Give one of its branches, tags or commits, or leave @revision out for the newest"
        return ValueError(f"{source}: the repository has no revision {source.partition('@')[2] or 'main'!r}. {advice}.")
    return OSError(f"{source} is not whole in the cache, and {describe_obstacle(error)}.")


def describe_gate(source: str) -> str:
    return f"{source} is gated: ask for access at {locate_page(source)}, then give your token by {TOKEN}."


def describe_obstacle(error: BaseException) -> str:
    from huggingface_hub import constants, errors

    if isinstance(error, errors.OfflineModeIsEnabled):
        switch = "HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else "HF_DATASETS_OFFLINE"
        return f"{switch} forbids fetching it: unset {switch}, or fetch it once where there is a connection"
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        advice = f"check your token and give it by {TOKEN}" if status in (401, 403) else "try again later"
        return f"{constants.ENDPOINT} answered with status {status}: {advice}"
    if isinstance(error, OSError) and error.errno is not None:  # the disk's: those of the connection are no OSError
        return f"its files cannot be kept in {constants.HF_HUB_CACHE} ({describe_cause(error)}): make room, or set HF_HOME"
    advice = "check the connection and HF_ENDPOINT, then try again; files that came whole are kept"
    return f"fetching it from {constants.ENDPOINT} failed ({describe_cause(error)}): {advice}"


def describe_cause(error: BaseException) -> str:
    kind, first = type(error).__name__, summarise(error)
    return kind if first == kind else f"{kind}: {first}"


def locate_page(source: str) -> str:
    """The address of a reference's page: what stands before :configuration and @revision."""
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{re.split('[:@]', source.removeprefix(SCHEME))[0]}"


CONFIGS = ("config.json", "preprocessor_config.json")
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = "model-*-of-*.safetensors"
PICKLED = "pytorch_model.bin"

REFERENCE = re.compile(rf"{SCHEME}(?P<repository>{NAME}/{NAME}){REVISION}", re.ASCII)


def is_hub_reference(source: str) -> bool:
    return source.startswith(SCHEME)


def parse_hub_reference(source: str) -> tuple[str, str | None]:
    """The repository and the revision; no revision means the newest commit of the main branch."""
    form = "it must read hf://owner/name or hf://owner/name@revision, in letters, digits, '-', '_' and '.'"
    match = match_reference(source, REFERENCE, f"a model on the hub: {form}")
    return match["repository"], match["revision"]


def fetch_repository(source: str) -> Path:
    """The snapshot folder with the configuration and one form of the weights, fetched if the cache does not hold them.

    Where the hub does not give it, a whole copy in the cache is used, with a `Notice` unless offline mode asked for it.
    """
    repository, revision = parse_hub_reference(source)
    found, trouble = ask_hub("model", repository, revision)
    try:
        folder = download_model(repository, revision, only_cached=trouble is not None)
    except Exception as error:  # those of the connection too, which are neither OSError nor ValueError
        reason = trouble or error
        raise describe_failure(source, reason) from reason
    if trouble is not None and not is_offline(trouble):
        notice_cache(source, folder.name, trouble)
    if not any((folder / name).exists() for name in (SINGLE, INDEX, PICKLED)):
        raise ValueError(describe_lack(source, found or [path.name for path in folder.glob("*")]))
    return folder


def download_model(repository: str, revision: str | None, only_cached: bool) -> Path:
    """In two steps, because only the first tells in which form the weights are; most repositories hold more than one."""
    from huggingface_hub import snapshot_download

    download = partial(snapshot_download, repository, local_files_only=only_cached)
    folder = Path(download(revision=revision, allow_patterns=[*CONFIGS, SINGLE, INDEX]))
    if not (folder / SINGLE).exists():
        weights = SHARDS if (folder / INDEX).exists() else PICKLED
        # The folder's name is the commit: a branch may have moved on since the first step.
        download(revision=folder.name, allow_patterns=[*CONFIGS, weights])
    return folder


def describe_lack(source: str, found: list[str]) -> str:
    return (
        f"{source} holds {join_names(found) or 'no files'}: to load a model, {SINGLE}, or {INDEX} with its shards, "
        f"or {PICKLED} is needed. Choose another repository or revision."
    )
