"""Nothing heavy is loaded before it is needed: each start is a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from spectune.cli.commands import COMMANDS

HEAVY = {"torch", "transformers", "scipy", "numba", "sqlalchemy", "alembic", "optuna", "pydantic", "rich", "matplotlib"}
MODULES = {name: f"spectune.cli{entry.target.partition(':')[0]}" for name, entry in COMMANDS.items()}
LOADED = "import sys; print('\\n'.join(sys.modules), file=sys.stderr)"  # stdout has the help's words
HELP = """
import sys, spectune.cli
sys.argv = ["spectune", *{arguments}]
try:
    spectune.cli.main()
except SystemExit as end:
    assert not end.code
"""
EVERY_MODULE = """
import importlib, pkgutil, {package}
for module in pkgutil.walk_packages({package}.__path__, "{package}."):
    importlib.import_module(module.name)
"""


def modules_after(code: str, folder: Path) -> set[str]:
    """Return the modules loaded by code, run in an empty folder, less those a bare interpreter loads."""
    return loaded_by(code, folder) - loaded_by_itself()


@cache
def loaded_by_itself() -> set[str]:
    return loaded_by("", Path(sys.prefix))


def loaded_by(code: str, folder: Path) -> set[str]:
    command = [sys.executable, "-c", f"{code}\n{LOADED}"]
    return set(subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stderr.split())


def packages(modules: set[str]) -> set[str]:
    return {name.split(".")[0] for name in modules}


def test_importing_spectune_loads_only_itself(tmp_path: Path) -> None:
    loaded = modules_after("import spectune", tmp_path)
    assert {name for name in loaded if name.startswith("spectune")} == {"spectune"}
    assert packages(loaded) <= {"spectune", *sys.stdlib_module_names}


def test_the_table_of_engines_loads_none_of_them(tmp_path: Path) -> None:
    loaded = modules_after("import spectune.engines.table", tmp_path)
    assert {name for name in loaded if name.startswith("spectune.")} == {"spectune.engines", "spectune.engines.table"}
    assert packages(loaded) <= {"spectune", *sys.stdlib_module_names}


def test_importing_the_planner_loads_nothing_heavy(tmp_path: Path) -> None:
    assert not packages(modules_after("import spectune.planner", tmp_path)) & HEAVY


@pytest.mark.parametrize("package", ["spectune.planner", "spectune.profiler.records"])
def test_importing_each_module_of_the_lower_floors_loads_nothing_heavy(package: str, tmp_path: Path) -> None:
    loaded = modules_after(EVERY_MODULE.format(package=package), tmp_path)
    assert package in loaded
    assert not packages(loaded) & HEAVY


def test_the_help_loads_no_command_and_nothing_heavy(tmp_path: Path) -> None:
    loaded = modules_after(HELP.format(arguments=["--help"]), tmp_path)
    assert "spectune.cli.commands" in loaded
    assert not loaded & set(MODULES.values())
    assert not packages(loaded) & (HEAVY | {"numpy"})


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_s_help_loads_no_other_command_and_no_torch(command: str, tmp_path: Path) -> None:
    loaded = modules_after(HELP.format(arguments=[command, "--help"]), tmp_path)
    assert loaded & set(MODULES.values()) == {MODULES[command]}
    assert not packages(loaded) & {"torch", "transformers", "scipy", "sqlalchemy", "matplotlib"}


def test_a_store_in_a_file_needs_nothing_of_a_service(tmp_path: Path) -> None:
    loaded = modules_after("from spectune.db import open_store; open_store('store.db').close()", tmp_path)
    assert "spectune.db.sql.sql_store" in loaded
    assert not packages(loaded) & {"httpx", "fastapi", "uvicorn", "torch"}
    assert "spectune.db.remote.remote_store" not in loaded


def test_a_heavy_import_would_be_seen(tmp_path: Path) -> None:
    assert "scipy" in packages(modules_after("import scipy", tmp_path))
