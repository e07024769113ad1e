"""How fast the service answers "which plan?", and whether it stays whole and small under everything at once.

    python benchmarks/resolve.py [--measurements 1000000] [--plans 10000] [--seconds 20] [--minutes 10] [--seed 0]

Fills a store, starts `spectune serve` on it as a process of its own, and asks from another process on the same two
cores, with a bearer token, over keep-alive connections (`http_load.py`). Devices, targets and workloads are drawn
evenly, boards without plans of their own among them, so that nothing but the service's own care keeps answers warm.

    first       every setup once, as fast as answers come: nothing was asked before
    whole       plans as whole documents (200), requests due at a steady rate above the bar
    unchanged   the same with If-None-Match (304)
    flat out    both at once, as fast as answers come
    mixed       resolve, ingest, observations, lists, pages, new plans and promotions together; answers to writes are
                lost and writes repeated with the same Idempotency-Key (`mixed_load.py`); the server's memory is read
                every second, every process of it

Latencies of a steady rate count from the moment a request was due. A sample of the answers, of the time after the mixed
load too, is compared with the store itself, read beside the service. `holds` is true where 200 and 304 answers each
come at 1,500 a second or more with a 99th percentile of 50 ms or less and no error, the sample is right, no answer of
the mixed load is an error, nothing acknowledged is missing or there twice, and after a fifth of the time as warm-up the
mean memory of the last third is at most 5 % above the first third's. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from spectune.db import Store, open_store
from spectune.errors import NoPlanError
from spectune.profiler.device import detect
from spectune.profiler.records.wire import to_json

from full_store import Contents, fill, setups_of  # isort: skip
from http_load import NOT_MODIFIED, OK, Orders, run_soon, summary  # isort: skip
from mixed_load import Mixed, Outcome, last_rows, resolve_path, unlike  # isort: skip
from service_process import Memory, Service, served  # isort: skip
from result import print_result  # isort: skip

BAR_PER_S, BAR_P99_MS, MOST_GROWTH = 1500.0, 50.0, 0.05
FULL_MEASUREMENTS, FULL_PLANS, FULL_MINUTES, CORES = 1_000_000, 10_000, 10.0, 2
OFFERED_PER_S, MIXED_PER_S = 1650.0, 50.0
FULL_SIZE = ("the store is full", "10 minutes of mixed load")  # what a smaller trial leaves out
SAMPLED = 40  # answers of each kind that are compared with the store
PACKAGES = ("fastapi", "starlette", "uvicorn", "sqlalchemy", "pydantic")
Json = dict[str, Any]  # JSON values


def main() -> int:
    """Fill, serve, ask; return 1 where something does not hold."""
    asked = arguments()
    cores = pinned()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        place = Path(folder) / "store.db"
        began = time.monotonic()
        contents = fill(place, asked.measurements, asked.plans, asked.seed)
        size_mib = place.stat().st_size / 2**20
        print(
            f"{contents.measurements:,} measurements, {contents.plans:,} plans of {contents.plan_bytes:,} bytes: "
            f"{size_mib:,.0f} MiB, written in {time.monotonic() - began:.0f} s",
            flush=True,
        )
        with served(place) as (process, service, log):
            speed = speeds(service, contents, asked.seconds, asked.seed)
            wrong = differences(service.store, speed.pop("kept"))
            mixed = mixed_figures(process.pid, service, contents, asked)
            wrong += differences(service.store, asked_once(service, contents, asked.seed))
            told = log.read_text(errors="replace")
    wrong += ["the token stands in the log"] if service.token in told else []
    checks = {
        FULL_SIZE[0]: contents.measurements >= FULL_MEASUREMENTS and contents.plans >= FULL_PLANS,
        "2 cores for service and generator": cores == CORES,
        **speed.pop("checks"),
        "sampled answers are the store's": not wrong,
        FULL_SIZE[1]: asked.minutes >= FULL_MINUTES,
        **mixed.pop("checks"),
    }
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {name}")
    result = {
        "bench": "resolve",
        "machine": detect("cpu").label,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "sqlite": sqlite3.sqlite_version,
        "seed": asked.seed,
        "measurements": contents.measurements,
        "plans": contents.plans,
        "plan_bytes": contents.plan_bytes,
        "setups": len(setups_of(contents)),
        "store_mib": size_mib,
        "speed": speed,
        "wrong": wrong,
        "mixed": mixed,
        "checks": checks,
        "holds": all(checks.values()),
        "not_run": [name for name in FULL_SIZE if not checks[name]],
    }
    print_result(result)
    return 0 if result["holds"] else 1


def arguments() -> argparse.Namespace:
    """Return what was asked on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measurements", type=int, default=FULL_MEASUREMENTS)
    parser.add_argument("--plans", type=int, default=FULL_PLANS)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each steady rate")
    parser.add_argument("--minutes", type=float, default=FULL_MINUTES, help="of mixed load")
    parser.add_argument("--rate", type=float, default=MIXED_PER_S, help="requests a second of the mixed load")
    parser.add_argument("--folder", type=Path, help="where the store lies meanwhile")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def pinned() -> int:
    """Stay, with every process that follows, on two cores; return how many they are."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 0


def speeds(service: Service, contents: Contents, seconds: float, seed: int) -> Json:
    """Return what each phase came to, the checks on it, and a sample of whole answers."""
    setups = setups_of(contents)
    paths = tuple(resolve_path(device, target, workload) for device, target, workload in setups)
    common: Json = {"host": service.host, "port": service.port, "token": service.token, "paths": paths, "seed": seed}
    first = generated(Orders(**common, keep_every=max(1, len(paths) // SAMPLED)))
    tags = tuple(first["tags"].get(path, "") for path in paths)
    many = int(OFFERED_PER_S * seconds) // SAMPLED
    steady: Json = {**common, "seconds": seconds, "rate": OFFERED_PER_S, "connections": 32, "keep_every": max(1, many)}
    whole = generated(Orders(**steady))
    unchanged = generated(Orders(**steady, tags=tags))
    flat_out = generated(Orders(**{**common, "paths": paths * 2}, seconds=seconds, tags=(*tags, *[""] * len(paths))))
    runs = {"first": first, "whole": whole, "unchanged": unchanged, "flat out": flat_out}
    figures = {name: figures_of(name, told) for name, told in runs.items()}
    return {
        **figures,
        "offered_per_s": OFFERED_PER_S,
        "kept": [kept for told in (first, whole, unchanged) for kept in told["kept"]],
        "checks": {
            "1,500 whole plans a second, p99 50 ms, no error": keeps_bar(figures["whole"], OK),
            "1,500 unchanged a second, p99 50 ms, no error": keeps_bar(figures["unchanged"], NOT_MODIFIED),
            "no error as fast as answers come": not (figures["first"]["faults"] or figures["flat out"]["faults"]),
        },
    }


def asked_once(service: Service, contents: Contents, seed: int) -> list[Json]:
    """Return whole answers for setups drawn anew."""
    setups = random.Random(seed + 1).sample(setups_of(contents), SAMPLED)
    paths = tuple(resolve_path(device, target, workload) for device, target, workload in setups)
    orders = Orders(host=service.host, port=service.port, token=service.token, paths=paths, keep_every=1)
    kept: list[Json] = generated(orders)["kept"]
    return kept


def generated(orders: Orders) -> Json:
    """Run the load generator as a process of its own and return what it was told."""
    script = Path(__file__).with_name("http_load.py")
    command = [sys.executable, str(script)]
    done = subprocess.run(command, input=to_json(orders), capture_output=True, text=True, check=True)
    told: Json = json.loads(done.stdout)
    return told


def figures_of(name: str, told: Json) -> Json:
    """Return rate, latencies by status and faults of a phase, and print them."""
    answers = sum(len(took) for took in told["took_ms"].values())
    by_status = {status: summary(took) for status, took in sorted(told["took_ms"].items())}
    per_s = answers / told["seconds"]
    for status, found in by_status.items():
        print(
            f"{name:10} {per_s:8,.0f}/s   {status}: {found['count']:8,}   p50 {found['p50_ms']:7.2f} ms   "
            f"p99 {found['p99_ms']:7.2f} ms   max {found['max_ms']:7.2f} ms   {sum(told['faults'].values())} faults",
            flush=True,
        )
    return {"per_s": per_s, "answers": by_status, "faults": told["faults"]}


def keeps_bar(figures: Json, status: int) -> bool:
    """Say whether answers of this status alone came, often and soon enough."""
    answers = figures["answers"]
    is_alone = set(answers) == {str(status)} and not figures["faults"]
    return is_alone and figures["per_s"] >= BAR_PER_S and answers[str(status)]["p99_ms"] <= BAR_P99_MS


def differences(place: Path, kept: list[Json]) -> list[str]:
    """Return in what sampled answers differ from what the store says."""
    found = []
    whole = [answer for answer in kept if answer["status"] == OK]
    with open_store(str(place)) as store:
        kinds = {device.fingerprint: device.kind_key for device in store.devices()}
        for answer in random.Random(0).sample(whole, min(SAMPLED, len(whole))):
            asked = {name: values[0] for name, values in parse_qs(urlsplit(answer["path"]).query).items()}
            rung, right = counting_plan(store, asked, kinds[asked["device"]])
            body = json.loads(answer["body"])
            said = (body["rung"], body["plan_id"], body["plan"])
            if said != (rung, right, json.loads(store.plan(right))):
                found.append(f"{answer['path']} is plan {said[1]} on {said[0]!r}, not {right} on {rung!r}")
    return found


def counting_plan(store: Store, asked: dict[str, str], kind: str) -> tuple[str, int]:
    """Return the plan that counts for a device, else for its kind, and how the service calls that."""
    setup: Json = {"target": asked["target"], "workload": asked["workload"], "temperature": float(asked["temperature"])}
    try:
        return "this device", store.find_plan(device=asked["device"], **setup).id
    except NoPlanError:
        return "same kind of device", store.find_plan(device_kind=kind, **setup).id


def mixed_figures(pid: int, service: Service, contents: Contents, asked: argparse.Namespace) -> Json:
    """Return what the mixed load came to, the server's memory, and the checks on both."""
    memory, since = Memory(pid), last_rows(service.store)
    with memory.watched():
        outcome: Outcome = run_soon(Mixed(service, contents, asked.seed).run(60.0 * asked.minutes, asked.rate))
    held, wrong = memory.figures(), unlike(service.store, since, outcome)
    by_kind = {name: summary(took) for name, took in outcome.took_ms.items()}
    for name, found in by_kind.items():
        print(f"{name:20} {found['count']:8,}   p50 {found['p50_ms']:7.2f} ms   p99 {found['p99_ms']:8.2f} ms")
    print(
        f"memory {held['first_mib']:.0f} MiB to {held['last_mib']:.0f} MiB, {held['slope_mib_per_minute']:+.2f} MiB/min"
    )
    kept = {table: len(marks) for table, marks in outcome.acknowledged.items()}
    print(f"acknowledged {kept}, {outcome.repeats} sent again; {wrong or 'all there, once'}; faults {outcome.faults}")
    return {
        "minutes": outcome.seconds / 60.0,
        "took": by_kind,
        "memory": held,
        "acknowledged": kept,
        "sent_again": outcome.repeats,
        "faults": outcome.faults,
        "wrong": wrong,
        "checks": {
            "no error under mixed load": not outcome.faults,
            "nothing acknowledged is missing or doubled": not wrong and all(kept.values()),
            "memory is flat": held["growth"] <= MOST_GROWTH,
        },
    }


if __name__ == "__main__":
    sys.exit(main())
