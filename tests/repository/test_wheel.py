"""The wheel built from a clean clone holds the whole package, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOT_FILES = {"__init__.py", "__main__.py", "errors.py", "py.typed"}
NOT_SHIPPED = {"tests", "benchmarks", "docs", ".ci", ".types", ".github"}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clone the last commit: what is not committed is not shipped."""
    folder = tmp_path_factory.mktemp("wheel") / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    return folder


@pytest.fixture(scope="module")
def wheel(clone: Path) -> zipfile.ZipFile:
    """Build the clone's wheel with this environment's setuptools; no network is needed."""
    out = clone.parent / "wheels"
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*build, "--wheel-dir", str(out), str(clone)], check=True)
    (path,) = out.glob("spectune-*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def committed(clone: Path) -> list[Path]:
    listing = subprocess.run(["git", "ls-files"], cwd=clone, capture_output=True, text=True, check=True)
    return [Path(line) for line in listing.stdout.splitlines()]


def package_files(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_every_committed_file_of_the_package(wheel: zipfile.ZipFile, committed: list[Path]) -> None:
    shipped = {path for path in committed if len(path.parts) > 1 and path.parts[0] not in NOT_SHIPPED}
    shipped |= {path for path in committed if str(path) in ROOT_FILES}
    assert package_files(wheel) == {f"spectune/{path.as_posix()}" for path in shipped}


def test_the_wheel_installs_one_package_and_one_command(wheel: zipfile.ZipFile) -> None:
    assert {name.split("/")[0] for name in package_files(wheel)} == {"spectune"}
    (entry_points,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert wheel.read(entry_points).decode().split() == ["[console_scripts]", "spectune", "=", "spectune.cli:main"]


def test_the_wheel_carries_the_licence(wheel: zipfile.ZipFile) -> None:
    (licence,) = [name for name in wheel.namelist() if name.endswith("LICENSE")]
    assert "Apache License" in wheel.read(licence).decode()


def test_the_wheel_tells_type_checkers_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    assert "spectune/py.typed" in wheel.namelist()
