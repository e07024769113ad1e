"""Documents and help cannot rot: every command is described, with an example that parses."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from spectune.cli import main
from spectune.cli.commands import COMMANDS

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    *("README.md", "CONTRIBUTING.md", "demo/models/README.md"),
    *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))),
)


def examples(text: str) -> list[list[str]]:
    """Return the words of every `spectune ...` line of a text, less the program's name and what follows a pipe."""
    lines = re.findall(r"(?:^|&& )[ $]*spectune (.+)", text.replace("\\\n", " "), re.MULTILINE)
    return [shlex.split(re.split(r" (?:[|<>]|&&) ", rest)[0], comments=True) for rest in lines]


def documented() -> list[list[str]]:
    """Return every example in a fenced or an indented block of the documents."""
    texts = [(ROOT / name).read_text() for name in DOCUMENTS]
    return [
        words
        for text in texts
        for block in re.findall(r"```.*?\n(.*?)```|((?:^ {4}[^\n]*\n)+)", text, re.DOTALL | re.MULTILINE)
        for words in examples("\n".join(block))
    ]


def help_of(name: str) -> str:
    return CliRunner().invoke(main, [name, "--help"], terminal_width=120).output


def commands_of(name: str) -> list[click.Command]:
    """Return a command, or a group and the commands in it."""
    command = COMMANDS[name].load()
    return [command, *(command.commands.values() if isinstance(command, click.Group) else ())]


def options_for(words: list[str]) -> set[str]:
    """Return the options that what is typed may have: of a group those of the command that is named alone."""
    command, *below = commands_of(words[0])
    called = [command, *(one for one in below if [one.name] == words[1:2])]
    return {"--help", *(option for one in called for p in one.params for option in (*p.opts, *p.secondary_opts))}


@pytest.mark.parametrize("name", ["README.md", "docs/explain/lossless.md"])
def test_bf16_is_promised_with_its_conditions(name: str) -> None:
    paragraphs = [" ".join(one.split()) for one in (ROOT / name).read_text().split("\n\n")]
    told = next(one for one in paragraphs if "bf16" in one and "CPU" in one)
    assert "multiple of 16" in told and "Qwen3" in told and "GPU" in told


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented_with_an_example(name: str) -> None:
    assert [words for words in documented() if words[0] == name]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_s_help_shows_an_example_on_its_own_line(name: str) -> None:
    assert [words for words in examples(help_of(name)) if words[0] == name]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_s_line_is_the_first_of_the_command_s_docstring(name: str) -> None:
    text = COMMANDS[name].load().help
    assert text is not None
    assert text.splitlines()[0] == COMMANDS[name].help


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_s_line_is_short_and_a_sentence(name: str) -> None:
    assert len(COMMANDS[name].help) < 45
    assert COMMANDS[name].help.endswith(".")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_named_as_in_the_table(name: str) -> None:
    assert COMMANDS[name].load().name == name


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_use_options_that_exist(name: str) -> None:
    shown = [words for words in [*documented(), *examples(help_of(name))] if words[0] == name]
    for words in shown:
        own = words[: words.index("--")] if "--" in words else words  # what follows is another program's
        used = {word.split("=")[0] for word in own[1:] if re.match("--?[a-z]", word)}
        assert used <= options_for(words), words


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_help_text(name: str) -> None:
    options = [p for one in commands_of(name) for p in one.params if isinstance(p, click.Option)]
    assert not [option.name for option in options if not option.help]


def test_documents_name_no_command_that_does_not_exist() -> None:
    assert {words[0] for words in documented() if not words[0].startswith("-")} <= set(COMMANDS)


def anchors(text: str) -> set[str]:
    """Return what a link behind a # may name: headings as GitHub writes them."""
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"(?m)^#+ (.+)", text)}


@pytest.mark.parametrize("name", [*DOCUMENTS, "CHANGELOG.md"])
def test_links_between_documents_lead_somewhere(name: str) -> None:
    document = ROOT / name
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", document.read_text()):
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), path
        assert not anchor or anchor in anchors(target.read_text()), f"{path}#{anchor}"


def test_every_test_that_ci_names_is_there() -> None:
    named = re.findall(r"\b(tests/[\w/]+\.py)(?:::(\w+))?", (ROOT / ".ci/run").read_text())
    assert len(named) > 5
    assert not [f"{file}::{name}" for file, name in named if not defines(ROOT / file, name)]


def defines(file: Path, name: str) -> bool:
    """Return whether a file is there and has a function of this name, if one is named."""
    return file.is_file() and f"def {name}" in file.read_text()
