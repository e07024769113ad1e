"""Does the plan hold on real models and real prompts, as people run them?

    python benchmarks/real.py --models FOLDER [--only pair,llamacpp-1] [--llama-server PATH] [--again] [--list]
    python benchmarks/real.py --models FOLDER --pair smollm2 --only smollm2-1 --quick --out /tmp/quick

FOLDER holds dense models and GGUF files of equal names, `humaneval.jsonl`, `mtbench.jsonl` and `sharegpt.json`. A cell
takes at most 40 minutes and writes its JSON at once; one that is there is skipped. Prompts come in one seeded order:
the first 32 are profiled, the next 32 raced.

| cell | what is measured |
|---|---|
| `profile-SET` | a profile with all defaults in a store of its own; of the pair three, whose middle counts |
| `pair-N`, `smollm2-N`, `gemma3-N`, `pair-mtbench-1`, `long-1`, `sampled-1` | the plan beside plain decoding on all raced prompts, as `spectune validate` does; then beside every published rule on a few, with fewer tokens |
| `pair-q4-N` | the same with GGUF files in their own format, and beside bfloat16 |
| `transformers` | generate, assisted generation and prompt lookup |
| `llamacpp-N` | a native llama-server: the best of a sweep, then in turns with our plans |
| `engine-llamacpp` | memory and plain speed of `profile --engine llama.cpp`, beside a server started by hand |
| `regret-sweep-N`, `regret-1` | 49 ways in parts; the five fastest and the plan on new prompts |
| `identity-SET` | float32 texts beside transformers.generate's; at a difference both logits in float64 |
| `identity-sampled` | every token drawn at temperature 0.8 is the target's own draw |

Every run ends with a table of all claims that the folder's JSON can judge. The last line is one JSON object.
"""  # noqa: E501 - rows of a table

from __future__ import annotations

import argparse
import json
import math
import os
import re
import resource
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch

from spectune.profiler.cpu import CPUINFO
from spectune.profiler.device import detect
from spectune.profiler.remembered import cache_folder

from real_cells import (  # isort: skip
    PARTS,
    dense_pair,
    distribution_cell,
    identity_cell,
    llamacpp_cell,
    packed_cell,
    race_cell,
    regret_cell,
    sweep_cell,
    transformers_cell,
)
from real_engine import engine_cell  # isort: skip
from real_sets import SETS, Json, Options, judged_again, profiled  # isort: skip
from result import commit, machine_name, print_result  # isort: skip

FULL = {"prompts": 32, "tokens": 128, "rule_prompts": 8, "rule_tokens": 96, "long_prompts": 8, "long_tokens": 2048}
FULL |= {"few": 4, "swept": 12, "profiles": 3}
QUICK = {"prompts": 8, "tokens": 24, "rule_prompts": 2, "rule_tokens": 16, "long_prompts": 2, "long_tokens": 512}
QUICK |= {"few": 2, "swept": 3, "profiles": 1}
BATCHES = (1, 4, 8)
MOST_MINUTES = 40.0
NOT_HERE = ("all cells on a GPU",)
Records = Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One cell of the benchmark: how it is measured, and which cells come before it."""

    name: str
    run: Callable[[Options, Records], Json]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What must hold of a cell; a value that is not known is NaN, and nothing holds of it."""

    cell: str
    what: str
    value: float
    sense: str  # "<=" or ">="
    bar: float

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return self.value <= self.bar if self.sense == "<=" else self.value >= self.bar


def main() -> int:
    """Measure the cells that are asked for and judge all that are there; return 1 where one could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder of models and prompts")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "real", help="of the JSON")
    parser.add_argument("--stores", type=Path, default=cache_folder() / "real", help="of the profiles")
    parser.add_argument("--only", default="", help="cells, `pair` for pair-1, -4 and -8; commas between")
    parser.add_argument("--again", action="store_true", help="measure cells that are there, too")
    parser.add_argument("--judge-again", action="store_true", help="judge the stored surfaces of profile cells anew")
    parser.add_argument("--list", action="store_true", help="print the cells and end")
    parser.add_argument("--quick", action="store_true", help="few prompts and tokens, to try it; labelled so")
    parser.add_argument("--pair", default="qwen-1.5b,qwen-0.5b", help="target and drafter, or a target alone")
    parser.add_argument("--llama-server", help="a native build; else the one on the PATH")
    for name, count in FULL.items():
        told = f"{count}, quick {QUICK[name]}"
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"see the head of real_sets.py [{told}]")
    asked = parser.parse_args()
    if asked.llama_server:
        os.environ["SPECTUNE_LLAMA_SERVER"] = asked.llama_server
    counts = {name: getattr(asked, name) or (QUICK if asked.quick else FULL)[name] for name in FULL}
    options = Options(
        models=asked.models, stores=asked.stores, pair=tuple(asked.pair.split(",")), quick=asked.quick, **counts
    )
    kept = Kept(asked.out, options)
    cells = {cell.name: cell for cell in all_cells()}
    meant = chosen(cells, asked.only.split(",") if asked.only else [])
    wanted = with_needs(cells, meant)
    if asked.list:
        for name in wanted:
            print(f"{name:22} {'measured' if kept.read(name) else 'not yet'}")
        return 0
    if asked.judge_again:
        judge_again(kept, [name for name in wanted if name.startswith("profile-")], options)
        return 0
    failed = [name for name in wanted if not measure(cells[name], kept, options, again=asked.again and name in meant)]
    summarise({name: record for name in cells if (record := kept.read(name))}, list(cells), failed, quick=asked.quick)
    return 1 if failed else 0


def all_cells() -> list[Measured]:
    """Return every cell, each profile right before the races that are predicted by it."""
    found = [
        Measured(name=f"profile-{name}", run=partial(_profiled, name)) for name in ("pair", "pair-of-8", "pair-q4")
    ]
    for batch in BATCHES:
        dense = dense_pair(batch).name
        found.append(_race(f"pair-{batch}", dense, batch))
    for batch in BATCHES:
        needs = ("profile-pair-q4", f"profile-{dense_pair(batch).name}")
        packed = partial(_packed, batch)
        found.append(Measured(name=f"pair-q4-{batch}", run=packed, needs=needs))
        found.append(Measured(name=f"llamacpp-{batch}", run=partial(_llamacpp, batch), needs=needs))
    found.append(
        Measured(name="transformers", run=lambda options, _: transformers_cell(options), needs=("profile-pair",))
    )
    found.append(Measured(name="engine-llamacpp", run=lambda options, _: engine_cell(options)))
    for name in ("pair-mtbench", "smollm2", "gemma3", "long", "sampled"):
        found.append(Measured(name=f"profile-{name}", run=partial(_profiled, name)))
        found += [_race(f"{name}-{batch}", name, batch) for batch in SETS[name].batches]
    found.append(Measured(name="profile-pair-alone", run=partial(_profiled, "pair-alone")))
    sweeps = [f"regret-sweep-{part}" for part in range(1, PARTS + 1)]
    for part, name in enumerate(sweeps, 1):
        found.append(Measured(name=name, run=partial(_swept, part), needs=("profile-pair-alone",)))
    found.append(Measured(name="regret-1", run=_regret, needs=("profile-pair-alone", *sweeps)))
    for name in ("pair", "smollm2", "gemma3"):
        found.append(Measured(name=f"identity-{name}", run=partial(_identity, name), needs=(f"profile-{name}",)))
    sampled = Measured(
        name="identity-sampled", run=lambda options, _: distribution_cell(options), needs=("profile-sampled",)
    )
    return [*found, sampled]


def chosen(cells: Mapping[str, Measured], only: Sequence[str]) -> set[str]:
    """Return the cells that are named, all where none is; `pair` names `pair-1`, `pair-4` and `pair-8`."""
    names = {name: {name, re.sub(r"-\d+$", "", name)} for name in cells}
    if unknown := [word for word in only if not any(word in own for own in names.values())]:
        raise SystemExit(f"no cell is called {', '.join(unknown)}; see --list")
    return {name for name, own in names.items() if not only or own & {*only}}


def with_needs(cells: Mapping[str, Measured], meant: Set[str]) -> list[str]:
    """Return cells and those that they need, in the order of all."""
    found = {*meant}
    for name in reversed(list(cells)):  # what a cell needs comes before it
        found |= set(cells[name].needs) if name in found else set()
    return [name for name in cells if name in found]


class Kept:
    """The JSON of cells in a folder, one file each and machine."""

    def __init__(self, folder: Path, options: Options) -> None:
        """Take a folder, which need not be there."""
        self._folder, self._quick = folder, options.quick
        self._machine = machine_name(detect("cpu"), CPUINFO.read_text() if CPUINFO.exists() else "")

    def path(self, name: str) -> Path:
        """Return the file of a cell."""
        return self._folder / f"{'quick-' if self._quick else ''}{name}-{self._machine}.json"

    def read(self, name: str) -> Json | None:
        """Return a cell's record, None where there is none."""
        try:
            record: Json = json.loads(self.path(name).read_text())
        except FileNotFoundError:
            return None
        return record

    def write(self, name: str, record: Json) -> None:
        """Write a cell's record in one step."""
        place = self.path(name)
        place.parent.mkdir(parents=True, exist_ok=True)
        partial_file = place.with_suffix(".partial")
        partial_file.write_text(json.dumps(record, indent=1) + "\n")
        partial_file.replace(place)


def measure(cell: Measured, kept: Kept, options: Options, *, again: bool, script: str = "real") -> bool:
    """Measure a cell of a script unless it is there; return whether it is there then."""
    if kept.read(cell.name) is not None and not again:
        return True
    if absent := [name for name in cell.needs if kept.read(name) is None]:
        print(f"MISS {cell.name} needs {absent[0]}", flush=True)
        return False
    print(f"... {cell.name}", file=sys.stderr, flush=True)
    started = time.monotonic()
    try:
        result = cell.run(options, {name: record for name in cell.needs if (record := kept.read(name))})
    except Exception as error:  # the other cells are measured all the same
        traceback.print_exc()
        print(f"MISS {cell.name} could not be measured: {error}", flush=True)
        return False
    flags = " --quick" if options.quick else ""
    facts = {
        "cell": cell.name,
        "quick": options.quick,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "device": detect("cpu").label,
        "command": f"python benchmarks/{script}.py --models FOLDER --only {cell.name}{flags}",
        "pair": list(options.pair),
        "options": {name: value for name, value in asdict(options).items() if name in FULL},
        "minutes": (time.monotonic() - started) / 60.0,
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
    kept.write(cell.name, facts | result)
    return True


def judge_again(kept: Kept, names: Sequence[str], options: Options) -> None:
    """Judge the surfaces of profile cells that are there once more, and write down when that was."""
    for name in names:
        if (record := kept.read(name)) is not None:
            runs = judged_again(SETS[name.removeprefix("profile-")], options, record["runs"])
            stamp = {"judged_at": datetime.now(UTC).isoformat(timespec="seconds"), "judged_commit": commit()}
            kept.write(name, {**record, **stamp, "runs": runs})
            summarise({name: kept.read(name) or record}, [name], [], quick=options.quick)


def summarise(records: Records, names: Sequence[str], failed: Sequence[str], *, quick: bool) -> None:
    """Print what cells tell, every claim beside its bar, and the last line."""
    for name, record in records.items():
        if "with_rules" in record:
            rules = record["with_rules"]["rules"]
            best = min(rules, key=lambda rule: float(rule["ratio"]))
            print(
                f"{name}: {record['policy']}, {record['measured_tokens_per_s']:.1f} tokens/s, predicted "
                f"{record['predicted_tokens_per_s']:.1f} ({record['raw_error']:+.1%}, machine's pace "
                f"{record['machine']:.3f}); {record['speedup']:.2f} of plain, {best['ratio']:.2f} of {best['name']}"
            )
        elif "tokens_per_s" in record:
            print(f"{name}: " + ", ".join(f"{way} {speed:.1f}" for way, speed in record["tokens_per_s"].items()))
    claims = [claim for name, record in records.items() for claim in claims_of(name, record)]
    for field, which in (("covers", "intervals"), ("covers_at_pace", "intervals at the machine's pace")):
        covered = [bool(record[field]) for record in records.values() if record.get(field) is not None]
        if covered:
            what = f"share of {len(covered)} {which} that cover"
            claims.append(Claim(cell="all races", what=what, value=statistics.mean(covered), sense=">=", bar=0.9))
    for claim in claims:
        verdict = "ok  " if claim.holds else "MISS"
        print(f"{verdict} {claim.cell:20} {claim.what:52} {claim.value:9.4g} {claim.sense} {claim.bar:.4g}")
    missing = [name for name in names if name not in records]
    result = {
        "benchmark": "real",
        "device": detect("cpu").label,
        "quick": quick,
        "holds": all(claim.holds for claim in claims) and not failed if claims or failed else None,
        "claims": [asdict(claim) | {"holds": claim.holds} for claim in claims if not math.isnan(claim.value)],
        "unknown": [f"{claim.cell}: {claim.what}" for claim in claims if math.isnan(claim.value)],
        "failed": list(failed),
        "not_run": [*missing, *NOT_HERE],
    }
    print_result(result)


def claims_of(name: str, record: Json) -> Iterator[Claim]:
    """Yield what must hold of one cell."""

    def most(what: str, value: float | None, bar: float) -> Claim:
        return Claim(cell=name, what=what, value=math.nan if value is None else value, sense="<=", bar=bar)

    def least(what: str, value: float, bar: float) -> Claim:
        return Claim(cell=name, what=what, value=value, sense=">=", bar=bar)

    yield most("minutes of this cell", record["minutes"], MOST_MINUTES)
    if name == "profile-pair":
        yield most("seconds of the middle profile", statistics.median(r["seconds"] for r in record["runs"]), 300.0)
        for place, surface in enumerate(record["runs"][0]["surfaces"]):
            who = f"{surface['model']}, {surface['role']}"
            for share, floor in (("median", 0.03), ("p95", 0.10)):
                error, raw, noise = (
                    _middle(record, place, f"{kind}_{share}") for kind in ("error_at_pace", "error", "noise")
                )
                yield most(f"held-out error, {share} (raw {raw:.1%}): {who}", error, max(floor, 1.5 * noise))
    if "covers" in record:
        yield most("machine off by", _off(record["machine"]), 0.05)
        yield most("rounds off by", _off(record["rounds"]), 0.05)
        yield most("texts off by, beside their interval", _off(record["texts"]), record["texts_margin"])
        yield most("interval's wider side", max(record["width"]), 0.12)
        yield most("the same at the machine's pace", record.get("width_at_pace"), 0.12)
    if "with_rules" in record:
        yield least("plan over the fastest published rule", _over_rules(record), 0.98)
    if name == "pair-q4-1":
        yield least("packed plan over bfloat16's", record["plan_ratio"], 1.15)
        yield least("packed plain decoding over bfloat16's", record["plain_ratio"], 1.5)
    if "memory_ratio" in record:
        yield most("peak memory over one instance's", record["memory_ratio"], 1.3)
        yield most("plain off a server by hand", _off(record["plain_ratio"]), 0.03)
    if "plan_over_best" in record:
        yield least("plan over llama.cpp's best", record["plan_over_best"], 1.0 if name == "llamacpp-1" else 1.3)
    if name == "regret-1":
        yield least("ways swept", record["ways"], 40)
        yield least("plan over the best of the sweep", record["ratio"], 0.98)
        yield most("profile's and plan's share of the sweep's time", record["share"], 0.15)
    if "faults" in record:
        yield most("faults", record["faults"], 0)
    if "ties" in record:
        yield least("prompts compared", record["prompts"], 32)
        yield least("tokens a prompt", record["tokens"], 128)


def _over_rules(record: Json) -> float:
    """Return the plan's speed over the fastest rule's; rules that came near are judged by their longer race."""
    longer = {row["way"]: float(row["ratio"]) for row in (record.get("finals") or {"rules": []})["rules"]}
    return min(longer.get(row["way"], float(row["ratio"])) for row in record["with_rules"]["rules"])


def _middle(record: Json, place: int, what: str) -> float:
    values = [run["surfaces"][place][what] for run in record["runs"]]
    return math.nan if None in values else statistics.median(values)


def _off(ratio: float | None) -> float | None:
    return None if ratio is None else abs(ratio - 1.0)


def _race(name: str, of: str, batch: int) -> Measured:
    return Measured(name=name, run=lambda options, _: race_cell(SETS[of], batch, options), needs=(f"profile-{of}",))


def _profiled(of: str, options: Options, _: Records) -> Json:
    return profiled(SETS[of], options)


def _packed(batch: int, options: Options, _: Records) -> Json:
    return packed_cell(SETS["pair-q4"], batch, options)


def _llamacpp(batch: int, options: Options, _: Records) -> Json:
    return llamacpp_cell(batch, options)


def _swept(part: int, options: Options, _: Records) -> Json:
    return sweep_cell(part, options)


def _regret(options: Options, records: Records) -> Json:
    return regret_cell(
        [records[f"regret-sweep-{n}"] for n in range(1, PARTS + 1)], records["profile-pair-alone"], options
    )


def _identity(of: str, options: Options, _: Records) -> Json:
    return identity_cell(SETS[of], options)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    raise SystemExit(main())
