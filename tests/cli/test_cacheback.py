"""`spectune train cacheback` counts a table, and `spectune plan --table` reads it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.demo.story import family_folder
from spectune.errors import PlanError
from spectune.planner.records.frozen_table import frozen_table
from spectune.runtime.models.loading import load_tokenizer
from spectune.tuning.documents import read_table, write_table

TARGET = family_folder() / "target"
TEXTS = ("def main():\n    return 0\n", "def other():\n    return 1\n")


def counted(folder: Path, *options: str) -> Result:
    data = folder / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    given = ["--target", str(TARGET), "--data", str(data), "-o", str(folder / "table.json")]
    return CliRunner().invoke(main, ["train", "cacheback", *given, *options], catch_exceptions=False)


def test_the_file_holds_what_was_counted_in_the_texts(tmp_path: Path) -> None:
    result = counted(tmp_path, "--leaders", "5", "--followers", "2", "--follower-tokens", "2", "--json")
    tokenizer = load_tokenizer(str(TARGET))
    ids = [token for text in TEXTS for token in [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]]
    expected = frozen_table(np.array(ids), leader_tokens=1, follower_tokens=2, leaders=5, followers=2)
    assert read_table(tmp_path / "table.json") == expected
    assert json.loads(result.stdout)["tokens"] == len(ids)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    table = frozen_table(np.array([1, 2, 3, 1, 2]), leader_tokens=1, follower_tokens=1, leaders=2, followers=2)
    write_table(tmp_path / "table.json", table)
    assert read_table(tmp_path / "table.json") == table


@pytest.mark.parametrize("text", ["", "{}", '{"leader_tokens": 1}', "[]"])
def test_a_file_that_is_no_table_is_refused_and_told_how_to_make_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "table.json").write_text(text)
    with pytest.raises(PlanError, match="spectune train cacheback"):
        read_table(tmp_path / "table.json")


def test_a_plan_with_a_table_that_is_not_there_is_refused(tmp_path: Path) -> None:
    lacking = ["plan", "--target", str(TARGET), "--store", str(tmp_path / "s.db"), "--table", str(tmp_path / "no.json")]
    result = CliRunner().invoke(main, lacking)
    assert result.exit_code == 1 and "no.json" in result.output
