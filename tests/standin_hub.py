"""A stand-in of the Hugging Face hub on 127.0.0.1, with the faults of a network: what its client asks for
when a file is fetched, or files are sent, and nothing else.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "7288da5a0d6f0b51c4a2b27c624837a9236d0112"  # that the default backbone is fetched by
LARGE = (".safetensors", ".bin", ".pt", ".parquet")  # kept in Git LFS, and answered by a redirect
CHUNK = 4096


@dataclass
class Faults:
    """What goes wrong.

    Attributes:
        cut: bytes of a large file after which the connection is closed, once.
        corrupt: whether a byte in the middle of each large file is changed.
        commit: what is stated as the commit of a repository.
        size: what is stated as the size of a small file.
        status: codes answered in place of a file, by a part of the path.
    """

    cut: int | None = None
    corrupt: bool = False
    commit: str = COMMIT
    size: int | None = None
    status: dict[str, int] = field(default_factory=dict)


@dataclass
class StandIn:
    """The hub.

    Attributes:
        endpoint: its address, for HF_ENDPOINT.
        cdn: the address that large files are redirected to, as the hub does: its client asks about a file
            no further once the address is of another host or port.
        files: the content of each repository's files; of a branch of its own, of NAME@BRANCH's.
        stored: the content of large files that were sent, by their hash.
        faults: what goes wrong; may be changed at any time.
        requests: what was asked: method, path and range.
    """

    endpoint: str = ""
    cdn: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    stored: dict[str, bytes] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)

    def downloads(self) -> list[str | None]:
        """The ranges of the large files that were asked for, in order; None for a whole file."""
        return [part for method, path, part in self.requests if method == "GET" and path.startswith("/cdn/")]


@contextmanager
def standin_hub() -> Iterator[StandIn]:
    """The stand-in, answering for the length of the context."""
    hub = StandIn()

    class Handler(_Handler):
        standin = hub

    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    hub.endpoint, hub.cdn = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    threads = [
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        for server in servers
    ]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The stand-in, asked by the hub's client of this process, with an empty cache in ``tmp_path / "cache"``.
    The client does not wait before it tries again.
    """
    with standin_hub() as server:
        constants = "huggingface_hub.constants"
        monkeypatch.setattr(f"{constants}.ENDPOINT", server.endpoint)
        template = server.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(f"{constants}.HF_HUB_OFFLINE", False)
        monkeypatch.setattr(f"{constants}.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(f"{constants}.DOWNLOAD_CHUNK_SIZE", CHUNK)  # a cut loses up to one
        monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
        monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
        yield server


class _Handler(BaseHTTPRequestHandler):
    standin: StandIn

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_POST(self) -> None:
        path, sent = self._asked(), self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path == "/api/repos/create":
            name = json.loads(sent)
            return self._json({"url": f"{self.standin.endpoint}/{name['organization']}/{name['name']}"})
        if path == "/api/validate-yaml":
            return self._json({"warnings": []})
        if "/preupload/" in path:
            names = [entry["path"] for entry in json.loads(sent)["files"]]
            modes = {name: "lfs" if name.endswith(LARGE) else "regular" for name in names}
            return self._json({
                "files": [
                    {"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes.items()
                ]
            })  # fmt: skip
        if path.endswith(".git/info/lfs/objects/batch"):
            verify = f"{self.standin.endpoint}/verify"
            return self._json({
                "transfer": "basic",
                "objects": [
                    wanted
                    | {"actions": {
                        "upload": {"href": f"{self.standin.cdn}/lfs/{wanted['oid']}"},
                        "verify": {"href": verify},
                    }}
                    for wanted in json.loads(sent)["objects"]
                ],
            })  # fmt: skip
        if matched := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            files = self.standin.files.setdefault(matched[1], {})
            for line in map(json.loads, sent.splitlines()):
                entry = line["value"]
                if line["key"] == "file":
                    files[entry["path"]] = base64.b64decode(entry["content"])
                elif line["key"] == "lfsFile":
                    files[entry["path"]] = self.standin.stored[entry["oid"]]
            url = f"{self.standin.endpoint}/{matched[1]}/commit/{COMMIT}"
            return self._json({"commitUrl": url, "commitOid": COMMIT, "success": True})
        return self._json({})

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.standin.stored[self._asked().rpartition("/")[2]] = content
        self._send(200, {}, b"")

    def _asked(self) -> str:
        """The path of a request, which is noted."""
        path = unquote(urlsplit(self.path).path)
        self.standin.requests.append((self.command, path, self.headers.get("Range")))
        return path

    def _json(self, content: object) -> None:
        body, headers = json.dumps(content).encode(), {"Content-Type": "application/json"}
        self._send(200, headers, body)

    def _answer(self, *, body: bool) -> None:
        path = self._asked()
        for part, code in self.standin.faults.status.items():
            if part in path:
                return self._send(code, {}, b"")
        if path == "/":
            return self._send(200, {}, b"the hub" if body else b"")
        if matched := re.fullmatch(r"/api/(?:models|datasets)/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            branch = matched[2] if matched[2] not in (None, "main", COMMIT) else None
            return self._information(matched[1], branch)
        quoted = urlsplit(self.path).path  # a revision may hold slashes
        if matched := re.fullmatch(r"(?:/datasets)?/([^/]+/[^/]+)/resolve/[^/]+/(.+)", quoted):
            return self._resolve(matched[1], unquote(matched[2]), body)
        if matched := re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", path):
            return self._content(self._file(matched[1], matched[2]) or b"")
        return self._send(404, {}, b"")

    def _information(self, repository: str, branch: str | None) -> None:
        if branch is not None and f"{repository}@{branch}" not in self.standin.files:
            return self._send(404, {"X-Error-Code": "RevisionNotFound"}, b"")
        if repository not in self.standin.files:
            return self._send(404, {"X-Error-Code": "RepoNotFound"}, b"")
        files = self.standin.files[f"{repository}@{branch}" if branch else repository]
        siblings = [
            {"rfilename": name, "size": len(content), "blobId": git_hash(content)}
            | ({"lfs": _lfs(content)} if name.endswith(LARGE) else {})
            for name, content in files.items()
        ]
        return self._json({"id": repository, "sha": self.standin.faults.commit, "siblings": siblings})

    def _resolve(self, repository: str, name: str, body: bool) -> None:
        content = self._file(repository, name)
        faults = self.standin.faults
        if content is None:
            return self._send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": faults.commit}, b"")
        if not name.endswith(LARGE):
            headers = {"X-Repo-Commit": faults.commit, "ETag": f'"{git_hash(content)}"'}
            if body and (part := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")):
                return self._send(206, headers, content[int(part[1]) : int(part[2]) + 1])
            length = len(content) if body or faults.size is None else faults.size
            return self._send(200, headers, content if body else b"", length=length)
        return self._send(302, {
            "X-Repo-Commit": faults.commit, "X-Linked-Etag": f'"{sha256(content)}"',
            "X-Linked-Size": str(len(content)),
            "Location": f"{self.standin.cdn}/cdn/{repository}/{name}",
        }, b"")  # fmt: skip

    def _file(self, repository: str, name: str) -> bytes | None:
        """The content of a file of a repository's first branch that has it."""
        branches = [files for key, files in self.standin.files.items() if key.partition("@")[0] == repository]
        return next((files[name] for files in branches if name in files), None)

    def _content(self, content: bytes) -> None:
        faults = self.standin.faults
        if faults.corrupt:
            middle = len(content) // 2
            content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        matched = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        start = int(matched[1]) if matched else 0
        stop = min(int(matched[2]) + 1, len(content)) if matched and matched[2] else len(content)
        self.send_response(206 if matched else 200)
        self.send_header("Content-Length", str(stop - start))
        if matched:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        self.end_headers()
        end = stop if faults.cut is None else faults.cut
        faults.cut = None
        for at in range(start, end, CHUNK):
            self.wfile.write(content[at : min(at + CHUNK, end)])

    def _send(self, code: int, headers: dict[str, str], body: bytes, length: int | None = None) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        with suppress(ConnectionError):  # the client has read enough
            self.wfile.write(body)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_hash(content: bytes) -> str:
    """Git's hash of a file."""
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


def _lfs(content: bytes) -> dict[str, object]:
    return {"sha256": sha256(content), "size": len(content), "pointerSize": 134}
