"""The hub's names as huggingface_hub takes them, and its errors, made here, as our sentences; a hub is in formats and data."""

import errno
import re
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import HfApi, constants, errors
from huggingface_hub.utils import validate_repo_id

from vitrine.core.hub import (
    NAME,
    REVISION,
    ask_hub,
    describe_cause,
    describe_failure,
    describe_obstacle,
    is_offline,
    locate_page,
    match_reference,
    notice_cache,
)
from vitrine.core.notices import Notice

FORM = re.compile(rf"hf://(?P<repository>(?:{NAME}/)?{NAME}){REVISION}", re.ASCII)
WANTED = "a thing on the hub: it must read hf://owner/name"
GOOD = ["a", "Z9", "_", "a.b", "a-b", "a" * 96]
BAD = ["a--b", "a..b", ".a", "a.", "-a", "a-", "a.git", ".git", "é", "a b", "a\n", "", "a" * 97]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.here")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def is_name(repository: str) -> bool:
    try:
        match_reference(f"hf://{repository}", FORM, WANTED)
    except ValueError:
        return False
    return True


def is_their_name(repository: str) -> bool:
    try:
        validate_repo_id(repository)
    except errors.HFValidationError:
        return False
    return True


@pytest.mark.parametrize("name", GOOD + BAD)
def test_the_names_are_those_that_huggingface_hub_takes(name: str) -> None:
    assert is_name(name) == is_their_name(name) == (name in GOOD)
    for other in GOOD + BAD:
        assert is_name(f"{other}/{name}") == (name in GOOD and other in [*GOOD, "a.git"])
        assert is_name(f"{other}/{name}") <= is_their_name(f"{other}/{name}")


@pytest.mark.parametrize("word", ["models", "datasets", "spaces", "kernels", "buckets"])
def test_the_hubs_own_words_are_names_and_no_owners(word: str) -> None:
    assert is_name(word)
    assert is_name(f"a/{word}")
    assert not is_name(f"{word}/a")


def test_a_revision_stays_in_its_folder() -> None:
    assert match_reference("hf://a/b@refs/pr/3", FORM, WANTED)["revision"] == "refs/pr/3"
    for revision in ("", "/", "../x", "x/../y", "x..y", ".x", "x/", "x//y", "x@y", "x\n"):
        with pytest.raises(ValueError, match="does not name a thing on the hub"):
            match_reference(f"hf://a/b@{revision}", FORM, WANTED)


def test_the_hub_is_asked_once_with_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def answer(api: HfApi, repository: str, **options: Any) -> Any:
        asked.append((repository, options))
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in ("b", "a")])

    def fail(api: HfApi, repository: str, **options: Any) -> Any:
        raise KeyError(repository)

    monkeypatch.setattr(HfApi, "model_info", answer)
    monkeypatch.setattr(HfApi, "dataset_info", fail)
    assert ask_hub("model", "me/cats", "v2") == (["a", "b"], None)
    assert asked == [("me/cats", {"revision": "v2", "timeout": constants.HF_HUB_ETAG_TIMEOUT})]
    found, trouble = ask_hub("dataset", "me/cats", None)
    assert (found, repr(trouble)) == ([], "KeyError('me/cats')")


def refuse(kind: type[errors.HfHubHTTPError], status: int) -> errors.HfHubHTTPError:
    answer: Any = SimpleNamespace(headers={}, request=None, status_code=status)
    return kind(f"{status} of the server.\nAnd more of it.", response=answer)


def absent(cause: Exception | None) -> Exception:
    error = errors.LocalEntryNotFoundError("Neither here nor there")
    error.__cause__ = cause
    return error


TOKEN = "by `hf auth login` or HF_TOKEN."
MISTAKES = [
    (
        refuse(errors.GatedRepoError, 403),
        f"is gated: ask for access at https://hub.here/datasets/me/cats, then give your token {TOKEN}",
    ),
    (absent(refuse(errors.GatedRepoError, 403)), "is gated: ask for access"),
    (
        refuse(errors.RepositoryNotFoundError, 401),
        f"is not at https://hub.here: check its name, or, if it is private, give a token that may read it {TOKEN}",
    ),
    (
        refuse(errors.RevisionNotFoundError, 404),
        "the repository has no revision 'v2'. Give one of its branches, tags or commits",
    ),
]
OBSTACLES = [
    (refuse(errors.HfHubHTTPError, 500), "https://hub.here answered with status 500: try again later."),
    (refuse(errors.HfHubHTTPError, 401), f"answered with status 401: check your token and give it {TOKEN}"),
    (OSError(errno.ENOSPC, "No space left on device"), f"its files cannot be kept in {constants.HF_HUB_CACHE} (OSError: "),
    (OSError("Consistency check failed"), "https://hub.here failed (OSError: Consistency check failed): check the connection"),
    (absent(None), "failed (LocalEntryNotFoundError: Neither here nor there): check the connection and HF_ENDPOINT"),
    (absent(TimeoutError()), "fetching it from https://hub.here failed (TimeoutError): check the connection"),
]


@pytest.mark.parametrize(("error", "told"), MISTAKES + OBSTACLES)
def test_an_error_is_a_sentence(error: Exception, told: str) -> None:
    sentence = describe_failure("hf://datasets/me/cats:small@v2", error)
    assert type(sentence) is (ValueError if (error, told) in MISTAKES else OSError)
    assert str(sentence).startswith("hf://datasets/me/cats:small@v2")
    assert ("is not whole in the cache, and " in str(sentence)) == ((error, told) in OBSTACLES)
    assert told in str(sentence)
    assert str(sentence).endswith(".")
    assert "\n" not in str(sentence)


def test_a_revision_that_was_not_named_is_main() -> None:
    assert "no revision 'main'" in str(describe_failure("hf://me/cats", refuse(errors.RevisionNotFoundError, 404)))


@pytest.mark.parametrize(("is_hubs", "switch"), [(True, "HF_HUB_OFFLINE"), (False, "HF_DATASETS_OFFLINE")])
def test_the_switch_that_forbids_it_is_named(is_hubs: bool, switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_hubs)
    assert describe_obstacle(errors.OfflineModeIsEnabled()).startswith(f"{switch} forbids fetching it: unset {switch}, or ")
    assert is_offline(errors.OfflineModeIsEnabled())
    assert not is_offline(ConnectionError())


def test_the_cache_is_told_with_its_commit_and_the_cause() -> None:
    told = r"^hf://a/b comes from the cache, which has the commit 1f3, because the hub did not give it \(KeyError: 'x'\)\.$"
    with pytest.warns(Notice, match=told):
        notice_cache("hf://a/b", "1f3", KeyError("x"))
    assert describe_cause(TimeoutError()) == "TimeoutError"


@pytest.mark.parametrize(
    "source", ["hf://datasets/a/b", "hf://datasets/a/b:c", "hf://datasets/a/b@v2", "hf://datasets/a/b:c@x/y"]
)
def test_the_page_is_the_repositorys(source: str) -> None:
    assert locate_page(source) == "https://hub.here/datasets/a/b"
