"""What is printed of several devices: results on stdout, the rest on stderr; and the exit code tells of failures."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.cli.command import Args, command
from spectune.cli.fleet import _print_outcome, print_turns, profile_fleet, ray_address
from spectune.cli.group import LazyGroup
from spectune.cli.report import Settings
from spectune.demo.story import family_folder
from spectune.profiler.device import detect_all
from spectune.profiler.prompts import Prompt
from spectune.tuning.fleet.fleet import FleetJob, Outcome
from spectune.tuning.fleet.nodes import Node
from spectune.tuning.fleet.turns import DeviceTurn
from spectune.tuning.request import Models, ProfileRequest


@dataclass(frozen=True, kw_only=True)
class EchoArgs(Args):
    ray_address: str | None = ray_address


@command(EchoArgs)
def echo(args: EchoArgs) -> None:
    click.echo(repr(args.ray_address))


@pytest.mark.parametrize(
    ("typed", "address"), [([], None), (["--ray"], "auto"), (["--ray", "10.0.0.1:6379"], "10.0.0.1:6379")]
)
def test_the_address_of_a_cluster_may_be_left_out(typed: list[str], address: str | None) -> None:
    assert CliRunner().invoke(echo, typed).output == f"{address!r}\n"


def profiled_everywhere(folder: Path, *, as_json: bool) -> Result:
    """Profile a model that is nowhere on every device of this machine."""
    prompts = [Prompt(text="a"), Prompt(text="b")]
    request = ProfileRequest(models=Models(target=Path("nowhere")), prompts=prompts, batches=(1,), device="all")
    job = FleetJob(request=request, facts=lambda done, url: {}, store_url=str(folder / "store.db"))
    group = LazyGroup(groups={})

    @group.command()
    def everywhere() -> None:
        profile_fleet(Settings(), job, None, as_json=as_json)

    return CliRunner().invoke(group, ["everywhere"])


def test_devices_that_failed_are_counted_and_named_and_the_exit_code_is_1(tmp_path: Path) -> None:
    result = profiled_everywhere(tmp_path, as_json=False)
    count = len(detect_all())
    assert (result.exit_code, result.stdout) == (1, "")
    assert "cpu: no model folder at nowhere" in result.stderr
    assert f"Error: {count} of {count} devices could not be profiled" in result.stderr


def test_a_device_that_was_not_measured_anew_says_since_when(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Outcome(where="cpu", facts={"done_before": "2026-11-01T10:00:00+00:00"})
    _print_outcome(Settings(), outcome, as_json=True)
    told = capsys.readouterr().err
    assert told.startswith("cpu: measured 2026-11-01T10:00:00+00:00 ") and "--fresh" in told


def test_as_json_every_device_is_an_object_on_its_line(tmp_path: Path) -> None:
    lines = profiled_everywhere(tmp_path, as_json=True).stdout.splitlines()
    assert len(lines) == len(detect_all())
    assert json.loads(lines[-1])["where"] == "cpu"
    assert json.loads(lines[-1])["failure"].startswith("no model folder at nowhere")


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        (["--ray", "no such place"], "cannot join a Ray cluster at 'no such place'"),
        (["--ray", "--device", "cpu"], "got --device cpu; leave it out"),
    ],
)
def test_a_cluster_that_cannot_be_profiled_is_refused_in_one_line(typed: list[str], complaint: str) -> None:
    pytest.importorskip("ray")
    prompts = str(family_folder() / "calibration.jsonl")
    result = CliRunner().invoke(main, ["profile", "--target", "./nowhere", "--prompts", prompts, *typed])
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.fullmatch(f"Error: .*{re.escape(complaint)}.*\n", result.stderr)


def test_a_dry_run_lists_the_node_of_each_kind(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [Node(id=name, host="host", address="10.0.0.1", cpus=1, gpus=1, kind="H200") for name in "ab"]
    print_turns([DeviceTurn(kind="H200", nodes=tuple(nodes))], as_json=True)
    (turn,) = json.loads(capsys.readouterr().out)["turns"]
    assert turn == {"kind": "H200", "nodes": ["H200 on host (node a)", "H200 on host (node b)"]}
