"""Pages of the site that are made from code: the commands and the Python names; `repository/test_site.py` compares.

python -m tests.site_pages            say which pages differ
python -m tests.site_pages --write    write these again
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import click

import spectune
from spectune.cli import main as program
from spectune.cli.commands import GROUPS
from spectune.runtime.engine.generator import Generator
from spectune.runtime.engine.scheduler import Scheduler
from spectune.runtime.engine.settings import Completion, Event, GenerationSettings
from spectune.runtime.plan_choice import Choice

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
COMMANDS_TOP = """\
# Commands

Made from the help texts by `python -m tests.site_pages --write`. `spectune COMMAND --help` prints the same.

Results go to stdout, progress to stderr. `--json` prints facts as one JSON object. Exit code 0: done. 1: one line on
stderr says what is wrong and what to do. 2: the options are wrong. 130: Ctrl-C.

| group | commands |
|---|---|
"""
PYTHON_TOP = """\
# Python

Made from the docstrings by `python -m tests.site_pages --write`. `spectune.load` is promised to stay, and of what it
returns `generate`, `generate_batch`, `stream`, `session`, `choice` and `observer`.

```python
import spectune

model = spectune.load("path/to/target")  # follows the stored plan for this device
print(model.choice.reason)
print(model.generate("def main(", max_new_tokens=64).text)
```
"""
EXAMPLES = {
    "load": 'model = spectune.load("path/to/target", store="plans.db", plan=3)',
    "generate": 'print(model.generate("def main(", max_new_tokens=64, temperature=0.8, seed=7).text)',
    "generate_batch": 'for done in model.generate_batch(["def main(", "class Node:"], slots=2):\n    print(done.text)',
    "chat": 'print(model.chat([{"role": "user", "content": "What is a KV cache?"}]).text)',
    "stream": 'for piece in model.stream("def main("):\n    print(piece, end="")',
    "stream_chat": 'for piece in model.stream_chat([{"role": "user", "content": "Hi"}]):\n    print(piece, end="")',
    "session": 'session = model.session(slots=4)\nfirst = session.submit("def main(")\n'
    "for event in session.events():\n    print(event.handle, event.piece)",
}


def commands_page() -> str:
    """Return the page of all commands, in the order of the table."""
    rows = [f"| {group} | {', '.join(f'[{name}](#{name})' for name in names)} |" for group, names in GROUPS.items()]
    sections = [section for names in GROUPS.values() for name in names for section in sections_of(name)]
    return COMMANDS_TOP + "\n".join([*rows, *sections]) + "\n"


def sections_of(name: str) -> Iterator[str]:
    """Yield the section of a command, and those of the commands below it."""
    command = program.get_command(click.Context(program, info_name="spectune"), name)
    assert command is not None, name
    yield section_of(f"spectune {name}", command)
    if isinstance(command, click.Group):
        yield from (section_of(f"spectune {name} {one}", command.commands[one]) for one in sorted(command.commands))


def section_of(typed: str, command: click.Command) -> str:
    """Return what a command does, its examples and its options."""
    context = click.Context(command, info_name=typed, help_option_names=["-h", "--help"])
    words = typed.removeprefix("spectune ")
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [f"\n{'##' if ' ' not in words else '###'} {words}\n", f"`{typed} {usage}`\n"]
    parts += [described(one) for one in inspect.cleandoc(command.help or "").split("\n\n")]
    records = [p.get_help_record(context) for p in command.params if isinstance(p, click.Option)]
    rows = [f"| `{cell(names)}` | {cell(escaped(meaning))} |" for names, meaning in filter(None, records)]
    return "\n".join([*parts, *(["| option | meaning |", "|---|---|", *rows] if rows else [])])


def described(paragraph: str) -> str:
    """Return a paragraph of a help text as Markdown; what click leaves as it is becomes a block of code."""
    if paragraph.startswith("\b"):
        return f"```\n{dedent(paragraph.partition(chr(10))[2])}\n```\n"
    return escaped(" ".join(paragraph.split())) + "\n"


def escaped(text: str) -> str:
    """Return a text none of whose words are read as tags or emphasis."""
    return re.sub(r"(`[^`]*`)|([<>*_])", lambda found: found[1] or f"\\{found[2]}", text)


def cell(text: str) -> str:
    """Return a text for a cell of a table, where a bar would end it."""
    return " ".join(text.split()).replace("|", ", ")


def python_page() -> str:
    """Return the page of the public names and of what they return."""
    called = [
        ("spectune.load", spectune.load),
        *methods_of(Generator, "Generator"),
        *methods_of(Scheduler, "Scheduler"),
    ]
    records = (GenerationSettings, Completion, Event, Choice)
    return "\n".join([PYTHON_TOP, *(call_of(*one) for one in called), *(record_of(one) for one in records)]) + "\n"


def methods_of(owner: type, name: str) -> list[tuple[str, Callable[..., object]]]:
    """Return the public methods of a class that have an example or belong to a session."""
    own = [(each, what) for each, what in vars(owner).items() if callable(what) and not each.startswith("_")]
    return [(f"{name}.{each}", what) for each, what in own if each in EXAMPLES or owner is Scheduler]


def call_of(name: str, what: Callable[..., object]) -> str:
    """Return the section of a function: how it is called, what it does, an example."""
    text, *lists = re.split(r"\n\n(?=Args:|Raises:|Returns:)", inspect.cleandoc(what.__doc__ or ""))
    parts = [f"\n## {name}\n", f"```python\n{signature_of(name, what)}\n```\n", text + "\n"]
    for one in lists:
        title, _, body = one.partition("\n")
        items = re.split(r"\n(?=\S)", dedent(body))
        rows = [f"| `{item.partition(':')[0]}` | {cell(item.partition(':')[2])} |" for item in items]
        parts += [f"| {title.rstrip(':').lower()} | |\n|---|---|\n" + "\n".join(rows) + "\n"]
    example = EXAMPLES.get(name.rpartition(".")[2])
    return "\n".join([*parts, *([f"```python\n{example}\n```\n"] if example else [])])


def signature_of(name: str, what: Callable[..., object]) -> str:
    """Return how a function is called, a parameter a line."""
    found = inspect.signature(what)
    named = [str(p) for p in found.parameters.values() if p.name != "self"]
    keyword = [p.kind == p.KEYWORD_ONLY for p in found.parameters.values() if p.name != "self"]
    if True in keyword:
        named.insert(keyword.index(True), "*")
    lines = "".join(f"    {one},\n" for one in named)
    lines = re.sub(r": '([^']+)'", r": \1", f"\n{lines}" if named else "")
    return f"{name}({lines}) -> {found.return_annotation}"


def record_of(record: type) -> str:
    """Return the section of a record: its fields with types, defaults and what the comment beside each says."""
    first = inspect.cleandoc(record.__doc__ or "").partition("\n\n")[0]
    owners = [one for one in reversed(record.__mro__) if one.__module__.startswith("spectune.")]
    lines = [line for one in owners for line in inspect.getsource(one).partition("    def ")[0].splitlines()]
    fields = [re.fullmatch(r"    (\w+): ([^#=]+?)(?: = ([^#]+?))?(?:  # (.*))?", line.rstrip()) for line in lines]
    rows = [f"| `{f[1]}` | `{f[2]}` | {f'`{f[3]}`' if f[3] else ''} | {cell(f[4] or '')} |" for f in fields if f]
    rows = [row.replace(" | None`", " or None`") for row in rows]
    table = ["| field | type | default | meaning |", "|---|---|---|---|", *rows]
    return "\n".join([f"\n## {record.__name__}\n", first + "\n", *table])


PAGES: dict[str, Callable[[], str]] = {"cli.md": commands_page, "python.md": python_page}


@click.command()
@click.option("--write", is_flag=True, help="Write what differs.")
def main(write: bool) -> None:
    """Say which pages differ from what the code says, or write these again."""
    unlike = [name for name, page in PAGES.items() if not (REFERENCE / name).is_file() or read(name) != page()]
    for name in unlike:
        if write:
            (REFERENCE / name).write_text(PAGES[name](), encoding="utf-8")
        click.echo(f"{name}: {'written' if write else 'differs'}")
    if unlike and not write:
        raise click.ClickException("run: python -m tests.site_pages --write")


def read(name: str) -> str:
    """Return a page as it is now."""
    return (REFERENCE / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    main()
