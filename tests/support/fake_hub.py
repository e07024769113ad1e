"""A hub of Hugging Face on this machine: folders served over HTTP as repositories, as far as a download asks."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

API = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+?)(?:/(?P<kind>revision|tree)/(?P<revision>[^/]+))?")
FILE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
TEMPLATE = "/{repo_id}/resolve/{revision}/{filename}"


def commit_of(revision: str) -> str:
    """Return the commit of a revision: 40 hex digits."""
    return hashlib.sha1(revision.encode()).hexdigest()


@dataclass
class FakeHub:
    """What is served, what is refused, and what was asked for.

    Attributes:
        repos: folders by repository and revision.
        refused: status and error code of a repository's answers.
        gated: repositories whose files are refused, though what they hold is told.
        dropped: files whose next download ends in the middle.
        asked: method, path and Range header of every request.
    """

    url: str = ""
    repos: dict[str, dict[str, Path]] = field(default_factory=dict)
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def fetched(self) -> list[str]:
        """Return the names of the files that were downloaded, in order."""
        return [path.rpartition("/")[2] for method, path, _ in self.asked if method == "GET" and "/resolve/" in path]

    def folder(self, repo: str, revision: str) -> Path | None:
        """Return the folder of a revision's name or commit."""
        named = self.repos[repo]
        return next((folder for name, folder in named.items() if revision in (name, commit_of(name))), None)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def _answer(self, *, has_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append((self.command, path, self.headers.get("Range", "")))
        found = API.fullmatch(path) or FILE.fullmatch(path)
        if found is None:  # what the library asks beside models
            self._refuse(404, "")
            return
        repo, parts = found["repo"], found.groupdict()
        if repo in self.hub.refused or repo not in self.hub.repos:
            self._refuse(*self.hub.refused.get(repo, (404, "RepoNotFound")))
        elif (folder := self.hub.folder(repo, parts["revision"] or "main")) is None:
            self._refuse(404, "RevisionNotFound")
        elif "path" not in parts:
            self._tell(folder, is_tree=parts["kind"] == "tree")
        elif repo in self.hub.gated:
            self._refuse(403, "GatedRepo")
        else:
            self._send(folder, folder / parts["path"], has_body=has_body)

    def _refuse(self, status: int, code: str) -> None:
        self._begin(status, {"Content-Length": "0"} | ({"X-Error-Code": code} if code else {}))

    def _tell(self, folder: Path, *, is_tree: bool) -> None:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        names = [path.relative_to(folder).as_posix() for path in files]
        tree = [
            {"type": "file", "path": name, "size": path.stat().st_size, "oid": commit_of(name)}
            for name, path in zip(names, files, strict=True)
        ]
        revision = next(name for named in self.hub.repos.values() for name, each in named.items() if each == folder)
        about = {"id": "a/b", "sha": commit_of(revision), "siblings": [{"rfilename": name} for name in names]}
        body = json.dumps(tree if is_tree else about).encode()
        self._begin(200, {"Content-Length": str(len(body)), "Content-Type": "application/json"})
        self.wfile.write(body)

    def _send(self, folder: Path, path: Path, *, has_body: bool) -> None:
        whole = path.read_bytes()
        start = int(re.sub(r"\D", "", self.headers.get("Range", "")) or 0)
        body = whole[start:]
        revision = next(name for named in self.hub.repos.values() for name, each in named.items() if each == folder)
        headers = {"ETag": f'"{hashlib.sha1(whole).hexdigest()}"', "X-Repo-Commit": commit_of(revision)}
        headers |= {"Content-Range": f"bytes {start}-{len(whole) - 1}/{len(whole)}"} if start else {}
        self._begin(206 if start else 200, {**headers, "Content-Length": str(len(body))})
        if has_body and path.name in self.hub.dropped:
            self.hub.dropped.remove(path.name)
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif has_body:
            self.wfile.write(body)

    def _begin(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


@contextmanager
def served_hub() -> Iterator[FakeHub]:
    """Yield a hub that listens; it holds nothing yet."""
    hub = FakeHub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        hub.url = f"http://127.0.0.1:{server.server_port}"
        yield hub
        server.shutdown()


def point_at(patch: pytest.MonkeyPatch, url: str, cache: Path) -> None:
    """Let the hub's library, which has read its environment, ask a hub and keep files in a folder."""
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr(constants, "ENDPOINT", url)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + TEMPLATE)
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
