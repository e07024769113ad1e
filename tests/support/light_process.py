"""Processes in which nothing can be imported but what `pip install .` brings, without an extra."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
ABSENT = """
import sys

class Absent:
    names = frozenset({names})

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def light(code: str, folder: Path, *, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python code in a folder, as it would run in an environment without the extras.

    Args:
        code: that is run.
        folder: where.
        given: on its stdin.
    """
    command = [sys.executable, "-c", ABSENT.format(names=sorted(absent_modules())) + code]
    return subprocess.run(command, cwd=folder, input=given, capture_output=True, text=True, check=False)


@cache
def absent_modules() -> frozenset[str]:
    """Return the top-level modules that are installed here and would not be."""
    there = {"spectune", *_brought(_dependencies())}
    found = packages_distributions().items()
    return frozenset(module for module, names in found if there.isdisjoint(map(canonicalize_name, names)))


def _dependencies() -> list[str]:
    """Return what pyproject.toml says, which an editable install may know from before."""
    dependencies: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return dependencies


def _brought(dependencies: list[str]) -> set[str]:
    """Return the distributions that come with requirements, as far as they are installed here."""
    found: set[tuple[str, frozenset[str]]] = set()
    ahead = [Requirement(text) for text in dependencies]
    while ahead:
        wanted = ahead.pop()
        key = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if key not in found:
            found.add(key)
            ahead += _needs(wanted)
    return {name for name, _ in found}


def _needs(wanted: Requirement) -> list[Requirement]:
    """Return what a distribution requires here, with the extras that are wanted of it."""
    try:
        needed = [Requirement(text) for text in requires(wanted.name) or ()]
    except PackageNotFoundError:  # a marker's business
        return []
    extras = {"", *wanted.extras}
    return [
        one for one in needed if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras)
    ]
