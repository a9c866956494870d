"""What models and data sets of the Hugging Face hub have in common: their names, one question, and failures as sentences.

The token, the endpoint and offline mode are huggingface_hub's, which is slow to import: only the functions that need it do.
"""

import re
from typing import Literal

from vitrine.core.notices import notice
from vitrine.core.sentences import summarise

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
    notice(f"{source} comes from the cache, which has the commit {commit}, because the hub did not give it ({cause}).")


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
