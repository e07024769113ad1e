"""Does a profile that is killed twenty times lose a timed call, or keep one twice?

Runs `spectune profile` of the demo family, kills it (`kill -9`) at seeded random moments of every phase, and starts the
same command again until it finishes. The store is read beside the profile right before and right after every kill: a
timed call or recorded part that was there before must be there after, and in the end every measurement must hold
exactly the calls that were written down for it. To see those that the profile takes out of its journal when it finishes
its surfaces, a trigger in the store copies them; it is the only thing added. The last line is one JSON object.

    python benchmarks/kill.py [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from contextlib import closing
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

from spectune.db import open_store
from spectune.profiler.device import detect

from result import print_result  # isort: skip

FAMILY = Path(str(files("spectune.demo.models")))
DRAFTERS = ("small", "medium")
PROMPTS, NEW_TOKENS, BUDGET_S = 8, 32, 20.0
PHASES = ("starting", "recording", "forwards", "rounds")  # in the order a profile meets them
BEGINNINGS = {  # of what the profile says on stderr -> phase
    "decoding": "recording",
    "recording": "recording",
    "comparing": "recording",
    "timing forwards": "forwards",
    "timing whole rounds": "rounds",
}
PLANNED = ("starting", *["recording"] * 5, *["forwards"] * 9, "starting", *["rounds"] * 4)
LONGEST_S = {"starting": 3.0, "recording": 3.0, "forwards": 1.8, "rounds": 2.0}  # from a phase's begin to its kill
LOCK_HOME = "XDG_CACHE_HOME"  # where the device's lock lies: no figure counts here, so other profiles may run meanwhile
LIMIT_S = 600.0  # for the run that is not killed
WATCH = """
CREATE TABLE kill_dropped AS SELECT * FROM spectune_visit;
CREATE TRIGGER kill_dropped BEFORE DELETE ON spectune_visit BEGIN
    INSERT INTO kill_dropped SELECT * FROM spectune_visit WHERE id = OLD.id;
END;
"""
CALL = "ordinal, surface, batch, context_tokens, tokens, purpose, round, ms, failure"

Call = tuple[Any, ...]  # Any: a row of CALL's columns, as SQLite returns it
Cell = tuple[int, int, int]  # (batch, context_tokens, tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """When to kill: so long after a run has reached a phase."""

    phase: str
    delay_s: float


class Run:
    """One run of the command, watched through what it says on stderr."""

    def __init__(self, command: list[str], folder: str) -> None:
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=os.environ | {LOCK_HOME: folder}
        )
        self._said: list[str] = []
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    @property
    def phase(self) -> str:
        """The last phase it has reached."""
        named = [BEGINNINGS[start] for line in self._said for start in BEGINNINGS if line.startswith(start)]
        return named[-1] if named else PHASES[0]

    def wait_for(self, phase: str) -> None:
        """Wait until the run has reached a phase or has ended."""
        while PHASES.index(self.phase) < PHASES.index(phase) and self._process.poll() is None:
            time.sleep(0.01)

    def kill(self) -> bool:
        """Kill it, and say whether it was still running."""
        self._process.send_signal(signal.SIGKILL)
        return self.ended() == -signal.SIGKILL

    def ended(self) -> int:
        """Wait until it ends and return its exit code."""
        code = self._process.wait(timeout=LIMIT_S)
        self._listener.join()
        if code not in (0, -signal.SIGKILL):
            raise SystemExit("the command failed by itself:\n" + "\n".join(self._said[-20:]))
        return code

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            self._said.extend(line.rstrip() for line in lines)


@dataclass(slots=True)
class Evidence:
    """What one store was seen to hold; faults are whatever contradicts it later."""

    place: Path
    seen: dict[int, Call] = field(default_factory=dict)  # by ordinal
    parts: dict[str, str] = field(default_factory=dict)  # documents by name, as long as the profile is open
    faults: list[str] = field(default_factory=list)
    is_finished: bool = False  # as the last look found it

    def look(self, place: Path | None = None) -> None:
        """Read all calls, those taken out of the journal included, and all parts; compare with what was seen before."""
        with closing(sqlite3.connect(place or self.place)) as store:
            store.execute("BEGIN")
            tables = ("spectune_visit", "kill_dropped")
            calls = [call for table in tables for call in store.execute(f"SELECT {CALL} FROM {table}")]
            parts = dict(store.execute("SELECT name, document FROM spectune_part"))
            self.is_finished = ("finished",) in store.execute("SELECT state FROM spectune_profile").fetchall()
        now = {call[0]: call for call in calls}
        lost = [ordinal for ordinal, call in self.seen.items() if now.get(ordinal) != call]
        self._expect(not lost, f"calls {lost} were seen, and are gone or changed")
        self._expect(len(now) == len(calls), f"{len(calls) - len(now)} calls are there twice")
        self._expect(sorted(now) == list(range(len(now))), "the calls' ordinals have gaps")
        gone = [name for name, document in self.parts.items() if parts.get(name) != document]
        self._expect(self.is_finished or not gone, f"parts {gone} were seen, and are gone or changed")
        self.seen, self.parts = now, parts

    def look_at_copy(self) -> None:
        """Look at a copy and check it: the store stays as the killed run left it, for the next to recover."""
        with tempfile.TemporaryDirectory() as folder:
            for file in self.place.parent.glob(f"{self.place.name}*"):
                shutil.copy(file, folder)
            self.look(Path(folder) / self.place.name)
            self._check_file(Path(folder) / self.place.name)

    def _check_file(self, place: Path) -> None:
        with closing(sqlite3.connect(place)) as store:
            (verdict,) = store.execute("PRAGMA integrity_check").fetchone()
            (profiles,) = store.execute("SELECT count(*) FROM spectune_profile").fetchone()
        self._expect(verdict == "ok", f"the file is damaged: {verdict}")
        self._expect(profiles <= 1, f"{profiles} profiles were begun instead of one resumed")

    def check_end(self) -> None:
        """Compare what is left of a finished profile with its calls."""
        with open_store(str(self.place)) as store:
            kept = [
                {(m.batch, m.context_tokens, m.tokens): m.failure or list(m.repeats_ms) for m in surface.measurements}
                for surface in store.surfaces()
            ]
        self._expect(kept == cells_of(self.seen), "a measurement differs from the calls it was made of")
        wanted = {"measurement": sum(map(len, kept)), "trace": len(DRAFTERS), "overhead": 1, "pairwise": 1}
        wanted |= {"visit": 0, "part": 0}
        with closing(sqlite3.connect(self.place)) as store:
            found = {name: store.execute(f"SELECT count(*) FROM spectune_{name}").fetchone()[0] for name in wanted}
            states = store.execute("SELECT state FROM spectune_profile").fetchall()
        self._expect(found == wanted, f"the store holds {found} rows, expected {wanted}")
        self._expect(states == [("finished",)], f"the profile is {states} in the end")

    def _expect(self, is_so: bool, fault: str) -> None:
        if not is_so:
            self.faults.append(fault)


def main() -> None:
    """Kill and resume, and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the moments to kill at")
    seed = parser.parse_args().seed
    kills = planned_kills(seed)
    phases: Counter[str] = Counter()
    stores: list[Evidence] = []
    is_planned = True
    with tempfile.TemporaryDirectory() as folder:
        prompts = few_prompts(Path(folder))
        while kills or not stores:  # a profile that finishes before the last kill is followed by another
            stores.append(watched_store(Path(folder) / f"{len(stores)}.db"))
            phases += resumed_until_finished(profile_command(prompts, stores[-1].place), kills, stores[-1])
            is_planned &= can_plan(stores[-1].place)
    faults = [fault for store in stores for fault in store.faults]
    checks = {
        "every kill hit a running profile": phases.total() == len(PLANNED),
        "every phase was hit": set(phases) == set(PHASES),
        "no call or part lost, none doubled, every store intact": not faults,
        "a plan can be made from what was measured": is_planned,
    }
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {name}")
    result = {
        "bench": "kill",
        "device": detect("cpu").label,
        "seed": seed,
        "kills": dict(phases),
        "profiles": len(stores),
        "visits": sum(len(store.seen) for store in stores),
        "not_run": ["H200"],
    }
    print_result(result | {"checks": checks, "faults": faults, "holds": all(checks.values())})


def planned_kills(seed: int) -> deque[Kill]:
    """Return the kills in the order in which one profile meets its phases."""
    source = random.Random(seed)
    return deque(Kill(phase=phase, delay_s=source.uniform(0.0, LONGEST_S[phase])) for phase in PLANNED)


def resumed_until_finished(command: list[str], kills: deque[Kill], evidence: Evidence) -> Counter[str]:
    """Run the command again and again until a run survives; return how many were killed in each phase.

    The kills that were carried out are taken off the queue.
    """
    phases: Counter[str] = Counter()
    while kills:
        run = Run(command, str(evidence.place.parent))
        run.wait_for(kills[0].phase)
        time.sleep(kills[0].delay_s)
        evidence.look()
        phase = run.phase
        if not run.kill():
            break
        evidence.look_at_copy()
        if evidence.is_finished:  # it had all it wanted and was about to say so: that kill is made on another profile
            break
        kills.popleft()
        phases[phase] += 1
        counts = f"{len(evidence.seen):>6} calls  {len(evidence.parts):>3} parts  {len(evidence.faults)} faults"
        print(f"killed while {phase:<9}  {counts}", flush=True)
    else:
        Run(command, str(evidence.place.parent)).ended()
    evidence.look_at_copy()
    evidence.check_end()
    return phases


def cells_of(calls: dict[int, Call]) -> list[dict[Cell, str | list[float]]]:
    """Return, per surface, what every cell's measurement must hold: its calls in order, or why it could not run."""
    surfaces: dict[int, dict[Cell, str | list[float]]] = {}
    for ordinal in sorted(calls):
        _, surface, batch, context_tokens, tokens, _, _, ms, failure = calls[ordinal]
        cells = surfaces.setdefault(surface, {})
        repeats = cells.setdefault((batch, context_tokens, tokens), [])
        if failure is not None:
            cells[batch, context_tokens, tokens] = failure
        elif isinstance(repeats, list):
            repeats.append(ms)
    return [surfaces[surface] for surface in sorted(surfaces)]


def watched_store(place: Path) -> Evidence:
    """Make an empty store whose dropped calls are copied."""
    open_store(str(place)).close()
    with closing(sqlite3.connect(place)) as store:
        store.executescript(WATCH)
    return Evidence(place)


def few_prompts(folder: Path) -> Path:
    """Write the first of the demo's prompts to a file and return it."""
    with (FAMILY / "calibration.jsonl").open(encoding="utf-8") as lines:
        chosen = list(islice(lines, PROMPTS))
    path = folder / "prompts.jsonl"
    path.write_text("".join(chosen), encoding="utf-8")
    return path


def profile_command(prompts: Path, store: Path) -> list[str]:
    """Return the command that is killed and started again."""
    drafters = [word for name in DRAFTERS for word in ("--drafter", f"{name}={FAMILY / name}")]
    size = ["--batch", "1", "--budget", f"{BUDGET_S:g}", "--max-new-tokens", str(NEW_TOKENS)]
    family = ["--target", str(FAMILY / "target"), *drafters, "--prompts", str(prompts)]
    return [sys.executable, "-m", "spectune", "profile", *family, *size, "--device", "cpu", "--store", str(store)]


def can_plan(store: Path) -> bool:
    """Say whether `spectune plan` finds in the store what it needs."""
    target = ["--target", str(FAMILY / "target"), "--device", "cpu", "--store", str(store)]
    done = subprocess.run(
        [sys.executable, "-m", "spectune", "plan", *target, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    print(done.stderr, file=sys.stderr, end="")
    return done.returncode == 0 and bool(json.loads(done.stdout))


if __name__ == "__main__":
    main()
