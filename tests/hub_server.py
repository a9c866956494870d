"""A Hugging Face hub on this machine: the few addresses that `snapshot_download` requests, and the ways in which they fail.

huggingface_hub 2.4 requests GET /api/models/{repository}[/revision/{revision}] for the commit,
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
# gated: the list of files is public, the files are not. broken: status 500 for everything. broken files: 500 for files only.
# cut: a weights file ends half-way, however often it is resumed. short: half of it is sent as if it were complete.
# silent: requests are never answered. bad token: the token is rejected. portal: a web page is sent instead.
Fault = Literal["gated", "broken", "broken files", "cut", "short", "silent", "bad token", "portal"]

API = re.compile(r"/api/models/(?P<repository>[^/]+/[^/]+)(?:/(?P<kind>revision|tree)/(?P<revision>[^/]+))?")
RESOLVE = re.compile(r"/(?P<repository>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


@dataclass(kw_only=True)
class Repository:
    revisions: dict[str, Files]
    """Files by branch, tag or refs/pr/n."""
    fault: Fault | None = None

    def compute_commit(self, revision: str) -> str:
        return hashlib.sha1(repr((revision, self.revisions[revision])).encode()).hexdigest()

    def find_files(self, name: str) -> tuple[str, Files] | None:
        """Return the commit and files of a branch, or of a commit itself."""
        for revision, files in self.revisions.items():
            commit = self.compute_commit(revision)
            if name in (revision, commit):
                return commit, files
        return None


@dataclass(kw_only=True)
class Hub:
    endpoint: str
    repositories: dict[str, Repository]
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of every request, in order."""
    closing: threading.Event = field(default_factory=threading.Event)

    def list_requested_files(self, repository: str, method: str = "GET") -> list[str]:
        """Return the files that were requested with a method, sorted, once for each request."""
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
        match = API.fullmatch(path) or RESOLVE.fullmatch(path)
        if match is None:
            return self.refuse(404, "EntryNotFound")
        repository = self.hub.repositories.get(match["repository"])
        if repository is None:
            return self.refuse(401, "RepoNotFound")  # not 404: the hub does not tell what exists without a token
        if repository.fault == "silent":
            self.hub.closing.wait()
            return None
        if repository.fault == "broken":
            return self.refuse(500)
        if repository.fault == "bad token":
            return self.refuse(401, message="Invalid credentials in Authorization header")
        if repository.fault == "portal":
            return self.send(200, {"Content-Type": "text/html"}, b"<html>\nRoom number?\n</html>")
        found = repository.find_files(unquote(match["revision"] or "main"))
        if found is None:
            return self.refuse(404, "RevisionNotFound")
        if match.re is RESOLVE:
            return self.send_file(repository.fault, *found, unquote(match["path"]))
        return self.send_tree(found[1]) if match["kind"] == "tree" else self.send_info(match["repository"], *found)

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
        # Several lines, like the hub's own, so that a message which repeats them is detected.
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
        """Print nothing: the requests are recorded."""


def tag(body: bytes) -> str:
    """Return git's hash of a file, which is the hub's ETag for small files."""
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
