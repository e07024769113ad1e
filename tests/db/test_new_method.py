"""The worked example of docs/dev/structure.md: a new method of the store is a change of three files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEST = "test_traces_are_found_by_their_drafter"
EDITS = {  # by file: the line it goes before, and what is new
    "db/store.py": (
        '    @reads("/v1/traces/{trace_id}", "get_trace")\n',
        '''
    @reads("/v1/drafters/{drafter}/traces", "get_traces_of_drafter")
    def traces_of(self, drafter: str) -> list[TraceRow]:
        """List the traces of one drafter without their recordings, oldest first."""
''',
    ),
    "db/sql/measurements.py": (
        "    def trace(self, trace_id: int) -> AcceptanceTrace:\n",
        """
    def traces_of(self, drafter: str) -> list[TraceRow]:
        found = select(*columns_of(TraceTable, TraceRow)).filter_by(drafter=drafter)
        return self._rows(TraceRow, found.order_by(TraceTable.id))
""",
    ),
    "tests/support/store_contract.py": (
        "    def test_a_device_comes_back_equal(self, store: Store) -> None:\n",
        f"""
    def {TEST}(self, store: Store) -> None:
        store.add_trace(trace())
        (row,) = store.trace_rows()
        assert (store.traces_of(row.drafter), store.traces_of("another")) == ([row], [])
""",
    ),
}
ASKED_BY_HAND = """
from pathlib import Path
from urllib.request import urlopen
from tests.support.served_store import served_store
from tests.support.store_records import trace

with served_store(Path(), None) as served:
    served.behind.add_trace(trace())
    (row,) = served.behind.trace_rows()
    print(urlopen(f"{served.url}/v1/drafters/{row.drafter}/traces").read().decode())
    print(urlopen(f"{served.url}/openapi.json").read().decode())
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what is changed, link to the rest, and change it."""
    folder = tmp_path_factory.mktemp("changed")
    for entry in ROOT.iterdir():
        if entry.name in ("db", "tests"):
            shutil.copytree(entry, folder / entry.name, ignore=shutil.ignore_patterns("data", "__pycache__"))
        elif not entry.name.startswith("."):
            (folder / entry.name).symlink_to(entry)
    (folder / "tests" / "data").symlink_to(ROOT / "tests" / "data")
    (folder / ".types").mkdir()
    (folder / ".types" / "spectune").symlink_to("..")
    for name, (behind, new) in EDITS.items():
        text = (folder / name).read_text()
        assert text.count(behind) == 1, f"{name} has changed: give the example another place"
        (folder / name).write_text(text.replace(behind, f"{new.lstrip(chr(10))}\n{behind}"))
    return folder


def ran(folder: Path, *command: str) -> str:
    own = {**os.environ, "PYTHONPATH": str(folder / ".types"), "SPECTUNE_CACHE": str(folder / "cache")}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_declaration_sql_and_test_are_all_that_a_new_method_takes() -> None:
    assert len(EDITS) <= 3


def test_a_new_method_answers_in_databases_and_at_a_service(copy: Path) -> None:
    files = ("tests/db/test_store.py", "tests/db/remote/test_remote_store.py")
    told = ran(copy, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-k", f"{TEST} and not Postgres", *files)
    assert "3 passed" in told, told


def test_a_new_method_has_a_route_and_its_place_in_the_openapi_document(copy: Path) -> None:
    rows, document = ran(copy, "-c", ASKED_BY_HAND).splitlines()
    assert '"drafter":"drafter"' in rows
    assert "/v1/drafters/{drafter}/traces" in document
