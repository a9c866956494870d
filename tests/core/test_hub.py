"""References to the Hugging Face Hub, its errors as readable messages, and models downloaded from a hub on this machine.

Downloads run in processes of their own, because huggingface_hub reads its settings at import.
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
    explain_download_error,
    explain_hub_error,
    format_cause,
    is_hub_reference,
    is_model_cached,
    is_offline,
    list_repository_files,
    match_reference,
    parse_model_reference,
    repository_url,
    warn_about_cached_copy,
)

PATTERN = re.compile(rf"hf://(?P<repository>(?:{NAME}/)?{NAME}){REVISION}", re.ASCII)
EXPECTED = "a thing on the hub; expected hf://owner/name"
GOOD = ["a", "Z9", "_", "a.b", "a-b", "a" * 96]
BAD = ["a--b", "a..b", ".a", "a.", "-a", "a-", "a.git", ".git", "é", "a b", "a\n", "", "a" * 97]


@pytest.fixture(autouse=True)
def endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.here")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


# References.


def is_name(repository: str) -> bool:
    try:
        match_reference(f"hf://{repository}", PATTERN, EXPECTED)
    except ValueError:
        return False
    return True


def is_accepted_by_huggingface_hub(repository: str) -> bool:
    try:
        validate_repo_id(repository)
    except errors.HFValidationError:
        return False
    return True


def test_names_are_those_that_huggingface_hub_accepts() -> None:
    for name in GOOD + BAD:
        assert is_name(name) == is_accepted_by_huggingface_hub(name) == (name in GOOD)
        for owner in GOOD + BAD:
            assert is_name(f"{owner}/{name}") == (name in GOOD and owner in [*GOOD, "a.git"])
            assert is_name(f"{owner}/{name}") <= is_accepted_by_huggingface_hub(f"{owner}/{name}")


@pytest.mark.parametrize("word", ["models", "datasets", "spaces", "kernels", "buckets"])
def test_kinds_of_repositories_are_not_owners(word: str) -> None:
    assert is_name(word)
    assert is_name(f"a/{word}")
    assert not is_name(f"{word}/a")


def test_a_revision_stays_in_its_folder() -> None:
    assert match_reference("hf://a/b@refs/pr/3", PATTERN, EXPECTED)["revision"] == "refs/pr/3"
    for revision in ("", "/", "../x", "x/../y", "x..y", ".x", "x/", "x//y", "x@y", "x\n"):
        with pytest.raises(ValueError, match="a thing on the hub"):
            match_reference(f"hf://a/b@{revision}", PATTERN, EXPECTED)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("hf://google/vit-base-patch16-224", ("google/vit-base-patch16-224", None)),
        ("hf://google/vit-base-patch16-224@main", ("google/vit-base-patch16-224", "main")),
        ("hf://a/b@refs/pr/3", ("a/b", "refs/pr/3")),
        ("hf://A_1.x/b.c-d_@v1.0+cu-2", ("A_1.x/b.c-d_", "v1.0+cu-2")),
        (f"hf://{'a' * 96}/{'b' * 96}", (f"{'a' * 96}/{'b' * 96}", None)),
    ],
)
def test_a_model_reference_is_a_repository_and_a_revision(source: str, expected: tuple[str, str | None]) -> None:
    assert is_hub_reference(source)
    assert parse_model_reference(source) == expected


WRONG = {
    "not two parts": ["", "hf://", "hf://a", "hf://a/", "hf:///b", "hf://a//b", "hf://a@main", "hf://@main"],
    "more parts": ["hf://a/b/", "hf://a/b/c", "hf://a/b/config.json", "hf://datasets/a/b", "hf://a/b/c@main"],
    "not a model": ["hf://datasets/a", "hf://spaces/a", "hf://models/a", "hf://kernels/a", "hf://buckets/a"],
    "not a name": ["hf://a/.b", "hf://a/b-", "hf://-a/b", "hf://a/b--c", "hf://a/b.git", f"hf://a/{'b' * 97}"],
    "a way out": ["hf://a/..", "hf://../b", "hf://a/b..c", "hf://a/b@..", "hf://a/b@../x", "hf://a/b@x/../y", "hf://a/b@x..y"],
    "not a revision": [
        "hf://a/b@",
        "hf://a/b@x@y",
        "hf://a/b@/x",
        "hf://a/b@x/",
        "hf://a/b@x//y",
        "hf://a/b@.x",
        "hf://a/b@x~1",
    ],
    "spaces": ["hf://a/b c", " hf://a/b", "hf://a/b ", "hf://a/b\n", "hf://a/b@x y", "hf://a/b@x\n", "hf:// a/b"],
    "characters": ["hf://a/b?x", "hf://a/b#x", "hf://a/b%2e", "hf://a/b@x:y", "hf://a/b@x\\y", "hf://a/é", "hf://a/b@é"],
    "another scheme": ["a/b", "HF://a/b", "hf:/a/b", "https://huggingface.co/a/b", "x hf://a/b"],
}


@pytest.mark.parametrize("kind", WRONG)
def test_other_references_are_errors(kind: str) -> None:
    for source in WRONG[kind]:
        with pytest.raises(ValueError, match="hf://owner/name@revision") as caught:
            parse_model_reference(source)
        assert str(caught.value).startswith(repr(source))
        assert "\n" not in str(caught.value)


def test_paths_and_names_are_not_references() -> None:
    for source in ("google/vit-base-patch16-224", "hf:/a/b", "./hf://a/b", "HF://a/b", ""):
        assert not is_hub_reference(source)


@pytest.mark.parametrize(
    "source", ["hf://datasets/a/b", "hf://datasets/a/b:c", "hf://datasets/a/b@v2", "hf://datasets/a/b:c@x/y"]
)
def test_repository_url(source: str) -> None:
    assert repository_url(source) == "https://hub.here/datasets/a/b"


# Errors.


def test_one_request_with_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[tuple[str, dict[str, Any]]] = []

    def answer(api: HfApi, repository: str, **options: Any) -> Any:
        requests.append((repository, options))
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in ("b", "a")])

    def fail(api: HfApi, repository: str, **options: Any) -> Any:
        raise KeyError(repository)

    monkeypatch.setattr(HfApi, "model_info", answer)
    monkeypatch.setattr(HfApi, "dataset_info", fail)
    assert list_repository_files("model", "me/cats", "v2") == (["a", "b"], None)
    assert requests == [("me/cats", {"revision": "v2", "timeout": constants.HF_HUB_ETAG_TIMEOUT})]
    files, problem = list_repository_files("dataset", "me/cats", None)
    assert (files, repr(problem)) == ([], "KeyError('me/cats')")


def http_error(kind: type[errors.HfHubHTTPError], status: int) -> errors.HfHubHTTPError:
    answer: Any = SimpleNamespace(headers={}, request=None, status_code=status)
    return kind(f"{status} of the server.\nAnd more of it.", response=answer)


def not_cached(cause: Exception | None) -> Exception:
    error = errors.LocalEntryNotFoundError("Neither here nor there")
    error.__cause__ = cause
    return error


# Errors that the user can correct, and others, each with what its message names.
MISTAKES = [
    (http_error(errors.GatedRepoError, 403), ["gated", "https://hub.here/datasets/me/cats,", "HF_TOKEN"]),
    (not_cached(http_error(errors.GatedRepoError, 403)), ["gated"]),
    (http_error(errors.RepositoryNotFoundError, 401), ["https://hub.here", "private", "HF_TOKEN"]),
    (http_error(errors.RevisionNotFoundError, 404), ["no revision 'v2'"]),
]
FAILURES = [
    (http_error(errors.HfHubHTTPError, 500), ["https://hub.here", "status 500", "try again later"]),
    (http_error(errors.HfHubHTTPError, 401), ["status 401", "HF_TOKEN"]),
    (OSError(errno.ENOSPC, "No space left on device"), [constants.HF_HUB_CACHE, "OSError: ", "HF_HOME"]),
    (OSError("Consistency check failed"), ["https://hub.here", "OSError: Consistency check failed", "connection"]),
    (not_cached(None), ["LocalEntryNotFoundError: Neither here nor there", "connection", "HF_ENDPOINT"]),
    (not_cached(TimeoutError()), ["https://hub.here", "(TimeoutError)", "connection"]),
]


@pytest.mark.parametrize(("error", "words"), MISTAKES + FAILURES)
def test_an_error_is_one_line(error: Exception, words: list[str]) -> None:
    explained = explain_hub_error("hf://datasets/me/cats:small@v2", error)
    assert type(explained) is (ValueError if (error, words) in MISTAKES else OSError)
    assert str(explained).startswith("hf://datasets/me/cats:small@v2")
    assert ("not completely cached" in str(explained)) == ((error, words) in FAILURES)
    assert [word for word in words if word not in str(explained)] == []
    assert "\n" not in str(explained)


def test_the_default_revision_is_main() -> None:
    assert "no revision 'main'" in str(explain_hub_error("hf://me/cats", http_error(errors.RevisionNotFoundError, 404)))


@pytest.mark.parametrize(("is_hubs", "switch"), [(True, "HF_HUB_OFFLINE"), (False, "HF_DATASETS_OFFLINE")])
def test_the_switch_of_offline_mode_is_named(is_hubs: bool, switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_hubs)
    assert explain_download_error(errors.OfflineModeIsEnabled()).startswith(switch)
    assert is_offline(errors.OfflineModeIsEnabled())
    assert not is_offline(ConnectionError())


def test_a_cached_copy_is_reported_with_commit_and_cause() -> None:
    with pytest.warns(VitrineWarning, match=r"^hf://a/b.* 1f3.*KeyError: 'x'"):
        warn_about_cached_copy("hf://a/b", "1f3", KeyError("x"))
    assert format_cause(TimeoutError()) == "TimeoutError"


# Downloads. Waits between attempts are added up instead of waited for.

DOWNLOAD = """
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
    outcome.update(warnings=[f"{warning.category.__name__}: {warning.message}" for warning in caught], waited_s=sum(waits))
    print(json.dumps(outcome), flush=True)
"""


@dataclass(kw_only=True)
class Outcome:
    waited_s: float
    """The time that huggingface_hub would have slept between its attempts."""
    warnings: list[str]
    folder: str | None = None
    error: str | None = None
    kind: str | None = None

    def load_files(self) -> Files:
        assert self.folder is not None, self.error
        folder = Path(self.folder)
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


Outcomes = dict[str, Outcome]


def download(endpoint: str, home: Path, *sources: str, **settings: str) -> Outcomes:
    """Download sources one after the other in a new process with its own settings."""
    foreign = ("HF_", "HUGGING", "TRANSFORMERS_", "XDG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign) and "PROXY" not in name.upper()}
    patient = {"HF_HUB_ETAG_TIMEOUT": "300", "HF_HUB_DOWNLOAD_TIMEOUT": "300", "HF_HUB_DISABLE_TELEMETRY": "1"}
    environment = {**kept, **patient, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), **settings}
    command = [sys.executable, "-W", "error", "-c", DOWNLOAD, *sources]
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
    complete = CONFIGS | SINGLE
    return {
        "owner/plain": Repository(
            revisions={"main": complete | PICKLED | UNWANTED, "second": SECOND, "refs/pr/3": THIRD, "bare": {"README.md": b""}}
        ),
        "owner/sharded": Repository(revisions={"main": CONFIGS | SHARDED | PICKLED | UNWANTED}),
        "owner/both": Repository(revisions={"main": CONFIGS | SHARDED | SINGLE}),
        "owner/pickled": Repository(revisions={"main": CONFIGS | PICKLED | UNWANTED}),
        "owner/weightless": Repository(revisions={"main": UNWANTED | {f"{i}.txt": b"" for i in range(9)}}),
        "owner/only-config": Repository(revisions={"main": CONFIGS}),
        "owner/gated": Repository(revisions={"main": complete}, fault="gated"),
        "owner/broken": Repository(revisions={"main": complete}, fault="broken"),
        "owner/broken-files": Repository(revisions={"main": complete}, fault="broken files"),
        "owner/cut": Repository(revisions={"main": complete}, fault="cut"),
        "owner/short": Repository(revisions={"main": complete}, fault="short"),
        "owner/mended": Repository(revisions={"main": complete}, fault="cut"),
        "owner/fallen": Repository(revisions={"main": complete}),
        "owner/silent": Repository(revisions={"main": complete}, fault="silent"),
        "owner/bad-token": Repository(revisions={"main": complete}, fault="bad token"),
        "owner/portal": Repository(revisions={"main": complete}, fault="portal"),
        "owner/unasked": Repository(revisions={"main": complete}),
    }


COMMIT = build_repositories()["owner/plain"].compute_commit("second")
BY_COMMIT = f"hf://owner/plain@{COMMIT}"
UNKNOWN_COMMIT = f"hf://owner/unasked@{COMMIT}"
# References that can be loaded, and the files of each that are needed.
COMPLETE: dict[str, Files] = {
    "hf://owner/plain": CONFIGS | SINGLE,
    "hf://owner/plain@second": SECOND,
    "hf://owner/plain@refs/pr/3": THIRD,
    "hf://owner/sharded": CONFIGS | SHARDED,
    "hf://owner/both": CONFIGS | SINGLE | {INDEX: SHARDED[INDEX]},  # the index tells whether there are shards
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
    """Download every repository into an empty cache, then some again; the hub is gone when the tests run."""
    home = tmp_path_factory.mktemp("home")
    with serve_hub(build_repositories()) as hub:
        sources = [f"hf://{name}" for name in hub.repositories if name not in ("owner/unasked", "owner/silent")]
        sources += [f"hf://owner/plain@{name}" for name in ("second", "refs/pr/3", "bare", "nowhere")] + ["hf://owner/missing"]
        first = download(hub.endpoint, home, *sources)
        # Apart, because the repositories that answer may take their time.
        first |= download(hub.endpoint, home, "hf://owner/silent", HF_HUB_ETAG_TIMEOUT="1")
    repositories = build_repositories()
    repositories["owner/mended"].fault = None
    repositories["owner/fallen"].fault = "broken"
    with serve_hub(repositories) as hub_again:
        again = download(hub_again.endpoint, home, *COMPLETE, BY_COMMIT, "hf://owner/mended", "hf://owner/fallen")
    return Visit(home=home, hub=hub, first=first, hub_again=hub_again, again=again)


@pytest.fixture(scope="module")
def refusing_endpoint() -> Iterator[str]:
    with socket.socket() as bound:  # bound, so that no one else takes the port, but not listening
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture(scope="module")
def offline(visit: Visit, refusing_endpoint: str) -> Outcomes:
    sources = [*COMPLETE, BY_COMMIT, "hf://owner/cut", "hf://owner/unasked", UNKNOWN_COMMIT]
    return download(refusing_endpoint, visit.home, *sources, HF_HUB_OFFLINE="1")


@pytest.fixture(scope="module")
def unreachable(visit: Visit, refusing_endpoint: str) -> Outcomes:
    sources = [*COMPLETE, BY_COMMIT, "hf://owner/cut", "hf://owner/unasked", UNKNOWN_COMMIT]
    return download(refusing_endpoint, visit.home, *sources)


@pytest.mark.parametrize("source", COMPLETE)
def test_only_needed_files_are_downloaded(source: str, visit: Visit) -> None:
    outcome = visit.first[source]
    assert outcome.load_files() == COMPLETE[source]
    assert (outcome.warnings, outcome.waited_s) == ([], 0)


def test_only_the_best_form_of_the_weights_is_requested(visit: Visit) -> None:
    assert visit.hub.list_requested_files("owner/sharded") == sorted(CONFIGS | SHARDED)
    assert visit.hub.list_requested_files("owner/both") == sorted(COMPLETE["hf://owner/both"])
    assert visit.hub.list_requested_files("owner/pickled") == sorted(CONFIGS | PICKLED)
    assert "pytorch_model.bin" not in visit.hub.list_requested_files("owner/plain")


def test_a_branch_is_resolved_once_so_that_all_files_are_of_one_commit(visit: Visit) -> None:
    requests = [path for _, path in visit.hub.requests if path.startswith("/api/models/owner/sharded/revision/")]
    assert requests == ["/api/models/owner/sharded/revision/main"]


def test_a_snapshot_is_named_by_its_commit(visit: Visit) -> None:
    folder = visit.first["hf://owner/plain@second"].folder
    assert folder is not None
    assert Path(folder).name == COMMIT
    assert visit.again[BY_COMMIT].folder == folder


@pytest.mark.parametrize("source", [*COMPLETE, BY_COMMIT])
def test_a_second_download_requests_no_file(source: str, visit: Visit) -> None:
    assert visit.again[source].load_files() == COMPLETE.get(source, SECOND)
    repository = parse_model_reference(source)[0]
    assert visit.hub_again.list_requested_files(repository, "HEAD") == []
    assert visit.hub_again.list_requested_files(repository) == []


def test_only_complete_copies_count_as_cached(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(visit.home / "hub"))
    sources = [*COMPLETE, BY_COMMIT, "hf://owner/mended", "hf://owner/cut", "hf://owner/only-config", "hf://owner/unasked"]
    cached = [source for source in sources if is_model_cached(source)]
    assert cached == [*COMPLETE, BY_COMMIT, "hf://owner/mended"]
    with pytest.raises(ValueError, match="hf://owner/name"):
        is_model_cached("owner/plain")


def test_a_new_commit_is_downloaded(tmp_path: Path) -> None:
    with serve_hub(build_repositories()) as hub:
        assert download(hub.endpoint, tmp_path, BY_COMMIT)[BY_COMMIT].load_files() == SECOND


def test_an_interrupted_download_can_be_repeated(visit: Visit) -> None:
    assert visit.first["hf://owner/mended"].folder is None
    assert visit.again["hf://owner/mended"].load_files() == CONFIGS | SINGLE
    assert visit.hub_again.list_requested_files("owner/mended") == ["model.safetensors"]


def test_a_cached_copy_is_used_with_a_warning_if_the_hub_fails(visit: Visit) -> None:
    outcome = visit.again["hf://owner/fallen"]
    assert outcome.load_files() == CONFIGS | SINGLE
    assert len(outcome.warnings) == 1
    assert "500" in outcome.warnings[0]
    assert "\n" not in outcome.warnings[0]


@pytest.mark.parametrize("source", [*COMPLETE, BY_COMMIT])
def test_cached_copies_are_used_in_offline_mode(source: str, offline: Outcomes) -> None:
    assert offline[source].load_files() == COMPLETE.get(source, SECOND)
    assert offline[source].warnings == []


@pytest.mark.parametrize("source", [*COMPLETE, BY_COMMIT])
def test_cached_copies_are_used_with_a_warning_without_a_connection(source: str, unreachable: Outcomes) -> None:
    outcome = unreachable[source]
    assert outcome.load_files() == COMPLETE.get(source, SECOND)
    assert len(outcome.warnings) == 1
    assert outcome.warnings[0].startswith(f"VitrineWarning: {source}: ")
    assert Path(outcome.folder or "").name in outcome.warnings[0]
    assert "ConnectError: " in outcome.warnings[0]
    assert outcome.waited_s == 0


def require_error(outcomes: Outcomes, source: str, kind: str, *words: str) -> None:
    outcome = outcomes[source]
    assert outcome.error is not None, f"{source} was downloaded"
    assert outcome.kind == kind
    assert outcome.error.startswith(source)
    assert "\n" not in outcome.error
    assert "of the server" not in outcome.error
    assert [word for word in words if word not in outcome.error] == [], outcome.error


HUB_MISTAKES = {
    "hf://owner/missing": ("http://127.0.0.1:", "private", "`hf auth login`"),
    "hf://owner/plain@nowhere": ("no revision 'nowhere'",),
    "hf://owner/gated": ("gated", "http://127.0.0.1:", "/owner/gated,", "`hf auth login`"),
    "hf://owner/weightless": ("0.txt, 1.txt", "7.txt and 6 more", "model.safetensors", "pytorch_model.bin"),
    "hf://owner/plain@bare": ("README.md",),
    "hf://owner/only-config": ("config.json, preprocessor_config.json",),
}
HUB_FAILURES = {
    "hf://owner/broken": ("status 500",),
    "hf://owner/broken-files": ("status 500",),
    "hf://owner/cut": ("RemoteProtocolError: peer closed connection",),
    "hf://owner/short": ("Consistency check failed: file should be of size 10240 but has size 5120",),
    "hf://owner/silent": ("ReadTimeout", "check the connection"),
    "hf://owner/bad-token": ("status 401", "`hf auth login`"),
    "hf://owner/portal": ("JSONDecodeError", "HF_ENDPOINT"),
}


@pytest.mark.parametrize("source", HUB_MISTAKES)
def test_mistakes_fail_at_once(source: str, visit: Visit) -> None:
    require_error(visit.first, source, "ValueError", *HUB_MISTAKES[source])
    assert visit.first[source].waited_s == 0


@pytest.mark.parametrize("source", HUB_FAILURES)
def test_failures_of_the_hub(source: str, visit: Visit) -> None:
    require_error(visit.first, source, "OSError", *HUB_FAILURES[source])


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("a file where the folder of the cache should be")
    source = "hf://owner/plain"
    with serve_hub(build_repositories()) as hub:
        outcomes = download(hub.endpoint, home, source)
    require_error(outcomes, source, "OSError", f"{home}/hub", "HF_HOME")


@pytest.mark.parametrize("source", ["hf://owner/cut", "hf://owner/unasked", UNKNOWN_COMMIT])
def test_incomplete_copies_are_errors_without_the_hub(
    source: str, offline: Outcomes, unreachable: Outcomes, refusing_endpoint: str
) -> None:
    require_error(offline, source, "OSError", "unset HF_HUB_OFFLINE")
    require_error(unreachable, source, "OSError", refusing_endpoint, "ConnectError: ", "Connection refused")
    assert unreachable[source].waited_s == 0  # a refused connection is not tried again
