"""What every command has in common: exit codes, one line per error, the options before the name."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import click
import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.cli.group import LazyGroup
from spectune.cli.report import Settings
from spectune.errors import PlanError

SPECTUNE = [sys.executable, "-m", "spectune"]


def run(failure: BaseException | None, *options: str) -> Result:
    """Run a command that prints its settings, then fails so, behind the group's own options."""

    def body(settings: Settings) -> None:
        click.echo(settings)
        if failure is not None:
            raise failure

    group = LazyGroup(groups={}, params=main.params, callback=main.callback)
    group.add_command(click.Command("work", callback=click.pass_obj(body)))
    return CliRunner().invoke(group, [*options, "work"])


def test_our_errors_are_one_line_on_stderr_and_exit_1() -> None:
    result = run(PlanError("the plan\n  is for another device; run: spectune plan"))
    assert result.exit_code == 1
    assert result.stderr == "Error: the plan is for another device; run: spectune plan\n"


def test_verbose_shows_where_an_error_came_from() -> None:
    result = run(PlanError("no plan"), "--verbose")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("\nError: no plan\n")


def test_a_bug_keeps_its_traceback() -> None:
    assert isinstance(run(ZeroDivisionError("a bug")).exception, ZeroDivisionError)


def test_ctrl_c_exits_130() -> None:
    result = run(KeyboardInterrupt())
    assert (result.exit_code, result.stderr) == (130, "Interrupted.\n")


@pytest.mark.parametrize(
    ("options", "settings"),
    [([], Settings()), (["-q"], Settings(quiet=True)), (["-v"], Settings(verbose=True))],
)
def test_commands_receive_the_settings(options: list[str], settings: Settings) -> None:
    assert run(None, *options).stdout == f"{settings}\n"


def test_quiet_and_verbose_exclude_each_other() -> None:
    result = run(None, "-q", "-v")
    assert result.exit_code == 2
    assert "--quiet and --verbose exclude each other" in result.stderr


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"], ["-q"]])
def test_usage_errors_exit_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: ")


def test_the_version_is_printed() -> None:
    done = subprocess.run([*SPECTUNE, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == version("spectune")


def test_a_closed_pipe_is_silent() -> None:
    process = subprocess.Popen([*SPECTUNE, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, stderr = process.communicate(timeout=60)
    assert stderr == b""
