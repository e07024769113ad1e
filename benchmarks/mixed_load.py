"""Everything a team asks of the service at once, with lost answers and repeated requests, and what must come of it."""

from __future__ import annotations

import asyncio
import json
import random
import re
import sqlite3
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from spectune.planner.plans.observation import CellObservation, Observation
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.wire import to_json

from full_store import (  # isort: skip
    ATTENTION, BATCHES, CONTEXTS, DTYPE, REGIME, ROLE, WORKLOADS, Contents, plan_document, setups_of,
)  # fmt: skip
from http_load import MOST_FAULTS, NOT_MODIFIED, Answer, Wire, request_of  # isort: skip
from service_process import Service  # isort: skip

LOST, AGAIN = 0.05, 0.05  # chance that an answer to a write is not waited for, and that an answered write is sent again
TRIES, WAIT_S = 8, 0.25  # for one write
MOST_UNANSWERED = 1_000  # requests; a service that leaves so many unanswered does not keep up, and no more are sent
DRAIN_S = 60.0  # for the answers that are still out when the time is over
BUSY = (409, 429, 503)  # the same request may be sent again
LIST_PATHS = ("/v1/plans?limit=100", "/v1/devices", "/v1/models", "/v1/traces/rows?limit=100")
WRITTEN: dict[str, tuple[str, Callable[[str], str]]] = {  # table -> where the mark of a write stands in a row
    "spectune_measurement": ("document", lambda text: f"{json.loads(text)['repeats_ms'][0]:.6f}"),
    "spectune_observation": ("document", lambda text: json.loads(text)["source"]),
    "spectune_plan": ("document", lambda text: json.loads(text)["provenance"]["notes"][0]),
    "spectune_plan_event": ("reason", str),
}
Marked = dict[str, list[str]]  # table -> marks


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What the mixed load saw."""

    seconds: float = 0.0
    took_ms: dict[str, list[float]] = field(default_factory=dict)  # by what was asked
    faults: dict[str, int] = field(default_factory=dict)
    acknowledged: Marked = field(default_factory=lambda: {table: [] for table in WRITTEN})
    unsure: Marked = field(default_factory=lambda: {table: [] for table in WRITTEN})  # sent, whether answered or not
    repeats: int = 0  # requests that were sent again with the same key

    def note_fault(self, fault: str) -> None:
        """Count a fault."""
        alike = re.sub("[0-9a-f]{16}|[0-9]+", "N", fault)
        name = alike if alike in self.faults or len(self.faults) < MOST_FAULTS else "others"
        self.faults[name] = self.faults.get(name, 0) + 1


class Mixed:
    """Asks at a steady rate, each time something drawn at random."""

    def __init__(self, service: Service, contents: Contents, seed: int) -> None:
        self.outcome = Outcome()
        self._service, self._contents = service, contents
        self._draw = random.Random(seed)
        self._setups = setups_of(contents)
        self._tags: dict[str, str] = {}
        self._pages = ["/"]
        self._marks = 0
        self._is_over = False
        self._idle: list[Wire] = []
        self._acts: dict[str, tuple[float, Callable[[], Awaitable[None]]]] = {
            "resolve": (60.0, self._resolve),
            "resolve by document": (5.0, self._resolve_by_document),
            "measurements": (14.0, self._add_measurements),
            "observation": (12.0, self._add_observation),
            "list": (6.0, self._list),
            "surfaces": (1.0, self._surfaces),
            "page": (0.4, self._page),
            "plan": (0.5, self._add_plan),
            "promote": (0.5, self._promote),
        }

    async def run(self, seconds: float, rate: float) -> Outcome:
        """Ask for so long."""
        started = time.perf_counter()
        names, weights = list(self._acts), [weight for weight, _ in self._acts.values()]
        running: set[asyncio.Task[None]] = set()
        for number in range(int(seconds * rate)):
            await asyncio.sleep(max(0.0, started + number / rate - time.perf_counter()))
            (name,) = self._draw.choices(names, weights)
            if len(running) >= MOST_UNANSWERED:
                self.outcome.note_fault(f"not sent: {MOST_UNANSWERED:,} requests are unanswered")
                continue
            task = asyncio.create_task(self._timed(name))
            running.add(task)
            task.add_done_callback(running.discard)
        self._is_over = True
        _, late = await asyncio.wait(running, timeout=DRAIN_S) if running else (set(), set())
        for task in late:
            task.cancel()
            self.outcome.note_fault(f"no answer {DRAIN_S:g} s after the end")
        await asyncio.gather(*late, return_exceptions=True)
        for wire in self._idle:
            wire.close()
        self.outcome.seconds = time.perf_counter() - started
        return self.outcome

    async def _timed(self, name: str) -> None:
        began = time.perf_counter()
        try:
            await self._acts[name][1]()
        except (OSError, TimeoutError, ValueError, KeyError) as error:
            self.outcome.note_fault(f"{name}: {type(error).__name__}: {error}")
        self.outcome.took_ms.setdefault(name, []).append(1e3 * (time.perf_counter() - began))

    async def _resolve(self) -> None:
        path = resolve_path(*self._draw.choice(self._setups))
        tag = self._tags.get(path)
        answer = await self._get(path, {"If-None-Match": tag} if tag and self._draw.random() < 0.5 else {})
        self._tags[path] = answer.headers.get("etag", "")

    async def _resolve_by_document(self) -> None:
        device, target, workload = self._draw.choice(self._setups)
        asked = {"device": json.loads(to_json(device)), "target": target.key, "workload": workload, "temperature": 0.0}
        self._require((await self._ask("POST", "/v1/resolve", body=asked)), "POST /v1/resolve")

    async def _list(self) -> None:
        await self._get(self._draw.choice(LIST_PATHS))

    async def _surfaces(self) -> None:
        device, target, _ = self._draw.choice(self._setups)
        await self._get("/v1/surfaces?" + urlencode({"device": device.fingerprint, "model": target.key}))

    async def _page(self) -> None:
        answer = await self._get(self._draw.choice(self._pages))
        found = re.findall(rb'href="(/[^"#]*)"', answer.body)
        new = {link.decode().replace("&amp;", "&") for link in found} - set(self._pages)
        self._pages += sorted(new)[: max(0, 200 - len(self._pages))]

    async def _add_measurements(self) -> None:
        device, target, _ = self._draw.choice(self._setups)
        key = {"device": device.fingerprint, "model": target.key, "role": ROLE, "regime": REGIME, "dtype": DTYPE}
        cells, marks = [], []
        for _ in range(self._draw.randint(1, 5)):
            ms = 10.0 + 1e-6 * self._mark()
            batch, context, tokens = (self._draw.choice(values) for values in (BATCHES, CONTEXTS, range(1, 17)))
            cells.append(Measurement(batch=batch, context_tokens=context, tokens=tokens, repeats_ms=(ms, ms)))
            marks.append(f"{ms:.6f}")
        body = {
            "surface": {**key, "attention": ATTENTION},
            "measurements": [json.loads(to_json(cell)) for cell in cells],
        }
        await self._write("/v1/measurements", body, "spectune_measurement", marks)

    async def _add_observation(self) -> None:
        plan_id, mark = self._draw.randint(1, self._contents.plans), f"mark-{self._mark()}"
        cell = CellObservation(
            batch=1, context=256, is_planned=True, policy="chain", drafter="drafter", rounds=10, tokens=25,
            kept=(0, 2, 4, 3), draft_ms=20.0, verify_ms=90.0, round_ms=115.0, block_tokens_per_s=(215.0, 219.0),
        )  # fmt: skip
        seen = Observation(
            plan_id=plan_id, device=self._contents.devices[0].fingerprint, dtype=DTYPE, source=mark,
            spectune="benchmark", began="2026-01-01T00:00:00Z", ended="2026-01-01T00:01:00Z", cells=(cell,),
        )  # fmt: skip
        body = {"document": to_json(seen)}
        await self._write(f"/v1/plans/{plan_id}/observations", body, "spectune_observation", [mark])

    async def _add_plan(self) -> None:
        device, target, mark = self._draw.choice(self._contents.planned), self._draw.choice(self._contents.targets), ""
        workload, mark = self._draw.choice(WORKLOADS), f"mark-{self._mark()}"
        document = plan_document(self._contents.template, device, target, workload, mark)
        body = {
            "document": document,
            "device": device.fingerprint,
            "device_kind": device.kind_key,
            "target": target.key,
            "workload": workload,
            "temperature": 0.0,
            "sources": [],
        }
        await self._write("/v1/plans", body, "spectune_plan", [mark])

    async def _promote(self) -> None:
        plan_id, mark = self._draw.randint(1, self._contents.plans), f"mark-{self._mark()}"
        await self._write(f"/v1/plans/{plan_id}/promote", {"reason": mark}, "spectune_plan_event", [mark])

    def _mark(self) -> int:
        self._marks += 1
        return self._marks

    async def _get(self, path: str, headers: dict[str, str] | None = None) -> Answer:
        answer = await self._ask("GET", path, headers)
        self._require(answer, f"GET {path.partition('?')[0]}")
        return answer

    def _require(self, answer: Answer, what: str) -> None:
        """Count an answer that is not a success."""
        if not (200 <= answer.status < 300 or answer.status == NOT_MODIFIED):
            self.outcome.note_fault(f"{what}: {answer.status} {answer.body[:200].decode(errors='replace')}")

    async def _write(self, path: str, body: Any, table: str, marks: Sequence[str]) -> None:
        """Send a write until it is acknowledged, now and then without waiting, now and then once more than needed."""
        headers = {"Idempotency-Key": str(uuid.UUID(int=self._draw.getrandbits(128), version=4))}
        self.outcome.unsure[table] += marks  # until it is acknowledged
        if self._draw.random() < LOST:
            await self._ask_and_hang_up("POST", path, headers, body)
            self.outcome.repeats += 1
        answer = await self._answered("POST", path, headers, body)
        if answer is None or not 200 <= answer.status < 300:
            told = "no answer" if answer is None else f"{answer.status} {answer.body[:200].decode(errors='replace')}"
            self.outcome.note_fault(f"POST {path}: {told}")
            return
        self.outcome.acknowledged[table] += marks
        if self._draw.random() < AGAIN:
            self.outcome.repeats += 1
            second = await self._answered("POST", path, headers, body)
            if second is None or (second.status, second.body) != (answer.status, answer.body):
                self.outcome.note_fault(f"POST {table}: the same key was answered otherwise")

    async def _answered(self, method: str, path: str, headers: dict[str, str], body: Any) -> Answer | None:
        answer: Answer | None = None
        for attempt in range(TRIES):
            try:
                answer = await self._ask(method, path, headers, body)
            except (OSError, TimeoutError):
                answer = None
            if (answer is not None and answer.status not in BUSY) or self._is_over:
                return answer
            await asyncio.sleep(WAIT_S * (attempt + 1))
        return answer

    async def _ask(self, method: str, path: str, headers: dict[str, str] | None = None, body: Any = None) -> Answer:
        wire = await self._wire()
        try:
            answer = await wire.ask(self._bytes(method, path, headers or {}, body))
        except (OSError, TimeoutError):
            wire.close()
            raise
        if answer.headers.get("connection") == "close":
            wire.close()
        else:
            self._idle.append(wire)
        return answer

    async def _wire(self) -> Wire:
        """Return an open connection; those that were idle for long may have been closed by the service."""
        while self._idle:
            if not (wire := self._idle.pop()).is_closed:
                return wire
        return await Wire.to(self._service.host, self._service.port)

    async def _ask_and_hang_up(self, method: str, path: str, headers: dict[str, str], body: Any) -> None:
        wire = await Wire.to(self._service.host, self._service.port)
        wire.send(self._bytes(method, path, headers, body))
        await asyncio.sleep(self._draw.uniform(0.0, 0.02))
        wire.close()

    def _bytes(self, method: str, path: str, headers: dict[str, str], body: Any) -> bytes:
        told = {"Authorization": f"Bearer {self._service.token}", **headers}
        payload = b"" if body is None else json.dumps(body).encode()
        if payload:
            told["Content-Type"] = "application/json"
        return request_of(method, path, f"{self._service.host}:{self._service.port}", told, payload)


def resolve_path(device: Any, target: Any, workload: str) -> str:  # Any: a Device and a ModelIdentity
    """Return the path that asks for the plan of a setup."""
    asked = {"device": device.fingerprint, "target": target.key, "workload": workload, "temperature": 0.0}
    return "/v1/resolve?" + urlencode(asked)


def last_rows(store: Path) -> dict[str, int]:
    """Return the highest id of every table that is written to."""
    with closing(sqlite3.connect(store)) as connection:
        return {
            table: connection.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()[0] for table in WRITTEN
        }


def unlike(store: Path, since: dict[str, int], outcome: Outcome) -> list[str]:
    """Return in what the store differs from what was acknowledged: what is missing, twice, or was never sent."""
    found = []
    with closing(sqlite3.connect(store)) as connection:
        for table, (column, mark_of) in WRITTEN.items():
            rows = connection.execute(f"SELECT {column} FROM {table} WHERE id > ?", (since[table],))
            marks = [mark_of(value) for (value,) in rows]
            acknowledged, unsure = set(outcome.acknowledged[table]), set(outcome.unsure[table])
            differences = {
                "acknowledged and missing": len(acknowledged - set(marks)),
                "there twice": len(marks) - len(set(marks)),
                "there and never sent": len(set(marks) - acknowledged - unsure),
            }
            found += [f"{table}: {count} {what}" for what, count in differences.items() if count]
    return found
