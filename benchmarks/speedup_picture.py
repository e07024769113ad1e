"""Draw docs/speedup.svg: speed-up over batch of the plan and of published defaults on a pair of real models.

    python benchmarks/speedup_picture.py

A panel per pair in benchmarks/results/real, a point per batch that was raced. All lines of a batch are of one run:
its ways take turns on the same texts.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PICTURE = ROOT / "benchmarks" / "results" / "real", ROOT / "docs" / "speedup.svg"
PAIRS = {"pair-q4": "Qwen2.5 1.5B and 0.5B, Q4_K_M", "pair": "Qwen2.5 1.5B and 0.5B, bf16"}
CELL = re.compile(r"(?P<pair>.+)-(?P<batch>\d+)$")
PLAN, PLAIN = "the plan", "plain decoding"
NAMED = 3  # names of one rule in the legend


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair.

    Attributes:
        lines: name to batch to speed over plain decoding; the plan first, then the fastest rule first.
    """

    pair: str
    title: str
    lines: dict[str, dict[int, float]] = field(default_factory=dict)

    @property
    def batches(self) -> list[int]:
        """Batches that were raced."""
        return sorted(self.lines[PLAN])


def main() -> None:
    """Draw it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("-o", "--output", type=Path, default=PICTURE)
    asked = parser.parse_args()
    found = panels([json.loads(file.read_text()) for file in sorted(asked.results.glob("*.json"))])
    if not found:
        raise SystemExit(f"{asked.results} holds no race of {' or '.join(PAIRS)}; measure one with benchmarks/real.py")
    draw(found, asked.output)
    print(f"wrote {asked.output}")


def panels(records: Sequence[dict[str, Any]]) -> list[Panel]:
    """Return a panel for every pair with a race beside published defaults; of several runs of a cell the newest."""
    found = []
    for pair, title in PAIRS.items():
        raced: dict[int, dict[str, float]] = {}
        for record in sorted(records, key=lambda record: str(record["measured_at"])):
            cell = CELL.fullmatch(record["cell"])
            if cell and cell["pair"] == pair and record.get("with_rules"):
                raced[int(cell["batch"])] = speedups(record["with_rules"])
        if raced:
            found.append(Panel(pair=pair, title=title, lines=_lines(raced)))
    return found


def speedups(raced: dict[str, Any]) -> dict[str, float]:
    """Return speeds over plain decoding by name; rules that are one way of decoding are joined."""
    rules = {rule["name"]: rule for rule in raced["rules"]}
    plain = float(rules.pop(PLAIN)["measured_tokens_per_s"])
    ways: dict[str, list[str]] = {}
    for name, rule in rules.items():
        ways.setdefault(rule["way"], []).append(name)
    found = {PLAN: float(raced["measured_tokens_per_s"]) / plain}
    for names in ways.values():
        name = ", ".join(names[:NAMED]) + (f", +{len(names) - NAMED}" if len(names) > NAMED else "")
        found[name] = float(rules[names[0]]["measured_tokens_per_s"]) / plain
    return found


def _lines(raced: dict[int, dict[str, float]]) -> dict[str, dict[int, float]]:
    names = dict.fromkeys(name for speeds in raced.values() for name in speeds)
    lines = {name: {b: raced[b][name] for b in sorted(raced) if name in raced[b]} for name in names}
    return dict(sorted(lines.items(), key=lambda line: (line[0] != PLAN, -max(line[1].values()))))


def draw(found: Sequence[Panel], output: Path) -> None:
    """Write the picture; its description holds the numbers."""
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "speedup", "font.size": 9}
    figure = Figure(figsize=(8.5, 4.2 * len(found)), layout="constrained")
    for axes, panel in zip(figure.subplots(len(found), squeeze=False)[:, 0], found, strict=True):
        _draw(axes, panel)
    figure.savefig(output, format="svg", metadata={"Date": None, "Description": numbers(found)})


def numbers(found: Sequence[Panel]) -> str:
    """Return what is drawn as JSON text."""
    return json.dumps({panel.pair: {name: _rounded(line) for name, line in panel.lines.items()} for panel in found})


def _rounded(line: dict[int, float]) -> dict[int, float]:
    return {batch: round(speed, 3) for batch, speed in line.items()}


def _draw(axes: Axes, panel: Panel) -> None:
    axes.axhline(1.0, color="0.3", linestyle="--", linewidth=1.2, label=PLAIN)
    colours = matplotlib.colormaps["tab20"].colors  # type: ignore[attr-defined]
    for place, (name, line) in enumerate(panel.lines.items()):
        style: dict[str, Any] = {"color": "black", "linewidth": 2.6, "markersize": 7, "zorder": 5}
        if name != PLAN:
            style = {"color": colours[(place - 1) % len(colours)], "linewidth": 1.0, "markersize": 4, "alpha": 0.9}
        axes.plot(list(line), list(line.values()), marker="o", label=name, **style)
    axes.set_xscale("log", base=2)
    axes.set_xticks(panel.batches, [str(batch) for batch in panel.batches])
    axes.minorticks_off()
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("batch (sequences decoded together)")
    axes.set_ylabel("times plain decoding")
    axes.set_title(f"{panel.title}: measured speed-up", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8)


if __name__ == "__main__":
    main()
