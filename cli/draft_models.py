"""The options that name drafters: `--drafter NAME=MODEL`, and `--draft-model MODEL` named after its folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from .option import option

UNNAMED = "spectune.draft_models"  # in a context's meta: what --draft-model gave


def named_models(ctx: click.Context, _param: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
    """Return paths and ids of models by name: of texts like `small=models/small`, and of --draft-model."""
    pairs = []
    for text in texts:
        name, path = (part.strip() for part in text.partition("=")[::2])
        if not name or not path:
            raise click.BadParameter(
                f"{text!r} is not NAME=MODEL; write for example small=models/small, or --draft-model models/small"
            )
        pairs.append((name, path))
    return _once([*pairs, *ctx.meta.get(UNNAMED, ())])


def _unnamed_models(ctx: click.Context, _param: click.Parameter, texts: Sequence[str]) -> None:
    """Store what --draft-model gave until --drafter is read; it is eager, so it comes first."""
    ctx.meta[UNNAMED] = [(own_name(text.strip()), text.strip()) for text in texts]


def own_name(text: str) -> str:
    """Return a model's name by its place: its folder, its file less the suffix, or the end of its id.

    BadParameter: the place has no name, or one that no drafter may have.
    """
    from ..planner.inputs import NAMING, is_free
    from ..profiler.snapshot import name_of

    if not text:
        raise click.BadParameter("the model is empty; give a folder, a GGUF file or a Hugging Face id")
    place = Path(text)
    if place.exists():
        name = name_of(place.resolve() if place.name in ("", "..") else place.absolute())
    else:
        name = text.partition("@")[0].rstrip("/").rpartition("/")[2]
    name = name[: -len(".gguf")] if name.lower().endswith(".gguf") else name
    if not is_free(name):
        raise click.BadParameter(f"a drafter cannot be called {name!r}: {NAMING}; write --drafter NAME={text}")
    return name


def _once(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    named: dict[str, str] = {}
    for name, path in pairs:
        if name in named:
            raise click.BadParameter(f"the name {name!r} occurs twice; give every drafter its own")
        named[name] = path
    return named


unnamed = option(
    "A drafter named after its folder; repeatable.",
    *("--draft-model", "draft_models"),
    multiple=True,
    metavar="MODEL",
    is_eager=True,
    expose_value=False,
    callback=_unnamed_models,
)
drafters = option(
    "A drafter and its name in the plan; repeatable.",
    *("--drafter", "drafters"),
    multiple=True,
    metavar="NAME=MODEL",
    callback=named_models,
    beside=[unnamed],
)
