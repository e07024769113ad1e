"""Write docs/results.md from benchmarks/results: a table per benchmark, the newest run of each machine.

    python benchmarks/results_page.py

A result file is named after its benchmark and machine, and a newer run takes its place; git keeps the older ones.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results_tables import SECTIONS, Section  # isort: skip

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "results.md"
MACHINE = re.compile(r"-(amd-epyc.*|intel-.*|h\d+)$")
MACHINES = {
    "amd-epyc-2-cores": "EPYC, 2 cores",
    "amd-epyc-zen3-2-cores-2-threads": "EPYC Zen 3, 2 cores",
    "amd-epyc-zen4-2-cores-2-threads": "EPYC Zen 4, 2 cores",
    "amd-epyc-zen5-2-cores-2-threads": "EPYC Zen 5, 2 cores",
    "amd-epyc-zen3-2-cores": "EPYC Zen 3, 2 cores",
    "amd-epyc-zen4-2-cores": "EPYC Zen 4, 2 cores",
    "amd-epyc-zen5-2-cores": "EPYC Zen 5, 2 cores",
    "intel-2-cores": "Xeon with AMX, 2 cores",
    "intel-r-xeon-r-processor-cpu-2-cores-2-threads": "Xeon with AMX, 2 cores",
    "h100": "H100",
    "h200": "H200",
}
NUMBER_ONLY = re.compile(r"[-+]?[\d,.]+( %| ms| x)?|")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One result file."""

    benchmark: str  # the file's name without its machine
    machine: str
    content: Json

    @property
    def kind(self) -> str:
        """Which script measured it."""
        return str(self.content.get("bench") or ("real" if "cell" in self.content else ""))

    @property
    def run(self) -> tuple[str, str]:
        """When it was measured and by which code."""
        return str(self.content["measured_at"])[:10], str(self.content["commit"])


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(read_records(RESULTS)), encoding="utf-8")
    print(f"wrote {PAGE}")


def read_records(folder: Path) -> list[Record]:
    """Return all results, by benchmark and machine; of several runs of one the newest."""
    newest: dict[tuple[str, str], Record] = {}
    for file in sorted(folder.rglob("*.json")):
        found = MACHINE.search(file.stem)
        machine = found[1] if found else ""
        name = file.stem.removesuffix(f"-{machine}")
        record = Record(benchmark=name, machine=MACHINES.get(machine, machine), content=json.loads(file.read_text()))
        known = newest.get((name, record.machine))
        if known is None or known.content["measured_at"] < record.content["measured_at"]:
            newest[name, record.machine] = record
    return list(newest.values())


def page(records: list[Record]) -> str:
    """Return the page."""
    parts = [HEAD]
    parts += [text for section in SECTIONS if (text := _section(section, records))]
    return "\n".join([*parts, _claims(records), _missed(records)])


def _section(section: Section, records: list[Record]) -> str:
    own = [record for record in records if record.kind == section.kind]
    rows = [(record.machine, *row, *record.run) for record in own for row in section.rows(record.content)]
    if not rows:
        return ""
    table = _table(("machine", *section.columns, "measured", "commit"), rows)
    return f"## {section.title}\n\n`{section.command}`: {section.about}\n\n{table}"


def _table(columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    texts = [[_text(value) for value in row] for row in rows]
    numeric = [all(NUMBER_ONLY.fullmatch(row[place]) for row in texts) for place in range(len(columns))]
    head = f"| {' | '.join(columns)} |\n|{'|'.join('--:' if is_number else '---' for is_number in numeric)}|"
    return "\n".join([head, *(f"| {' | '.join(row)} |" for row in texts), ""])


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 20 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")


def _checks(content: Json) -> dict[str, bool]:
    """Return every claim of a result and whether it held."""
    found = {name: bool(holds) for name, holds in content.get("checks", {}).items()}
    for store, each in content.get("stores", {}).items():
        found |= {f"{store}: {name}": bool(holds) for name, holds in each["checks"].items()}
    return found


def _claims(records: list[Record]) -> str:
    rows: list[tuple[object, ...]] = []
    for record in records:
        checks, holds = _checks(record.content), record.content.get("holds")
        if checks:
            held = f"{sum(checks.values())} of {len(checks)}"
        else:
            held = "" if holds is None else "all" if holds else "**not all**"
        rows.append((record.benchmark, record.machine, held, *record.run))
    table = _table(("benchmark", "machine", "claims that held", "measured", "commit"), rows)
    return f"## All runs\n\nA benchmark checks claims; its file says `holds`. Empty: it makes none.\n\n{table}"


def _missed(records: list[Record]) -> str:
    rows: list[tuple[object, ...]] = [
        (record.benchmark, record.machine, name)
        for record in records
        for name, holds in _checks(record.content).items()
        if not holds
    ]
    return f"## Claims that were missed\n\n{_table(('benchmark', 'machine', 'claim'), rows)}" if rows else ""


HEAD = """# Results

The newest run of every benchmark on every machine, written by `python benchmarks/results_page.py` from
[benchmarks/results](../benchmarks/results). Git keeps earlier runs. `commit` is the code that ran. Where a run did not
note it, it is the commit that keeps the file. Speeds are tokens/s of all sequences together. CPUs are shared virtual
machines: their pace changes from minute to minute. Models are the demo's ([their card](../demo/models/README.md))
unless a table says otherwise.
"""

if __name__ == "__main__":
    main()
