"""Goldens of the command line: every help text, and the keys of what `--json` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import pytest
from click.testing import CliRunner

from spectune.cli import main
from spectune.engines.table import ENGINES

from .golden_inputs import FAMILY, STORED, stored

WIDTH = 100  # columns
MODELS = (
    *("--target", str(FAMILY / "target")),
    *(word for name in ("small", "eagle3") for word in ("--drafter", f"{name}={FAMILY / name}")),
)
COUNTERS = """\
vllm:spec_decode_num_drafts_total 1000
vllm:spec_decode_num_draft_tokens_total 3000
vllm:spec_decode_num_accepted_tokens_total 1300
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 700
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 400
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 200
"""


def help_golden() -> dict[str, str]:
    """Return the help of every command, in the order of the table."""
    return {"help.txt": "\n".join(help_of(words) for words in commands(main, ()))}


def commands(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the words of a command and of all below it."""
    yield words
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None, name
            yield from commands(below, (*words, name))


def help_of(words: Sequence[str]) -> str:
    """Return a help text below the line that asks for it."""
    typed = [*words, "--help"]
    result = CliRunner().invoke(main, typed, prog_name="spectune", terminal_width=WIDTH)
    assert result.exit_code == 0, result.output
    return f"$ spectune {' '.join(typed)}\n{result.stdout}"


def keys_golden() -> dict[str, str]:
    """Return the keys that commands print with `--json`, each where it stands, in their order."""
    with TemporaryDirectory() as folder, stored() as store, pytest.MonkeyPatch.context() as patch:
        (device,) = store.devices()
        patch.setattr("spectune.profiler.device.detect", lambda wanted: device)  # as on the machine that it is of
        patch.setenv("SPECTUNE_STORE", store.url)
        patch.setenv("SPECTUNE_CACHE", folder)
        patch.chdir(folder)
        Path("metrics.txt").write_text(COUNTERS, encoding="utf-8")
        found = {name: printed(*words) for name, words in asked().items()}
    return {"json_keys.txt": "\n".join(f"{name}\n{''.join(lines(value))}" for name, value in found.items())}


def asked() -> dict[str, tuple[str, ...]]:
    """Return what is typed, by the heading of its keys."""
    target = ("--target", str(FAMILY / "target"), "--dtype", "float32", "--batch", "1", "--context", "40")
    exports = {
        f"export --engine {name}": ("export", "--engine", name, "--plan", str(STORED / "plan.json"), *MODELS)
        for name in ENGINES
    }
    return {
        "list": ("list",),
        "show plan": ("show", "plan", "1"),
        "show plan FILE": ("show", "plan", str(STORED / "plan.json")),
        "show surface": ("show", "surface"),
        "show trace": ("show", "trace"),
        "plan": ("plan", *target, "--trials", "0", "--jobs", "1"),
        "advise": ("advise", "metrics.txt", "--tpot", "0=7.1", "--tpot", "3=4.9"),
        **exports,
    }


def printed(*words: str) -> Any:
    """Return what a command prints as JSON."""
    result = CliRunner().invoke(main, [*words, "--json"])
    assert result.exit_code == 0, f"{words}: {result.output}"
    return json.loads(result.stdout)


def lines(value: Any) -> Iterator[str]:
    """Yield a line per key of a JSON value, with the kinds of values that it has."""
    kinds: dict[str, set[str]] = {}
    for place, kind in places(value):
        kinds.setdefault(place, set()).add(kind)
    for place, own in kinds.items():
        yield f"  {place}: {' or '.join(sorted(own))}\n"


def places(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield where each key of a JSON value stands, and the kind of its value; entries of a list stand in one place."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            inner = f"{place}.{name}" if place else name
            yield inner, kind_of(each)
            yield from places(each, inner)
    elif isinstance(value, list):
        for each in value:
            if not isinstance(each, Mapping):
                yield f"{place}[]", kind_of(each)
            yield from places(each, f"{place}[]")


def kind_of(value: Any) -> str:
    """Return what JSON calls a value."""
    names = {bool: "true or false", int: "number", float: "number", str: "text", list: "list", dict: "object"}
    return "null" if value is None else names[type(value)]
