"""Models named by `hf://owner/name[@revision]`: the part of a Hugging Face repository that loads one, on the local disk.

The cache, the token, the endpoint and offline mode are huggingface_hub's, as the environment sets them: HF_HOME, HF_TOKEN,
HF_ENDPOINT, HF_HUB_OFFLINE.
"""

import re
from functools import partial
from pathlib import Path

from vitrine.core.notices import notice
from vitrine.core.sentences import list_names, summarise

SCHEME = "hf://"
CONFIGS = ("config.json", "preprocessor_config.json")
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = "model-*-of-*.safetensors"
PICKLED = "pytorch_model.bin"

# What huggingface_hub itself accepts for each half of a name, so that it never has to complain in its own words.
NAME = r"\w(?:[\w.-]{0,94}\w)?"
# Branches, tags, commits and refs/pr/3. A revision becomes a path in the cache, so no step of it may start with a dot.
STEP = r"\w[\w.+-]*"
REFERENCE = re.compile(rf"{SCHEME}(?P<repository>{NAME}/{NAME})(?:@(?P<revision>{STEP}(?:/{STEP})*))?", re.ASCII)
# Owners that are none: the hub keeps these words for what is not a model.
RESERVED = ("models", "datasets", "spaces", "kernels", "buckets")

TOKEN = "`hf auth login` or HF_TOKEN"


def is_hub_reference(source: str) -> bool:
    return source.startswith(SCHEME)


def parse_hub_reference(source: str) -> tuple[str, str | None]:
    """The repository and the revision; no revision means the newest commit of the main branch."""
    match = REFERENCE.fullmatch(source)
    if match is None or ".." in source or not is_allowed_name(match["repository"]):
        raise ValueError(
            f"{source!r} does not name a model on the hub: it must read hf://owner/name or hf://owner/name@revision, in "
            "letters, digits, '-', '_' and '.'. Copy owner/name from the top of the model's page."
        )
    return match["repository"], match["revision"]


def is_allowed_name(repository: str) -> bool:
    """What the hub forbids beyond its characters; two dashes are how the cache writes the slash."""
    return not (
        repository.startswith(tuple(f"{word}/" for word in RESERVED)) or "--" in repository or repository.endswith(".git")
    )


def fetch_repository(source: str) -> Path:
    """The snapshot folder with the configuration and one form of the weights, fetched if the cache does not hold them.

    Where the hub does not give it, a whole copy in the cache is used, with a `Notice` unless offline mode asked for it.
    """
    repository, revision = parse_hub_reference(source)
    found: list[str] = []
    trouble: Exception | None = None
    # Everything is caught here and below: errors of the connection belong to httpx, or httpx2 in newer releases of
    # huggingface_hub, and are neither OSError nor ValueError.
    try:
        found = list_repository(repository, revision)
    except Exception as error:
        trouble = error
    try:
        folder = download_model(repository, revision, only_cached=trouble is not None)
    except Exception as error:
        reason = trouble or error
        raise describe_failure(source, reason) from reason
    if trouble is not None:
        notice_cache(source, trouble)
    if not any((folder / name).exists() for name in (SINGLE, INDEX, PICKLED)):
        raise ValueError(describe_lack(source, found or [path.name for path in folder.glob("*")]))
    return folder


def list_repository(repository: str, revision: str | None) -> list[str]:
    """The files' names. Asked first because it is one question with a time limit: `snapshot_download` waits for the first
    answer without one, and asks for a commit by its hash six times over 23 seconds where the connection is refused."""
    from huggingface_hub import HfApi, constants

    info = HfApi().model_info(repository, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    return sorted(file.rfilename for file in info.siblings or [])


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


def notice_cache(source: str, trouble: Exception) -> None:
    from huggingface_hub.errors import OfflineModeIsEnabled

    if not isinstance(trouble, OfflineModeIsEnabled):
        notice(f"{source} comes from the cache, because the hub did not give it ({describe_cause(trouble)}).")


def describe_lack(source: str, found: list[str]) -> str:
    return (
        f"{source} holds {list_names(found) or 'no files'}: to load a model, {SINGLE}, or {INDEX} with its shards, "
        f"or {PICKLED} is needed. Choose another repository or revision."
    )


def describe_failure(source: str, error: BaseException) -> ValueError | OSError:
    """One line in place of huggingface_hub's paragraphs: ValueError for what the caller can correct, else OSError."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__  # why the hub could not be asked for what the cache lacks
    mistake = describe_mistake(source, error)
    if mistake is not None:
        return ValueError(mistake)
    return OSError(f"{source} is not whole in the cache, and {describe_obstacle(error)}.")


def describe_mistake(source: str, error: BaseException) -> str | None:
    from huggingface_hub import constants, errors

    repository, revision = parse_hub_reference(source)
    if isinstance(error, errors.GatedRepoError):  # before the next, which it is one of
        return f"{source} is gated: ask for access at {constants.ENDPOINT}/{repository}, then give your token by {TOKEN}."
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{source} is not at {constants.ENDPOINT}: check its name, or, if it is private, give a token that may read it "
            f"by {TOKEN}."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return (
            f"{source}: the repository has no revision {revision or 'main'!r}. Give one of its branches, tags or commits, "
            "or leave @revision out for the newest."
        )
    return None


def describe_obstacle(error: BaseException) -> str:
    from huggingface_hub import constants, errors

    if isinstance(error, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE forbids fetching it: unset HF_HUB_OFFLINE, or fetch it once where there is a connection"
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        advice = f"check your token and give it by {TOKEN}" if status in (401, 403) else "try again later"
        return f"{constants.ENDPOINT} answered with status {status}: {advice}"
    if isinstance(error, OSError) and error.errno is not None:  # the disk's: those of the connection are no OSError
        return f"its files cannot be kept in {constants.HF_HUB_CACHE} ({describe_cause(error)}): make room, or set HF_HOME"
    return (
        f"fetching it from {constants.ENDPOINT} failed ({describe_cause(error)}): check the connection and HF_ENDPOINT, then "
        "try again; files that came whole are kept"
    )


def describe_cause(error: BaseException) -> str:
    kind, first = type(error).__name__, summarise(error)
    return kind if first == kind else f"{kind}: {first}"
