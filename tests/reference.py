"""Tables in docs/reference that are made from code; `repository/test_reference.py` compares.

    python -m tests.reference            say which tables differ
    python -m tests.reference --write    write these again

A table lies between the lines `<!-- table NAME -->` and `<!-- end -->` of its page.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from spectune.engines.schema import schema_of
from spectune.engines.server_engine import Source
from spectune.engines.setting import DrafterForm, EngineDrafter, Setting
from spectune.engines.table import ENGINES as EXPORTED
from spectune.engines.table import SERVERS
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy

from .support.sent_bodies import described

PAGES = Path(__file__).parents[1] / "docs" / "reference"
OPEN, CLOSE = "<!-- table {} -->\n", "<!-- end -->"
LENGTH = 4  # drafted tokens of the samples
FORMS: tuple[DrafterForm, ...] = ("model", "eagle", "eagle3")
SAMPLES: tuple[tuple[str, TreePolicy, DrafterForm | None], ...] = (
    ("chain, draft model", ChainPolicy(length=LENGTH), "model"),
    ("chain, EAGLE-1 head", ChainPolicy(length=LENGTH), "eagle"),
    ("chain, EAGLE-3 head", ChainPolicy(length=LENGTH), "eagle3"),
    ("chain that stops when the drafter is unsure", ConfidentChainPolicy(length=LENGTH), "model"),
    ("EAGLE-2 tree, draft model", Eagle2Policy(verify_tokens=9, depth=2, top_k=4), "model"),
    ("EAGLE-2 tree, EAGLE-3 head", Eagle2Policy(verify_tokens=9, depth=2, top_k=4), "eagle3"),
    ("prompt lookup, first place", LookupPolicy(length=LENGTH, max_ngram=3, min_ngram=1, occurrence="first"), None),
    ("prompt lookup, newest place", LookupPolicy(length=LENGTH, max_ngram=3, min_ngram=3), None),
    ("suffix chain", SuffixPolicy(length=LENGTH), None),
    ("suffix tree", SuffixTreePolicy(nodes=24, factor=1, offset=0, least_chance=0.1), None),
)
DRAFTED = {  # commands that draft, by engine
    "vllm": [
        ["vllm", "serve", "MODEL", "--speculative-config", json.dumps({"method": method, "model": "HEAD"})]
        for method in ("eagle", "eagle3", "medusa", "mtp", "suffix", "dflash")
    ],
    "sglang": [
        [*("python", "-m", "sglang.launch_server", "--model-path", "MODEL"), "--speculative-algorithm", algorithm]
        for algorithm in ("EAGLE", "EAGLE3", "NEXTN", "DFLASH", "DSPARK")
    ],
    "llama.cpp": [
        ["llama-server", "-m", "target.gguf", "--spec-type", types]
        for types in (
            *("draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark", "ngram-simple", "ngram-map-k"),
            *("ngram-map-k4v", "draft-simple,ngram-mod", "draft-simple,ngram-cache"),
        )
    ],
}
BLOCKS = [{"decoding_type": "Eagle3", "speculative_model": "HEAD"}, {"decoding_type": "MTP"}]  # of TensorRT-LLM


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = (head, ["---"] * len(head), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def servers() -> str:
    """Return which drafts of which servers are tuned, and of which versions they ran here."""
    rows = []
    for name, engine in SERVERS.items():
        found: dict[str, str] = {}
        for source in _sources(name):
            found.setdefault(source.setting.method, source.checked)
        for checked in dict.fromkeys(found.values()):
            methods = ", ".join(f"`{method}`" for method, own in found.items() if own == checked)
            rows.append((name, methods, checked if checked[0] not in "b0123456789" else f"ran here: {checked}"))
        assert engine.name == name
    return table(("server", "methods", "checked"), rows)


def _sources(name: str) -> Iterator[Source]:
    engine, version = SERVERS[name], schema_of(name).versions[-1]
    drafters = [EngineDrafter(name=form, path=form, form=form) for form in FORMS]
    with tempfile.TemporaryDirectory() as folder:
        typed = [engine.example.split(), *DRAFTED.get(name, [])]
        if name == "tensorrt-llm":
            for place, block in enumerate(BLOCKS):
                file = Path(folder) / f"{place}.yaml"
                file.write_text(json.dumps({"speculative_config": block}))  # JSON is YAML
                typed.append([*engine.example.split(), "--config", str(file)])
        for command in typed:
            yield from engine.sources(command, drafters, LENGTH, version)


def exports() -> str:
    """Return which policies each engine runs, by its own name of the method."""
    rows = []
    for label, policy, form in SAMPLES:
        drafter = None if form is None else EngineDrafter(name=form, path=form, form=form)
        settings = [engine.setting(policy, drafter, schema_of(name).versions[-1]) for name, engine in EXPORTED.items()]
        rows.append((label, *(f"`{one.method}`" if isinstance(one, Setting) else "no" for one in settings)))
    versions = ("options recorded of", *(", ".join(schema_of(name).versions) for name in EXPORTED))
    return table(("policy", *EXPORTED), (*rows, versions))


def routes() -> str:
    """Return the operations of the store's service."""
    paths: dict[str, dict[str, Any]] = described().document["paths"]
    found = [
        (f"`{method.upper()} {path}`", one["tags"][0], " ".join(one["description"].split()))
        for path, methods in paths.items()
        for method, one in methods.items()
    ]
    return table(("operation", "group", "what it does"), found)


TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "servers": ("support-matrix.md", servers),
    "exports": ("support-matrix.md", exports),
    "routes": ("http.md", routes),
}


def between(page: str, name: str) -> str:
    """Return the table of this name in a page; ValueError where there is none."""
    start = page.index(OPEN.format(name)) + len(OPEN.format(name))
    return page[start : page.index(CLOSE, start)]


@click.command()
@click.option("--write", is_flag=True, help="Write the tables that differ again.")
def main(write: bool) -> None:
    """Say which tables of docs/reference differ from the code."""
    differing = []
    for name, (file, make) in TABLES.items():
        page, made = (PAGES / file).read_text(encoding="utf-8"), make()
        if (old := between(page, name)) != made:
            differing.append(name)
            if write:
                (PAGES / file).write_text(page.replace(OPEN.format(name) + old, OPEN.format(name) + made), "utf-8")
    click.echo(f"{', '.join(differing) or 'no table'} {'written' if write else 'differs'}")
    if differing and not write:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
