"""Tests of core/hub.py.

The hub's names as huggingface_hub takes them, and its errors, made here, as our sentences; a hub is in formats and data.
Models fetched from a hub on this machine, each run in a process of its own: huggingface_hub reads its settings at import.
"""

import errno
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import HfApi, constants, errors
from huggingface_hub.utils import validate_repo_id

from tests.hub_server import Files, Hub, Repository, serve_hub
from vitrine.core.console import VitrineWarning
from vitrine.core.hub import (
    NAME,
    REVISION,
    list_repository_files,
    format_cause,
    explain_hub_error,
    explain_download_error,
    is_hub_reference,
    is_offline,
    repository_url,
    match_reference,
    warn_about_cached_copy,
    parse_model_reference,
)

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
    assert list_repository_files("model", "me/cats", "v2") == (["a", "b"], None)
    assert asked == [("me/cats", {"revision": "v2", "timeout": constants.HF_HUB_ETAG_TIMEOUT})]
    found, trouble = list_repository_files("dataset", "me/cats", None)
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
    sentence = explain_hub_error("hf://datasets/me/cats:small@v2", error)
    assert type(sentence) is (ValueError if (error, told) in MISTAKES else OSError)
    assert str(sentence).startswith("hf://datasets/me/cats:small@v2")
    assert ("is not whole in the cache, and " in str(sentence)) == ((error, told) in OBSTACLES)
    assert told in str(sentence)
    assert str(sentence).endswith(".")
    assert "\n" not in str(sentence)


def test_a_revision_that_was_not_named_is_main() -> None:
    assert "no revision 'main'" in str(explain_hub_error("hf://me/cats", refuse(errors.RevisionNotFoundError, 404)))


@pytest.mark.parametrize(("is_hubs", "switch"), [(True, "HF_HUB_OFFLINE"), (False, "HF_DATASETS_OFFLINE")])
def test_the_switch_that_forbids_it_is_named(is_hubs: bool, switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_hubs)
    assert explain_download_error(errors.OfflineModeIsEnabled()).startswith(
        f"{switch} forbids fetching it: unset {switch}, or "
    )
    assert is_offline(errors.OfflineModeIsEnabled())
    assert not is_offline(ConnectionError())


def test_the_cache_is_told_with_its_commit_and_the_cause() -> None:
    told = r"^hf://a/b comes from the cache, which has the commit 1f3, because the hub did not give it \(KeyError: 'x'\)\.$"
    with pytest.warns(VitrineWarning, match=told):
        warn_about_cached_copy("hf://a/b", "1f3", KeyError("x"))
    assert format_cause(TimeoutError()) == "TimeoutError"


@pytest.mark.parametrize(
    "source", ["hf://datasets/a/b", "hf://datasets/a/b:c", "hf://datasets/a/b@v2", "hf://datasets/a/b:c@x/y"]
)
def test_the_page_is_the_repositorys(source: str) -> None:
    assert repository_url(source) == "https://hub.here/datasets/a/b"


# Waits between attempts are added up instead of waited for.
FETCH = """
import json, sys, time, warnings
from vitrine.core.hub import download_model

assert "huggingface_hub" not in sys.modules, "importing the module must not import huggingface_hub, which is slow"
waits = []
time.sleep = waits.append
for source in sys.argv[1:]:
    waits.clear()
    outcome = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            outcome["folder"] = str(download_model(source))
        except Exception as error:
            outcome.update(error=str(error), kind=type(error).__name__)
    outcome.update(notices=[f"{warning.category.__name__}: {warning.message}" for warning in caught], data_wait_s=sum(waits))
    print(json.dumps(outcome), flush=True)
"""


@dataclass(kw_only=True)
class Outcome:
    data_wait_s: float
    """The time that huggingface_hub would have slept between its attempts."""
    notices: list[str]
    folder: str | None = None
    error: str | None = None
    kind: str | None = None

    def load_files(self) -> Files:
        assert self.folder is not None, self.error
        folder = Path(self.folder)
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


Outcomes = dict[str, Outcome]


def fetch(endpoint: str, home: Path, *sources: str, **settings: str) -> Outcomes:
    strange = ("HF_", "HUGGING", "TRANSFORMERS_", "XDG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(strange) and "PROXY" not in name.upper()}
    patient = {"HF_HUB_ETAG_TIMEOUT": "300", "HF_HUB_DOWNLOAD_TIMEOUT": "300", "HF_HUB_DISABLE_TELEMETRY": "1"}
    environment = {**kept, **patient, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), **settings}
    command = [sys.executable, "-W", "error", "-c", FETCH, *sources]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    return {source: Outcome(**json.loads(line)) for source, line in zip(sources, lines, strict=True)}


INDEX = "model.safetensors.index.json"
CONFIGS: Files = {"config.json": b'{"model_type": "vit"}', "preprocessor_config.json": b'{"size": 224}'}
SINGLE: Files = {"model.safetensors": bytes(range(256)) * 40}
PICKLED: Files = {"pytorch_model.bin": b"pickled " * 30}
SHARDED: Files = {
    INDEX: b'{"weight_map": {}}',
    "model-00001-of-00002.safetensors": b"first" * 20,
    "model-00002-of-00002.safetensors": b"second" * 20,
}
UNWANTED: Files = {
    "README.md": b"# A card",
    "tf_model.h5": b"tensorflow" * 9,
    "flax_model.msgpack": b"flax" * 9,
    "onnx/config.json": b"{}",
    "onnx/model.safetensors": b"another",
}
SECOND: Files = {"config.json": b'{"model_type": "deit"}', "model.safetensors": b"the second revision"}
THIRD: Files = {"config.json": b'{"model_type": "dinov2"}', "model.safetensors": b"the third revision"}


def build_repositories() -> dict[str, Repository]:
    whole = CONFIGS | SINGLE
    return {
        "owner/plain": Repository(
            revisions={"main": whole | PICKLED | UNWANTED, "second": SECOND, "refs/pr/3": THIRD, "bare": {"README.md": b""}}
        ),
        "owner/sharded": Repository(revisions={"main": CONFIGS | SHARDED | PICKLED | UNWANTED}),
        "owner/both": Repository(revisions={"main": CONFIGS | SHARDED | SINGLE}),
        "owner/pickled": Repository(revisions={"main": CONFIGS | PICKLED | UNWANTED}),
        "owner/weightless": Repository(revisions={"main": UNWANTED | {f"{i}.txt": b"" for i in range(9)}}),
        "owner/only-config": Repository(revisions={"main": CONFIGS}),
        "owner/gated": Repository(revisions={"main": whole}, fault="gated"),
        "owner/broken": Repository(revisions={"main": whole}, fault="broken"),
        "owner/broken-files": Repository(revisions={"main": whole}, fault="broken files"),
        "owner/cut": Repository(revisions={"main": whole}, fault="cut"),
        "owner/short": Repository(revisions={"main": whole}, fault="short"),
        "owner/mended": Repository(revisions={"main": whole}, fault="cut"),
        "owner/fallen": Repository(revisions={"main": whole}),
        "owner/silent": Repository(revisions={"main": whole}, fault="silent"),
        "owner/bad-token": Repository(revisions={"main": whole}, fault="bad token"),
        "owner/portal": Repository(revisions={"main": whole}, fault="portal"),
        "owner/unasked": Repository(revisions={"main": whole}),
    }


COMMIT = build_repositories()["owner/plain"].compute_commit("second")
BY_COMMIT = f"hf://owner/plain@{COMMIT}"
UNKNOWN_COMMIT = f"hf://owner/unasked@{COMMIT}"
# What can be loaded, and the files that do it.
WHOLE: dict[str, Files] = {
    "hf://owner/plain": CONFIGS | SINGLE,
    "hf://owner/plain@second": SECOND,
    "hf://owner/plain@refs/pr/3": THIRD,
    "hf://owner/sharded": CONFIGS | SHARDED,
    "hf://owner/both": CONFIGS | SINGLE | {INDEX: SHARDED[INDEX]},  # the index comes along: one cannot know before it is there
    "hf://owner/pickled": CONFIGS | PICKLED,
}


@dataclass(kw_only=True)
class Visit:
    home: Path
    hub: Hub
    first: Outcomes
    hub_again: Hub
    again: Outcomes


@pytest.fixture(scope="module")
def visit(tmp_path_factory: pytest.TempPathFactory) -> Visit:
    """Every repository fetched into an empty cache, then some again; the hub is gone when the tests run."""
    home = tmp_path_factory.mktemp("home")
    with serve_hub(build_repositories()) as hub:
        sources = [f"hf://{name}" for name in hub.repositories if name not in ("owner/unasked", "owner/silent")]
        sources += [f"hf://owner/plain@{name}" for name in ("second", "refs/pr/3", "bare", "nowhere")] + ["hf://owner/missing"]
        first = fetch(hub.endpoint, home, *sources)
        # By itself: those that answer may take their time.
        first |= fetch(hub.endpoint, home, "hf://owner/silent", HF_HUB_ETAG_TIMEOUT="1")
    repositories = build_repositories()
    repositories["owner/mended"].fault = None
    repositories["owner/fallen"].fault = "broken"
    with serve_hub(repositories) as hub_again:
        again = fetch(hub_again.endpoint, home, *WHOLE, BY_COMMIT, "hf://owner/mended", "hf://owner/fallen")
    return Visit(home=home, hub=hub, first=first, hub_again=hub_again, again=again)


@pytest.fixture(scope="module")
def refusing_endpoint() -> Iterator[str]:
    with socket.socket() as taken:  # bound, so that no one else takes it, and not listening
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(scope="module")
def offline(visit: Visit, refusing_endpoint: str) -> Outcomes:
    sources = [*WHOLE, BY_COMMIT, "hf://owner/cut", "hf://owner/unasked", UNKNOWN_COMMIT]
    return fetch(refusing_endpoint, visit.home, *sources, HF_HUB_OFFLINE="1")


@pytest.fixture(scope="module")
def unreachable(visit: Visit, refusing_endpoint: str) -> Outcomes:
    return fetch(refusing_endpoint, visit.home, *WHOLE, BY_COMMIT, "hf://owner/cut", "hf://owner/unasked", UNKNOWN_COMMIT)


@pytest.mark.parametrize("source", WHOLE)
def test_what_loads_a_model_is_fetched_and_nothing_else(source: str, visit: Visit) -> None:
    outcome = visit.first[source]
    assert outcome.load_files() == WHOLE[source]
    assert (outcome.notices, outcome.data_wait_s) == ([], 0)


def test_no_form_of_the_weights_is_requested_beside_the_best(visit: Visit) -> None:
    assert visit.hub.list_requested_files("owner/sharded") == sorted(CONFIGS | SHARDED)
    assert visit.hub.list_requested_files("owner/both") == sorted(WHOLE["hf://owner/both"])
    assert visit.hub.list_requested_files("owner/pickled") == sorted(CONFIGS | PICKLED)
    assert "pytorch_model.bin" not in visit.hub.list_requested_files("owner/plain")


def test_a_branch_is_resolved_once_so_that_all_files_are_of_one_commit(visit: Visit) -> None:
    asked = [path for _, path in visit.hub.requests if path.startswith("/api/models/owner/sharded/revision/")]
    assert asked == ["/api/models/owner/sharded/revision/main"]


def test_a_snapshot_is_named_by_its_commit(visit: Visit) -> None:
    folder = visit.first["hf://owner/plain@second"].folder
    assert folder is not None
    assert Path(folder).name == COMMIT
    assert visit.again[BY_COMMIT].folder == folder


@pytest.mark.parametrize("source", [*WHOLE, BY_COMMIT])
def test_a_second_fetch_requests_no_file(source: str, visit: Visit) -> None:
    assert visit.again[source].load_files() == WHOLE.get(source, SECOND)
    repository = parse_model_reference(source)[0]
    assert visit.hub_again.list_requested_files(repository, "HEAD") == []
    assert visit.hub_again.list_requested_files(repository) == []


def test_a_commit_that_was_never_fetched_is_fetched(tmp_path: Path) -> None:
    with serve_hub(build_repositories()) as hub:
        assert fetch(hub.endpoint, tmp_path, BY_COMMIT)[BY_COMMIT].load_files() == SECOND


def test_an_interrupted_fetch_can_be_repeated(visit: Visit) -> None:
    assert visit.first["hf://owner/mended"].folder is None
    assert visit.again["hf://owner/mended"].load_files() == CONFIGS | SINGLE
    assert visit.hub_again.list_requested_files("owner/mended") == ["model.safetensors"]


def test_the_cache_is_enough_where_the_hub_fails_and_says_so(visit: Visit) -> None:
    outcome = visit.again["hf://owner/fallen"]
    assert outcome.load_files() == CONFIGS | SINGLE
    assert len(outcome.notices) == 1
    assert "500" in outcome.notices[0]
    assert "\n" not in outcome.notices[0]


@pytest.mark.parametrize("source", [*WHOLE, BY_COMMIT])
def test_the_cache_is_enough_in_offline_mode(source: str, offline: Outcomes) -> None:
    assert offline[source].load_files() == WHOLE.get(source, SECOND)
    assert offline[source].notices == []


@pytest.mark.parametrize("source", [*WHOLE, BY_COMMIT])
def test_the_cache_is_enough_without_a_connection_and_says_so(source: str, unreachable: Outcomes) -> None:
    outcome = unreachable[source]
    assert outcome.load_files() == WHOLE.get(source, SECOND)
    assert len(outcome.notices) == 1
    commit = Path(outcome.folder or "").name
    told = (
        f"Notice: {source} comes from the cache, which has the commit {commit}, because the hub did not give it (ConnectError: "
    )
    assert outcome.notices[0].startswith(told)
    assert outcome.data_wait_s == 0


def require_sentence(outcomes: Outcomes, source: str, kind: str, *parts: str) -> None:
    outcome = outcomes[source]
    assert outcome.error is not None, f"{source} was fetched"
    assert outcome.kind == kind
    assert outcome.error.startswith(f"{source} ") or outcome.error.startswith(f"{source}:")
    assert outcome.error.endswith(".")
    assert "\n" not in outcome.error
    assert "of the server" not in outcome.error
    assert all(part in outcome.error for part in parts), outcome.error


MISTAKES_HUB = {
    "hf://owner/missing": ("is not at http://127.0.0.1:", "check its name", "if it is private", "`hf auth login`"),
    "hf://owner/plain@nowhere": ("has no revision 'nowhere'", "leave @revision out"),
    "hf://owner/gated": ("is gated: ask for access at http://127.0.0.1:", "/owner/gated, then", "`hf auth login`"),
    "hf://owner/weightless": ("holds 0.txt, 1.txt", "7.txt and 6 more: ", "model.safetensors", "pytorch_model.bin is needed"),
    "hf://owner/plain@bare": ("holds README.md: ",),
    "hf://owner/only-config": ("holds config.json, preprocessor_config.json: ", "Choose another repository or revision"),
}
OBSTACLES_HUB = {
    "hf://owner/broken": ("answered with status 500: try again later",),
    "hf://owner/broken-files": ("answered with status 500: try again later",),
    "hf://owner/cut": ("RemoteProtocolError: peer closed connection", "files that came whole are kept"),
    "hf://owner/short": ("Consistency check failed: file should be of size 10240 but has size 5120",),
    "hf://owner/silent": ("ReadTimeout", "check the connection"),
    "hf://owner/bad-token": ("answered with status 401: check your token and give it by `hf auth login`",),
    "hf://owner/portal": ("JSONDecodeError", "check the connection and HF_ENDPOINT"),
}


@pytest.mark.parametrize("source", MISTAKES_HUB)
def test_a_mistake_costs_a_sentence(source: str, visit: Visit) -> None:
    require_sentence(visit.first, source, "ValueError", *MISTAKES_HUB[source])
    assert visit.first[source].data_wait_s == 0


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("a file where the folder of the cache should be")
    source = "hf://owner/plain"
    with serve_hub(build_repositories()) as hub:
        outcomes = fetch(hub.endpoint, home, source)
    require_sentence(outcomes, source, "OSError", f"cannot be kept in {home}/hub (", "make room, or set HF_HOME")


@pytest.mark.parametrize("source", OBSTACLES_HUB)
def test_an_obstacle_costs_a_sentence(source: str, visit: Visit) -> None:
    require_sentence(visit.first, source, "OSError", "is not whole in the cache, and ", *OBSTACLES_HUB[source])


@pytest.mark.parametrize("source", ["hf://owner/cut", "hf://owner/unasked", UNKNOWN_COMMIT])
def test_offline_mode_names_what_the_cache_lacks(source: str, offline: Outcomes) -> None:
    require_sentence(offline, source, "OSError", "is not whole in the cache, and HF_HUB_OFFLINE forbids fetching it: unset")


@pytest.mark.parametrize("source", ["hf://owner/cut", "hf://owner/unasked", UNKNOWN_COMMIT])
def test_a_refused_connection_is_not_tried_again(source: str, unreachable: Outcomes, refusing_endpoint: str) -> None:
    reason = f"fetching it from {refusing_endpoint} failed (ConnectError: "
    require_sentence(unreachable, source, "OSError", "is not whole in the cache, and ", reason, "Connection refused")
    assert unreachable[source].data_wait_s == 0


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("hf://google/vit-base-patch16-224", ("google/vit-base-patch16-224", None)),
        ("hf://google/vit-base-patch16-224@main", ("google/vit-base-patch16-224", "main")),
        ("hf://a/b@refs/pr/3", ("a/b", "refs/pr/3")),
        (f"hf://a/b@{COMMIT}", ("a/b", COMMIT)),
        ("hf://A_1.x/b.c-d_@v1.0+cu-2", ("A_1.x/b.c-d_", "v1.0+cu-2")),
        (f"hf://{'a' * 96}/{'b' * 96}", (f"{'a' * 96}/{'b' * 96}", None)),
    ],
)
def test_a_reference_is_a_repository_and_a_revision(source: str, expected: tuple[str, str | None]) -> None:
    assert is_hub_reference(source)
    assert parse_model_reference(source) == expected


WRONG = {
    "not two parts": ["", "hf://", "hf://a", "hf://a/", "hf:///b", "hf://a//b", "hf://a@main", "hf://@main"],
    "more parts": ["hf://a/b/", "hf://a/b/c", "hf://a/b/config.json", "hf://datasets/a/b", "hf://a/b/c@main"],
    "no model": ["hf://datasets/a", "hf://spaces/a", "hf://models/a", "hf://kernels/a", "hf://buckets/a"],
    "no name": ["hf://a/.b", "hf://a/b-", "hf://-a/b", "hf://a/b--c", "hf://a/b.git", f"hf://a/{'b' * 97}"],
    "a way out": ["hf://a/..", "hf://../b", "hf://a/b..c", "hf://a/b@..", "hf://a/b@../x", "hf://a/b@x/../y", "hf://a/b@x..y"],
    "no revision": ["hf://a/b@", "hf://a/b@x@y", "hf://a/b@/x", "hf://a/b@x/", "hf://a/b@x//y", "hf://a/b@.x", "hf://a/b@x~1"],
    "spaces": ["hf://a/b c", " hf://a/b", "hf://a/b ", "hf://a/b\n", "hf://a/b@x y", "hf://a/b@x\n", "hf:// a/b"],
    "characters": ["hf://a/b?x", "hf://a/b#x", "hf://a/b%2e", "hf://a/b@x:y", "hf://a/b@x\\y", "hf://a/é", "hf://a/b@é"],
    "another scheme": ["a/b", "HF://a/b", "hf:/a/b", "https://huggingface.co/a/b", "x hf://a/b"],
}


@pytest.mark.parametrize("source", [source for sources in WRONG.values() for source in sources])
def test_anything_else_is_refused_in_a_sentence(source: str) -> None:
    with pytest.raises(
        ValueError, match=r"must read hf://owner/name or hf://owner/name@revision, .* Copy owner/name from"
    ) as caught:
        parse_model_reference(source)
    assert str(caught.value).startswith(f"{source!r} does not name a model on the hub: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["google/vit-base-patch16-224", "hf:/a/b", "./hf://a/b", "HF://a/b", ""])
def test_paths_and_names_are_not_references(source: str) -> None:
    assert not is_hub_reference(source)
