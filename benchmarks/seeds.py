"""Every method of the seed papers on real models: trained, predicted and raced as its paper does.

    python benchmarks/seeds.py --models FOLDER [--head FOLDER] [--only gpu-curves] [--again] [--list] [--quick]

FOLDER is that of `real.py`. A cell takes at most 40 minutes and writes its JSON at once; one that is there is skipped.

| cell | what is shown |
|---|---|
| `head` | an EAGLE-3 head of SmolLM2 (`spectune train eagle`): its card, and its agreement by depth on MT-Bench |
| `gpu-curves` | PREDICTION: published rules and the plan on cost curves of GPUs, with the pair's recorded acceptance |
| `stacks-pair` | PREDICTION: all stacks of the pair by replay, HSD's formula and the search's choice |

`gpu-curves` and `stacks-pair` read the pair's profile of `real.py` (its cell `profile-pair`). The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from spectune.profiler.device import detect
from spectune.profiler.remembered import cache_folder

from real import FULL, QUICK, Claim, Kept, Measured, Records, chosen, measure  # isort: skip
from real_sets import Json, Options  # isort: skip
from result import print_result  # isort: skip
from seeds_cells import curves_cell, head_cell, stacks_cell  # isort: skip

NOT_HERE = (
    "part 2: races of rules with the head and with the 0.5B",
    "part 3: stacks against the clock",
    "part 4: Cacheback, Token Recycling, CTC, SpecFormer, early exits",
    "part 5: FLy and PAD",
    "part 6: SLED",
    "part 7: batch and context",
    "part 8: FastVLM",
)
LEAST_AGREEMENT, MOST_HOURS = 0.5, 4.0


def main() -> int:
    """Measure the cells that are named and judge all that are there; return 1 where one could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder of models and prompts")
    parser.add_argument("--head", type=Path, help="folder of SmolLM2's head [smollm2-eagle beside the models]")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "seeds", help="of the JSON")
    parser.add_argument("--stores", type=Path, default=cache_folder() / "real", help="of real.py's profiles")
    parser.add_argument("--only", default="", help="cells; commas between")
    parser.add_argument("--again", action="store_true", help="measure cells that are there, too")
    parser.add_argument("--list", action="store_true", help="print the cells and end")
    parser.add_argument("--quick", action="store_true", help="few prompts and tokens, to try it; labelled so")
    args = parser.parse_args()
    counts = QUICK if args.quick else FULL
    options = Options(
        models=args.models,
        stores=args.stores,
        pair=("qwen-1.5b", "qwen-0.5b"),
        quick=args.quick,
        **counts | {"profiles": FULL["profiles"]},
    )
    kept = Kept(args.out, options)
    cells = {cell.name: cell for cell in all_cells(args.head or args.models / "smollm2-eagle")}
    names = [name for name in cells if name in chosen(cells, args.only.split(",") if args.only else [])]
    if args.list:
        for name in names:
            print(f"{name:22} {'measured' if kept.read(name) else 'not yet'}")
        return 0
    failed = [name for name in names if not measure(cells[name], kept, options, again=args.again, script="seeds")]
    summarise({name: record for name in cells if (record := kept.read(name))}, list(cells), failed, quick=args.quick)
    return 1 if failed else 0


def all_cells(head: Path) -> list[Measured]:
    """Return every cell; `head` is the folder of SmolLM2's head."""
    return [
        Measured(name="head", run=partial(_head, head)),
        Measured(name="gpu-curves", run=lambda options, _: curves_cell(options)),
        Measured(name="stacks-pair", run=lambda options, _: stacks_cell(options)),
    ]


def summarise(records: Records, names: list[str], failed: list[str], *, quick: bool) -> None:
    """Print every claim beside its bar, and the last line."""
    claims = [claim for name, record in records.items() for claim in claims_of(name, record)]
    for claim in claims:
        verdict = "ok  " if claim.holds else "MISS"
        print(f"{verdict} {claim.cell:12} {claim.what:70} {claim.value:9.4g} {claim.sense} {claim.bar:.4g}")
    result = {
        "benchmark": "seeds",
        "device": detect("cpu").label,
        "quick": quick,
        "holds": all(claim.holds for claim in claims) and not failed if claims or failed else None,
        "claims": [asdict(claim) | {"holds": claim.holds} for claim in claims],
        "failed": failed,
        "not_run": [*(name for name in names if name not in records), *NOT_HERE],
    }
    print_result(result)


def claims_of(name: str, record: Json) -> Iterator[Claim]:
    """Yield what must hold of one cell."""
    if name == "head":
        yield Claim(
            cell=name, what="agreement at depth 1", value=record["agreement"][0], sense=">=", bar=LEAST_AGREEMENT
        )
        yield Claim(
            cell=name, what="hours of the training, stops included", value=record["hours"], sense="<=", bar=MOST_HOURS
        )
    if name == "gpu-curves":
        shares = [len(row["rules"]) / (len(row["rules"]) + len(row["not_priced"])) for row in record["rows"]]
        yield Claim(cell=name, what="least share of published rules priced", value=min(shares), sense=">=", bar=1.0)
    if name == "stacks-pair":
        yield Claim(
            cell=name, what="chosen stack over the best enumerated", value=record["chosen_over_best"], sense=">=",
            bar=0.98,
        )  # fmt: skip
        yield Claim(
            cell=name, what="optimum by search over the formula's of all", value=record["search_over_enumeration"],
            sense="<=", bar=1.0 + 1e-9,
        )  # fmt: skip
        yield Claim(
            cell=name, what="formula off the replay, median", value=record["formula_error_median"], sense="<=", bar=0.1
        )


def _head(place: Path, options: Options, _: Records) -> Json:
    return head_cell(place, options)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    raise SystemExit(main())
