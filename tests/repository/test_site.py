"""The site: its contents list every page, generated pages are as the code says, commands parse, errors exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from spectune.cli import main

from ..site_pages import PAGES, read
from .test_docs import DOCUMENTS, documented

ROOT = Path(__file__).parents[2]
PACKAGE = ("cli", "db", "engines", "planner", "profiler", "report", "runtime", "service", "training", "tuning")


def pages_of(nav: Any) -> Iterator[str]:
    """Yield the pages of a part of the contents."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_of(part)


def test_every_page_is_in_the_contents_once() -> None:
    listed = list(pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    there = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert len(listed) == len(set(listed))
    assert there == set(listed)


def test_the_site_fetches_no_fonts() -> None:
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text())["theme"]["font"] is False


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_as_the_code_says(name: str) -> None:
    assert read(name) == PAGES[name](), "run: python -m tests.site_pages --write"


def test_every_command_on_a_page_parses() -> None:
    shown = [[word for word in words if word != "[options]"] for words in documented()]
    assert len(shown) > 100
    assert [fault for words in shown if (fault := fault_of(main, words))] == []


def fault_of(command: click.Command, words: list[str]) -> str:
    """Return why click would not parse the words; "" where it does. Values are not looked at."""
    context = click.Context(command, info_name="spectune", help_option_names=["-h", "--help"])
    try:
        _, rest, _ = command.make_parser(context).parse_args(list(words))
    except click.UsageError as error:
        return f"{words}: {error.format_message()}"
    if isinstance(command, click.Group) and rest:
        below = command.get_command(context, rest[0])
        return fault_of(below, rest[1:]) if below else f"{words}: no command {rest[0]}"
    return f"{words}: {rest} is too much" if rest else ""


@pytest.mark.parametrize("words", [["plan", "--slow", "3"], ["plan", "--batch"], ["plans"], ["list", "4"]])
def test_a_command_that_does_not_parse_is_noticed(words: list[str]) -> None:
    assert fault_of(main, words)


@cache
def sentences() -> str:
    """Return all texts of the package, a line each, with "..." for what is filled in."""
    files = [path for folder in PACKAGE for path in sorted((ROOT / folder).rglob("*.py"))] + [ROOT / "errors.py"]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    return "\n".join(text for node in nodes if (text := text_of(node)))


def text_of(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "..." for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def errors_shown() -> list[str]:
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    return re.findall(r"(?m)^\| `([^`]+)` \|", text)


@pytest.mark.parametrize("shown", errors_shown())
def test_an_error_of_the_troubleshooting_page_is_one_of_ours(shown: str) -> None:
    parts = [re.escape(part) for part in re.split(r"\.\.\.", shown)]
    assert re.search(r".*".join(parts), sentences()), shown


def test_the_documents_are_all_pages() -> None:
    assert {f"docs/{path.relative_to(ROOT / 'docs').as_posix()}" for path in (ROOT / "docs").rglob("*.md")} <= {
        *DOCUMENTS
    }


def test_ci_builds_the_site_by_the_version_of_the_extra() -> None:
    (extra,) = re.findall(r"docs = \[\"(zensical==[\d.]+)\"\]", (ROOT / "pyproject.toml").read_text())
    assert f"--quiet {extra} &&" in (ROOT / ".ci/run").read_text()
