"""A Hugging Face hub on this machine: the few addresses that `snapshot_download` asks, and the ways in which they fail.

Written from what huggingface_hub 2.4 requests: GET /api/models/{repository}[/revision/{revision}] for the commit,
GET /api/models/{repository}/tree/{commit} for the files, then HEAD and GET /{repository}/resolve/{commit}/{file} for each.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import unquote, urlsplit

Files = dict[str, bytes]
# gated: anyone sees the list of files, nobody the files. broken: 500 to everything. broken files: 500 to files alone.
# cut: a weight file ends half-way, however often it is resumed. short: half of it comes as if it were the whole.
# silent: connections are taken and never answered. bad token: the one sent is refused. portal: another server's page comes.
Fault = Literal["gated", "broken", "broken files", "cut", "short", "silent", "bad token", "portal"]

API = re.compile(r"/api/models/(?P<repository>[^/]+/[^/]+)(?:/(?P<kind>revision|tree)/(?P<revision>[^/]+))?")
RESOLVE = re.compile(r"/(?P<repository>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


@dataclass(kw_only=True)
class Repository:
    revisions: dict[str, Files]
    """Branch, tag or refs/pr/n -> the files there."""
    fault: Fault | None = None

    def compute_commit(self, revision: str) -> str:
        return hashlib.sha1(repr((revision, self.revisions[revision])).encode()).hexdigest()

    def find_files(self, asked: str) -> tuple[str, Files] | None:
        """The commit and its files, by the name of a branch or by the commit itself."""
        for revision, files in self.revisions.items():
            commit = self.compute_commit(revision)
            if asked in (revision, commit):
                return commit, files
        return None


@dataclass(kw_only=True)
class Hub:
    endpoint: str
    repositories: dict[str, Repository]
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of every request, in the order of arrival."""
    closing: threading.Event = field(default_factory=threading.Event)

    def list_requested_files(self, repository: str, method: str = "GET") -> list[str]:
        """The files whose bodies were asked for, or with HEAD their headers, sorted; a name stands once per request."""
        matches = [RESOLVE.fullmatch(path) for verb, path in self.requests if verb == method]
        return sorted(match["path"] for match in matches if match is not None and match["repository"] == repository)


@contextmanager
def serve_hub(repositories: dict[str, Repository]) -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
    hub = Hub(endpoint=f"http://127.0.0.1:{server.server_port}", repositories=repositories)
    server.RequestHandlerClass = type("Handler", (HubHandler,), {"hub": hub})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        hub.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


class HubHandler(BaseHTTPRequestHandler):
    hub: Hub

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.hub.requests.append((self.command, unquote(path)))
        asked = API.fullmatch(path) or RESOLVE.fullmatch(path)
        if asked is None:
            return self.refuse(404, "EntryNotFound")
        repository = self.hub.repositories.get(asked["repository"])
        if repository is None:
            return self.refuse(401, "RepoNotFound")  # not 404: to one without a token the hub does not say what exists
        if repository.fault == "silent":
            self.hub.closing.wait()
            return None
        if repository.fault == "broken":
            return self.refuse(500)
        if repository.fault == "bad token":
            return self.refuse(401, message="Invalid credentials in Authorization header")
        if repository.fault == "portal":
            return self.send(200, {"Content-Type": "text/html"}, b"<html>\nRoom number?\n</html>")
        found = repository.find_files(unquote(asked["revision"] or "main"))
        if found is None:
            return self.refuse(404, "RevisionNotFound")
        if asked.re is RESOLVE:
            return self.send_file(repository.fault, *found, unquote(asked["path"]))
        return self.send_tree(found[1]) if asked["kind"] == "tree" else self.send_info(asked["repository"], *found)

    do_HEAD = do_GET

    def send_info(self, name: str, commit: str, files: Files) -> None:
        self.send_json({"id": name, "sha": commit, "siblings": [{"rfilename": path} for path in files]})

    def send_tree(self, files: Files) -> None:
        self.send_json([{"type": "file", "path": path, "size": len(body), "oid": tag(body)} for path, body in files.items()])

    def send_file(self, fault: Fault | None, commit: str, files: Files, path: str) -> None:
        if fault == "gated":
            return self.refuse(403, "GatedRepo")
        if fault == "broken files":
            return self.refuse(500)
        if path not in files:
            return self.refuse(404, "EntryNotFound")
        body = files[path]
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        headers = {"ETag": f'"{tag(body)}"', "X-Repo-Commit": commit, "Content-Length": str(len(body) - start)}
        if "Range" in self.headers:
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        if fault in ("cut", "short") and self.command == "GET" and not path.endswith(".json"):
            body = body[: len(body) // 2]
        if fault == "short":
            headers["Content-Length"] = str(len(body))
        return self.send(206 if "Range" in self.headers else 200, headers, body[start:])

    def send_json(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send(200, {"Content-Type": "application/json", "Content-Length": str(len(body))}, body)

    def refuse(self, status: int, code: str | None = None, message: str | None = None) -> None:
        # Several lines, as the hub's are, so that a sentence that repeats them is found out.
        body = b"First line of the server.\nSecond line of the server."
        reasons = {"X-Error-Code": code, "X-Error-Message": message}
        headers = {name: value for name, value in reasons.items() if value is not None}
        self.send(status, {"Content-Type": "text/plain", "Content-Length": str(len(body)), **headers}, body)

    def send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the requests are recorded."""


def tag(body: bytes) -> str:
    """Git's name for a file with this content, which is the hub's ETag for files that are not large."""
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
