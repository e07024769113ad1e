"""Delete strategies one by one from a copy of this tree, and see that the rest stands.

    python -m tests.delete_strategy talon cast
    python -m tests.delete_strategy --all --full

A strategy's files are `planner/strategies/NAME.py` and those beside it whose names go on with `_`, and its own tests.
Its lines in the registry go with them. Then every module is imported, and the tests of the registry, of the floors and
of the planner run. Where a test uses what is gone, it is skipped, and counted. Nothing of the product may need that
help: it is imported without. Plain decoding, chains, lookups, hybrids and stacks are what others are made of, and stay.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

ROOT = Path(__file__).parents[1]
STRATEGIES = Path("planner/strategies")
REGISTRY = STRATEGIES / "__init__.py"
STAY = ("plain", "chain", "lookup", "hybrid", "stack")
QUICK = (
    "tests/planner/strategies/test_strategies.py",
    "tests/planner/strategies/test_strategies_bounds.py",
    "tests/repository/test_floors.py",
    "tests/planner/test_labels.py",
)
GONE = "SPECTUNE_TESTS_GONE"  # what was deleted: file, kind and class
IMPORTS = """
import importlib, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.py")):
    parts = path.relative_to(sys.argv[1]).with_suffix("").parts
    is_elsewhere = parts[0] in ("tests", "benchmarks") or parts[:2] == ("db", "migrations") or parts[0].startswith(".")
    if not is_elsewhere and parts[-1] != "__main__":
        importlib.import_module(".".join(("spectune", *(part for part in parts if part != "__init__"))))
"""


def registered() -> dict[str, tuple[str, str]]:
    """Return the class and the kind of every strategy that others do not build on, by its file's name."""
    from spectune.planner import strategies  # behind the plugin

    known = strategies.REGISTRY.items()
    named = {one.__module__.rpartition(".")[2]: (one.__name__, kind) for kind, one in known}
    return {name: found for name, found in named.items() if name not in STAY}


def files_of(name: str, names: Sequence[str], tree: Path) -> list[Path]:
    """Return the files of a strategy, its tests among them."""
    rival = [other for other in names if other.startswith(f"{name}_")]
    return [
        path
        for folder, start in ((STRATEGIES, ""), (Path("tests/planner"), "test_"))
        for path in (tree / folder).rglob(f"{start}{name}*.py")
        if re.fullmatch(f"{start}{name}(_.*)?", path.stem)
        and not any(re.fullmatch(f"{start}{other}(_.*)?", path.stem) for other in rival)
    ]


def copied(to: Path) -> None:
    """Copy what git knows or would know, times of files included: machine code that was kept stays good."""
    listed = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines():
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    (to / ".types").mkdir(exist_ok=True)
    (to / ".types/spectune").symlink_to("..")


def deleted(name: str, tree: Path) -> Callable[[], None]:
    """Delete a strategy; return what brings it back."""
    names = registered()
    kept = {path: path.read_bytes() for path in (*files_of(name, [*names], tree), tree / REGISTRY)}
    times = {path: path.stat() for path in kept}
    for path in kept:
        path.unlink()
    lines = kept[tree / REGISTRY].decode().splitlines(keepends=True)
    (tree / REGISTRY).write_text("".join(line for line in lines if not re.search(rf"\b{names[name][0]}\b", line)))

    def bring_back() -> None:
        for path, content in kept.items():
            path.write_bytes(content)
            os.utime(path, ns=(times[path].st_atime_ns, times[path].st_mtime_ns))

    return bring_back


@click.command()
@click.argument("names", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Every strategy that others do not build on.")
@click.option("--full", is_flag=True, help="All tests of the planner, not the quick ones alone.")
def main(names: Sequence[str], *, is_all: bool, full: bool) -> None:
    """Delete strategies one by one, and see that the rest stands."""
    known = registered()
    if unknown := {*names} - {*known}:
        raise click.UsageError(f"no strategy {', '.join(sorted(unknown))} can be deleted; take of {', '.join(known)}")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        copied(tree)
        failed = [name for name in (known if is_all else names) if not stands_without(name, tree, full=full)]
    if failed:
        raise click.ClickException(f"the tree does not stand without {', '.join(failed)}")


def stands_without(name: str, tree: Path, *, full: bool) -> bool:
    """Return whether imports and tests pass in a tree without a strategy."""
    bring_back = deleted(name, tree)
    environment = os.environ | {"PYTHONPATH": str(tree / ".types"), GONE: ",".join((name, *registered()[name]))}
    environment |= {} if full else {"NUMBA_DISABLE_JIT": "1"}  # compiling takes longer than these tests
    every = sorted(path.relative_to(tree).as_posix() for path in (tree / "tests/planner").rglob("test_*.py"))
    files = dict.fromkeys([*QUICK, *(every if full else ())])
    there = [file for file in files if (tree / file).exists()]
    asked = ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "tests.delete_strategy", *there]
    commands = ([sys.executable, "-c", IMPORTS, str(tree)], [sys.executable, *asked])
    try:
        click.echo(f"--- without {name}")
        done = [subprocess.run(command, cwd=tree, env=environment, check=False).returncode for command in commands]
    finally:
        bring_back()
    return done == [0, 0]


class _Absent(type):
    """A class of a deleted file: whatever a running test asks of it skips the test."""

    def __getattr__(cls, name: str) -> Any:  # Any: anything may be asked of what is gone
        return _asked(cls)

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __or__(cls, other: Any) -> Any:
        return other

    __ror__ = __or__

    def __call__(cls, *args: Any, **settings: Any) -> Any:
        return _asked(type.__call__(cls))


class _Stand(metaclass=_Absent):
    """What stands for anything of a deleted file."""

    def __getattr__(self, name: str) -> Any:  # Any: see above
        if name.startswith("__"):
            raise AttributeError(name)
        return _asked(self)

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return _asked(self)

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def _asked(stand: Any) -> Any:
    if _RUNNING:
        pytest.skip(f"it uses {os.environ[GONE]}, which is deleted")
    return stand


class _Gone(ModuleType):
    """A deleted file."""

    def __getattr__(self, name: str) -> Any:  # Any: see above
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(name, (_Stand,), {})


class _Finder:
    """Finds the files that are deleted, for tests alone."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        own = os.environ[GONE].split(",")[0]
        package, _, last = name.rpartition(".")
        is_own = package == "spectune.planner.strategies" and last.partition(own)[0] == ""
        is_there = (ROOT / Path(*name.split(".")[1:])).with_suffix(".py").exists()
        return ModuleSpec(name, self) if is_own and not is_there else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Gone(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave it empty."""


_RUNNING = list[str]()


def pytest_configure() -> None:
    """Let tests import what is deleted."""
    if GONE in os.environ:
        sys.meta_path.append(_Finder())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Note that a test runs."""
    _RUNNING.append(item.nodeid)
    try:
        return (yield)
    finally:
        _RUNNING.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Skip a test that reads what it kept of the deleted kind."""
    try:
        yield
    except Exception as error:
        kind = os.environ.get(GONE, ",,").split(",")[2]
        if kind and re.search(rf"(kind|no strategy of kind) '{kind}'", str(error)):
            pytest.skip(f"it reads a {kind}, which is deleted")
        raise


if __name__ == "__main__":
    main()
