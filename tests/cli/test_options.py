"""Options as people type them: what is read, and what is refused with exit code 2 before anything runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from spectune.cli import main, options
from spectune.cli.command import Args, command
from spectune.runtime.models.config_file import OWN
from spectune.runtime.models.loading import DTYPES
from spectune.runtime.models.pivots import KIND

TARGET = ("--target", "./nowhere")  # a path for certain, no id


@dataclass(frozen=True, kw_only=True)
class EchoArgs(Args):
    drafters: dict[str, str] = options.drafters
    device: str = options.device
    batches: tuple[int, ...] = options.batches


@command(EchoArgs)
def echo(args: EchoArgs) -> None:
    click.echo(repr((args.drafters, args.device, args.batches)))


def typed(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_numbers_are_read_in_their_order_and_once() -> None:
    assert CliRunner().invoke(echo, ["--batch", "8, 1,8"]).output == "({}, 'auto', (8, 1))\n"


def test_a_drafter_s_path_may_hold_an_equals_sign() -> None:
    shown = CliRunner().invoke(echo, ["--drafter", "small=a=b"]).output
    assert shown == repr(({"small": "a=b"}, "auto", ())) + "\n"


@pytest.mark.parametrize("text", ["small", "=path", "small=", "a=b=", ""])
def test_a_drafter_without_name_or_path_is_a_usage_error(text: str) -> None:
    result = typed("profile", *TARGET, "--drafter", text) if text != "a=b=" else typed("profile", "--drafter", "x")
    assert result.exit_code == 2


def test_a_drafter_s_name_stands_once() -> None:
    result = typed("profile", *TARGET, "--drafter", "a=x", "--drafter", "a=y")
    assert result.exit_code == 2
    assert "'a' occurs twice" in result.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        ("profile", "--batch", "0"),
        ("profile", "--batch", "1,two"),
        ("profile", "--batch", "1,,2"),
        ("profile", "--context", "-4"),
        ("profile", "--device", "tpu"),
        ("profile", "--dtype", "int3"),
        ("profile", "--budget", "0"),
        ("profile", "--temperature", "-1"),
        ("profile", "--tokens", "8"),
        ("profile", "--latency-only", "verify", "--dry-run"),
        ("profile", "--latency-only", "verify", "--ray", "auto"),
        ("profile", "--estimate", "H200", "--dry-run"),
        ("profile", "--config-only", "config.json"),
        ("plan", "--device", "all"),
        ("plan", "--nonsense"),
        ("run", "--prompt", "x", "--max-new-tokens", "none"),
        ("validate", "--rounds", "0"),
        ("validate", "--fail-above", "much"),
    ],
)
def test_a_wrong_value_is_a_usage_error(wrong: tuple[str, ...]) -> None:
    command, *rest = wrong
    result = typed(command, *TARGET, *rest)
    assert result.exit_code == 2
    assert result.stdout == ""


@pytest.mark.parametrize(
    "ignored",
    [
        ("--prompts", "p.txt"),
        ("--workload", "chat"),
        ("--temperature", "0.8"),
        ("--record", "quick"),
        ("--max-new-tokens", "64"),
        ("--max-prompt-tokens", "32"),
    ],
)
@pytest.mark.parametrize("way", [("--latency-only", "verify"), ("--tensor-parallel", "2"), ("--estimate", "H200")])
def test_what_a_profile_without_texts_would_ignore_is_refused(way: tuple[str, ...], ignored: tuple[str, ...]) -> None:
    for target in (TARGET, ("--config-only", "config.json")):
        result = typed("profile", *target, *way, *ignored)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{ignored[0]} is " in result.stderr


@pytest.mark.parametrize(
    "ignored",
    [("--device", "cpu"), ("--budget", "5"), ("--held-out", "3"), ("--regime", "eager"), ("--seed", "1"), ("--fresh",)],
)
def test_what_an_estimate_would_ignore_is_refused(ignored: tuple[str, ...]) -> None:
    result = typed("profile", *TARGET, "--estimate", "H200", *ignored)
    assert result.exit_code == 2
    assert f"{ignored[0]} is for a measurement" in result.stderr


@pytest.mark.parametrize("ignored", [("--drafter", "small=nowhere"), ("--workload", "chat"), ("--allow-lossy",)])
def test_what_plain_decoding_would_ignore_is_refused(ignored: tuple[str, ...]) -> None:
    result = typed("run", *TARGET, "--prompt", "x", "--plan", "none", *ignored)
    assert result.exit_code == 2
    assert f"{ignored[0]} is about a plan, and --plan none follows none" in result.stderr


@pytest.mark.parametrize("ignored", [("--workload", "chat"), ("--temperature", "0.8")])
def test_what_a_named_plan_says_itself_is_refused(ignored: tuple[str, ...]) -> None:
    result = typed("validate", *TARGET, "--plan", "3", *ignored)
    assert result.exit_code == 2
    assert f"{ignored[0]} chooses a plan, and --plan names one" in result.stderr


@pytest.mark.parametrize("ignored", [("--batch", "4"), ("--context", "512")])
def test_a_cell_without_its_plan_is_refused(ignored: tuple[str, ...]) -> None:
    result = typed("import", "metrics.txt", "--format", "vllm-metrics", *ignored)
    assert result.exit_code == 2
    assert f"{ignored[0]} says which of a plan's cells ran; add --plan ID" in result.stderr


def test_what_no_way_of_lossy_decoding_would_ask_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({OWN: {"kind": KIND}}))
    asked = ("lossy", *TARGET, "--drafter", "small=./nowhere", "--prompts", "p.txt")
    windows = typed(*asked, "--setting", "10,pad,0.5", "--window-counts-itself")
    assert windows.exit_code == 2 and "every --setting is PAD's" in windows.stderr
    pivots = typed(*asked, "--setting", "10,6,0.3", "--drafter", f"pivots={tmp_path}")
    assert pivots.exit_code == 2 and "no --setting uses it" in pivots.stderr


@pytest.mark.parametrize("wrong", [("show", "model"), ("show", "--id", "0"), ("list", "--what"), ("run",)])
def test_a_wrong_word_is_a_usage_error(wrong: tuple[str, ...]) -> None:
    assert typed(*wrong).exit_code == 2


def test_the_number_formats_offered_are_those_that_load() -> None:
    assert set(options.DTYPES) == set(DTYPES)
