"""The runs of `servers.py`: a tuning, a sweep and a race of one server; each load is kept, and no run begins anew."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spectune.engines.bundle import Bundle, Trial
from spectune.engines.sentinel import Reading
from spectune.engines.server import Measured
from spectune.engines.server_engine import Start
from spectune.planner.engines.served import PLAIN
from spectune.profiler.records.wire import from_json, to_json
from spectune.report.file import write_whole
from spectune.tuning.engines.loads import Loaded, paced_loads, words_of
from spectune.tuning.engines.serving import TuneRequest
from spectune.tuning.engines.tune import Tuned, plan, tune
from spectune.tuning.engines.tuned_server import TunedServer

LENGTHS = (1, 2, 3, 5, 8)
LONGEST, STARTS = 8, 4
SHORTER = {  # a second search for n-grams: of 2, with 4 tokens
    "llama.cpp": ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "2", "--spec-ngram-simple-size-m", "4"),
    "vllm": (
        "--speculative-config",
        '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 2}',
    ),
}
SWEEP, RACE = "sweep", "race"
Json = dict[str, Any]  # JSON values


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way in which a server is started."""

    start: Start
    command: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLoad:
    """A load of the sweep (round 0) or of a round of the race, and the seconds that it took with its start."""

    phase: str
    round: int
    setting: str
    seconds: float
    trial: Trial


class OutOfTimeError(Exception):
    """The next load would end behind the limit."""


class Deadline:
    """A limit of minutes; a load takes as long as the longest before."""

    def __init__(self, minutes: float) -> None:
        self._end, self._last, self._longest = time.monotonic() + 60.0 * minutes, time.monotonic(), 0.0

    def check(self) -> None:
        """Raise OutOfTimeError unless one more load fits."""
        now = time.monotonic()
        self._longest, self._last = max(self._longest, now - self._last), now
        if now + self._longest > self._end:
            raise OutOfTimeError

    def each(self, concurrencies: Sequence[int]) -> Iterator[int]:
        """Yield concurrencies while their loads fit."""
        for one in concurrencies:
            self.check()
            yield one


class Kept:
    """What ran of a cell, in one file."""

    def __init__(self, file: Path, options: Json) -> None:
        """Go on with a file; SystemExit where it is of other options."""
        self._file, self._options = file, options
        self.bundle: Bundle | None = None
        self.tune_s = 0.0
        self.loads: list[KeptLoad] = []
        if file.exists():
            content = json.loads(file.read_text())
            if content["options"] != options:
                raise SystemExit(f"{file} was measured with {content['options']}; begin anew with --again")
            self.bundle = None if content["bundle"] is None else from_json(Bundle, content["bundle"])
            self.tune_s = content["tune_s"]
            self.loads = [from_json(KeptLoad, one) for one in content["loads"]]

    def tuned(self, bundle: Bundle, seconds: float) -> None:
        """Keep a tuning so far, and the seconds since it was kept last."""
        self.bundle, self.tune_s = bundle, self.tune_s + seconds
        self._write()

    def ran(self, load: KeptLoad) -> None:
        """Keep one more load."""
        self.loads.append(load)
        self._write()

    def seconds(self, phase: str) -> float:
        """Return what all loads of a phase took, without the sentinel's readings."""
        return sum(one.seconds for one in self.loads if one.phase == phase)

    def of(self, phase: str, setting: str, concurrency: int) -> list[Trial]:
        """Return the loads of a setting in a phase."""
        own = (one for one in self.loads if (one.phase, one.setting) == (phase, setting))
        return [one.trial for one in own if one.trial.concurrency == concurrency]

    def trials(self, *phases: str) -> list[Trial]:
        """Return the loads of the tuning and of some phases."""
        own = (one.trial for one in self.loads if one.phase in phases)
        return [*(() if self.bundle is None else self.bundle.trials), *own]

    def _write(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "options": self._options,
            "bundle": None if self.bundle is None else to_json(self.bundle),
            "tune_s": self.tune_s,
            "loads": [to_json(one) for one in self.loads],
        }
        write_whole(self._file, json.dumps(content))


class Timed:
    """A running server; the seconds of its readings are counted apart: a sweep needs none."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.reading_s = 0.0

    def measure(self, concurrency: int) -> Measured:
        """Run a load."""
        return self._loaded.measure(concurrency)

    def pace(self, place: int, words: int) -> Reading:
        """Read the sentinel."""
        began = time.monotonic()
        found = self._loaded.pace(place, words)
        self.reading_s += time.monotonic() - began
        return found


def name_of(source: str, length: int) -> str:
    """Return what a setting is called."""
    return f"{source}, {length}" if length else PLAIN


def settings_of(server: TunedServer) -> dict[str, Setting]:
    """Return what is swept: plain decoding, a drafter at every length, and two searches for n-grams."""
    at = server.job.concurrencies
    drafter, ngrams = (source.name for source in server.sources())
    lengths = {name_of(drafter, length): (drafter, length) for length in LENGTHS}
    ways = {PLAIN: (PLAIN, 0), **lengths, name_of(ngrams, LONGEST): (ngrams, LONGEST)}
    starts = {name: Start.of(source, dict.fromkeys(at, length)) for name, (source, length) in ways.items()}
    found = {name: Setting(start=start, command=server.command(start)) for name, start in starts.items()}
    command = [*server.plain, *SHORTER[server.job.engine.name]]
    return found | {"n-grams of 2, 4": Setting(start=Start.of("n-grams of 2", dict.fromkeys(at, 4)), command=command)}


def tuned(server: TunedServer, kept: Kept, deadline: Deadline) -> Tuned:
    """Return what `tune` chooses with few starts; OutOfTimeError where it did not end."""
    request = TuneRequest(concurrencies=server.job.concurrencies, longest=LONGEST, most_starts=STARTS)
    held = kept.bundle or Bundle(spectune="", setup=server.job.setup)
    server.version = held.version
    if held.chosen is not None:
        return plan(request, server, held)
    last_s = time.monotonic()

    def save(bundle: Bundle) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        kept.tuned(bundle, now_s - last_s)
        last_s = now_s

    def progress(what: str, _share: float) -> None:
        deadline.check()
        print(f" {what}", flush=True)

    return tune(request, server, held, save=save, progress=progress)


def sweep(server: TunedServer, kept: Kept, deadline: Deadline) -> None:
    """Run every setting at every concurrency, each with one start."""
    for name, setting in settings_of(server).items():
        _visit(server, kept, deadline, (SWEEP, 0, name), setting, server.job.concurrencies)


def race(
    server: TunedServer,
    settings: Mapping[str, Setting],
    wanted: Mapping[str, Sequence[int]],
    kept: Kept,
    deadline: Deadline,
    rounds: int,
) -> None:
    """Run settings at the concurrencies where each is wanted, in turns whose order turns around."""
    for number in range(rounds):
        for name in list(wanted)[:: 1 if number % 2 == 0 else -1]:
            _visit(server, kept, deadline, (RACE, number, name), settings[name], wanted[name])


def _visit(
    server: TunedServer,
    kept: Kept,
    deadline: Deadline,
    place: tuple[str, int, str],
    setting: Setting,
    wanted: Sequence[int],
) -> None:
    """Start a setting and keep its loads at the concurrencies that are missing."""
    phase, number, name = place
    own = [one for one in kept.loads if (one.phase, one.round, one.setting) == place]
    done = {one.trial.concurrency for one in own}
    left = [one for one in wanted if one not in done]
    if not left:
        return
    deadline.check()
    last_s = time.monotonic()
    with server.running(setting.command) as loaded:
        timed = Timed(loaded)
        for trial in paced_loads(timed, setting.start, deadline.each(left), words_of(kept.trials(SWEEP, RACE))):
            seconds = time.monotonic() - last_s - timed.reading_s
            last_s, timed.reading_s = time.monotonic(), 0.0
            kept.ran(KeptLoad(phase=phase, round=number, setting=name, seconds=seconds, trial=trial))
            ttft_ms, tpot_ms = (trial.load.percentiles(one).mean for one in ("ttft_ms", "tpot_ms"))
            speeds = f"{trial.load.steady_tokens_per_s:.2f} tokens/s, TTFT {ttft_ms:.0f} ms, TPOT {tpot_ms:.1f} ms"
            print(f"  {phase} {number + 1}, {name} at {trial.concurrency}: {speeds}", flush=True)
