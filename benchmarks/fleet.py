"""Does a profile of a Ray cluster outlive the loss of its nodes?

Starts a cluster of raylets on this machine: two nodes of a kind "one", which compute on one thread, and one of a kind
"two", on two threads. `spectune profile --ray` profiles the demo family on it. While they time forwards, a node of
either kind is killed with every process on it: the other node of "one" must take over, "two" must be reported as lost,
and the exit code must tell. Then "two" comes back, and the same command must go on and keep every call that the lost
node had timed. The last line is one JSON object. Run it from a checkout, with the extra `ray` installed.

    python benchmarks/fleet.py [--budget 6] [--store postgresql+psycopg://user@host/name]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from spectune.db import open_store
from spectune.demo.story import family_folder
from spectune.profiler.device import detect
from spectune.tests.support.local_cluster import LocalCluster, local_cluster

from result import print_result  # isort: skip

TIMING = re.compile(r"\(node (\w+)\): timing forwards, (\d+)%")  # what the command says of a node
SPENT = 20  # percent of its budget that a node has spent when it is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One call of the command."""

    exit_code: int
    seconds: float
    outcomes: dict[str, dict[str, Any]]  # what it printed, by kind; JSON values
    said: tuple[str, ...]


def main() -> None:
    """Run it and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=6.0, help="seconds for the forwards of each node")
    parser.add_argument("--store", help="of all nodes; a temporary SQLite file unless given")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(RAY_USAGE_STATS_ENABLED="0", XDG_CACHE_HOME=folder)  # the nodes inherit where locks lie
        result = measured(asked.store or str(Path(folder) / "store.db"), asked.budget)
    for name, holds in result["checks"].items():
        print(f"{'ok  ' if holds else 'MISS'} {name}")
    print_result(result | {"holds": all(result["checks"].values()), "not_run": ["several machines", "GPUs"]})


def measured(store: str, budget_s: float) -> dict[str, Any]:
    """Return what was seen, and what holds of it; JSON values."""
    with local_cluster() as cluster:
        one = min(cluster.add(threads=1, name="one") for _ in range(2))  # the one that comes first
        two = cluster.add(threads=2, name="two")
        first = run(cluster, store, budget_s, losing=(one, two))
        timed, stored = calls_under_way(store), stored_calls(store)
        cluster.add(threads=2, name="two")
        second = run(cluster, store, budget_s)
    kinds = [sorted(each.outcomes) for each in (first, second)]
    return {
        "bench": "fleet",
        "device": detect("cpu").label,
        "calls_timed_by_the_lost_node": len(timed),
        "seconds": [first.seconds, second.seconds],
        "failures": [{kind: found["failure"] for kind, found in each.outcomes.items()} for each in (first, second)],
        "checks": {
            "one node of each kind is profiled at a time": kinds == [["one", "two"]] * 2,
            "another node of the kind takes over": first.outcomes["one"]["failure"] is None
            and any("takes over" in line for line in first.said),
            "a node that nobody replaces is reported": "lost" in (first.outcomes["two"]["failure"] or ""),
            "the others' surfaces are in the store": len(stored) > 0,
            "the exit code tells": (first.exit_code, second.exit_code) == (1, 0),
            "the same command goes on": second.outcomes["two"].get("is_resumed") is True,
            "every call of the lost node is kept": len(timed) > 0 and timed <= stored_calls(store),
        },
    }


def run(cluster: LocalCluster, store: str, budget_s: float, losing: tuple[str, ...] = ()) -> Run:
    """Profile the cluster, and lose some of its nodes while they time forwards."""
    left, said, start = list(losing), [], time.monotonic()
    command = profile_command(cluster.address, store, budget_s)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stderr:
            print(f"{time.monotonic() - start:6.1f} s  {line}", end="", flush=True)
            said.append(line)
            if (found := TIMING.search(line)) and int(found[2]) >= SPENT:
                for node in [node for node in left if node.startswith(found[1])]:
                    left.remove(node)
                    cluster.lose(node)
        outcomes = {each["where"].split()[0]: each for each in map(json.loads, process.stdout)}
    return Run(exit_code=process.wait(), seconds=time.monotonic() - start, outcomes=outcomes, said=tuple(said))


def profile_command(address: str, store: str, budget_s: float) -> list[str]:
    """Return the command that is under test."""
    family = family_folder()
    models = ["--target", str(family / "target"), "--drafter", f"small={family / 'small'}"]
    size = ["--batch", "1", "--budget", str(budget_s), "--held-out", "4", "--record", "quick", "--max-new-tokens", "16"]
    place = ["--ray", address, "--store", store, "--json"]
    return [sys.executable, "-m", "spectune", "profile", *models, *size, *place]


def calls_under_way(store: str) -> set[float]:
    """Return the milliseconds of every timed call of a profile that has not finished its surfaces."""
    engine = create_engine(store if "://" in store else f"sqlite:///{store}")
    with engine.connect() as connection:
        return set(connection.scalars(text("SELECT ms FROM spectune_visit WHERE ms IS NOT NULL")))


def stored_calls(store: str) -> set[float]:
    """Return the milliseconds of every call in a stored surface."""
    with open_store(store) as opened:
        return {ms for surface in opened.surfaces() for cell in surface.measurements for ms in cell.repeats_ms}


if __name__ == "__main__":
    main()
