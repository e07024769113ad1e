"""The page of results and the picture are what their scripts make of the committed files."""

from __future__ import annotations

import importlib
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spectune.profiler.cpu import read_cpu

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
FILES = sorted(RESULTS.rglob("*.json"))


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:  # scripts lie in no package
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module(name)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_result_says_when_and_by_which_code_it_was_measured(file: Path) -> None:
    content = json.loads(file.read_text())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", content["measured_at"])
    assert re.fullmatch(r"[0-9a-f]{7,}(-dirty)?", content["commit"])


def test_a_benchmark_has_one_file_for_each_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    records = script("results_page", monkeypatch).read_records(RESULTS)
    assert len(records) == len(FILES)
    assert not [record for record in records if re.search(r"-(second|third|before|earlier)\b", record.benchmark)]


def test_the_page_is_what_the_script_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = script("results_page", monkeypatch)
    assert (ROOT / "docs" / "results.md").read_text() == module.page(module.read_records(RESULTS))


def written(folder: Path, name: str, **content: object) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(content))


def test_the_page_shows_the_newest_run_and_missed_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = script("results_page", monkeypatch)
    rows = [{"clients": 1, "session": 1000.0, "whole": 900.0, "streamed": 800.0, "first_piece_ms": 9.0}]
    told: dict[str, Any] = {"bench": "endpoint", "rows": [{**rows[0], "same_texts": True}], "holds": False}
    checks = {"as fast as before": False, "the same texts": True}
    written(tmp_path / "old", "endpoint-h200", measured_at="2026-01-01T00:00:00+00:00", commit="aaaaaaa", **told)
    new = {"measured_at": "2026-01-02T00:00:00+00:00", "commit": "bbbbbbb", "checks": checks}
    written(tmp_path / "new", "endpoint-h200", **told, **new)
    text = module.page(module.read_records(tmp_path))
    assert "| H200 | 1 | 1,000 | 900 | 800 | 9.00 | yes | 2026-01-02 | bbbbbbb |" in text
    assert "| endpoint | H200 | 1 of 2 | 2026-01-02 | bbbbbbb |" in text
    assert "| endpoint | H200 | as fast as before |" in text
    assert "aaaaaaa" not in text


def test_the_page_names_ways_of_decoding_as_people_say_them(monkeypatch: pytest.MonkeyPatch) -> None:
    way = script("results_tables", monkeypatch).way
    assert way("suffix of m >= 1 (last), 1m+1 up to 40 by lookup") == "copy from the text, up to 40 tokens"
    assert way("TALON 24/0.03/4 by head") == way("tree of 24 nodes by head (TALON)")
    assert way("plain") == "plain decoding"
    text = (ROOT / "docs" / "results.md").read_text()
    assert not re.search(r"suffix of m|lookup of \d|\d-grams", text)


def test_a_result_is_stamped_with_the_moment_and_the_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = script("result", monkeypatch)
    result.print_result({"holds": True, "bench": "one"}, tmp_path / "one.json")
    (line,) = capsys.readouterr().out.splitlines()
    assert list(json.loads(line)) == ["bench", "measured_at", "commit", "holds"]
    assert json.loads((tmp_path / "one.json").read_text()) == json.loads(line)


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda file: file.stem)
def test_no_benchmark_prints_a_result_without_its_stamp(file: Path) -> None:
    assert not re.search(r"print\(json\.dumps\((?!stamped).*\b(result|holds)\b", file.read_text())


def race(cell: str, measured_at: str, *, plan: float, plain: float, chain: float) -> dict[str, Any]:
    rules = [
        {"name": "plain decoding", "way": "plain", "measured_tokens_per_s": plain},
        {"name": "a chain", "way": "chain of 3 by small", "measured_tokens_per_s": chain},
        {"name": "the same chain", "way": "chain of 3 by small", "measured_tokens_per_s": chain},
    ]
    raced = {"measured_tokens_per_s": plan, "rules": rules}
    return {"cell": cell, "measured_at": measured_at, "with_rules": raced}


def test_the_picture_takes_whatever_was_raced_the_newest_of_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [
        race("pair-q4-1", "2026-01-02", plan=30.0, plain=20.0, chain=25.0),
        race("pair-q4-1", "2026-01-01", plan=99.0, plain=20.0, chain=25.0),
        race("pair-q4-8", "2026-01-01", plan=60.0, plain=50.0, chain=40.0),
        {"cell": "profile-pair-q4", "measured_at": "2026-01-01"},
        race("gemma3-1", "2026-01-01", plan=60.0, plain=50.0, chain=40.0),
    ]
    (panel,) = script("speedup_picture", monkeypatch).panels(records)
    assert (panel.pair, panel.batches) == ("pair-q4", [1, 8])
    assert panel.lines == {"the plan": {1: 1.5, 8: 1.2}, "a chain, the same chain": {1: 1.25, 8: 0.8}}


def test_the_picture_is_of_the_committed_results(monkeypatch: pytest.MonkeyPatch) -> None:
    module = script("speedup_picture", monkeypatch)
    found = module.panels([json.loads(file.read_text()) for file in sorted((RESULTS / "real").glob("*.json"))])
    text = (ROOT / "docs" / "speedup.svg").read_text()
    description = re.search(r"<dc:description>(.*?)</dc:description>", text, re.DOTALL)
    assert description is not None
    assert json.loads(description[1]) == json.loads(module.numbers(found))
    drawn = Counter(re.findall(r">(the plan|plain decoding)<", text))
    assert drawn == {"the plan": len(found), "plain decoding": len(found)}


@pytest.mark.parametrize(
    ("family", "isa", "name"),
    [
        ("25", ("avx2",), "amd-epyc-zen3-2-cores-2-threads"),
        ("25", ("avx2", "avx512f"), "amd-epyc-zen4-2-cores-2-threads"),
        ("26", ("avx512f",), "amd-epyc-zen5-2-cores-2-threads"),
        ("6", ("avx512f",), "amd-epyc-cpu-2-cores-2-threads"),
    ],
)
def test_results_of_processors_of_one_name_lie_apart(
    family: str, isa: tuple[str, ...], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = replace(read_cpu(()), name="AMD EPYC", cores=2, threads=2, isa=isa)
    assert script("result", monkeypatch).machine_name(device, f"processor\t: 0\ncpu family\t: {family}\n") == name
