"""Snapshots of models in Hugging Face's cache, and the names of models by the place where they lie."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PLACE = re.compile(r"(.*/models--([^/]+))/snapshots/([0-9a-f]{40})(?:/(.+))?")  # (cache, repository, commit, file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One commit (40 hex digits) of a hub repository, "org/name" or "name"; `file` where one file is the model."""

    repo: str
    commit: str
    file: str = ""
    is_main: bool = False

    @property
    def id(self) -> str:
        """Return the id by which a command finds the model again, with its revision where that is not the main one."""
        path = f"{self.repo}/{self.file}" if self.file else self.repo
        return path if self.is_main else f"{path}@{self.commit}"


def snapshot_at(place: str | Path) -> Snapshot | None:
    """Return what of the hub lies at a place in its cache; None for every other place."""
    found = PLACE.fullmatch(Path(place).as_posix())
    if found is None:
        return None
    cache, repo, commit, file = found.groups()
    main = Path(cache, "refs", "main")
    is_main = main.is_file() and main.read_text().strip() == commit
    return Snapshot(repo=repo.replace("--", "/"), commit=commit, file=file or "", is_main=is_main)


def name_of(folder: Path) -> str:
    """Return what a model folder is called: the last part of its id where it is a snapshot, else the folder's name."""
    snapshot = snapshot_at(folder)
    return folder.name if snapshot is None or snapshot.file else snapshot.repo.rpartition("/")[2]


def place_or_id(place: str | Path) -> str:
    """Return the id of a model in the hub's cache; every other place as it is."""
    snapshot = snapshot_at(place)
    return str(place) if snapshot is None else snapshot.id
