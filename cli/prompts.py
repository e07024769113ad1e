"""The prompts of a command, and what their owner should know before anything is measured on them."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from ..errors import RequestError
from .report import tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..profiler.prompts import Prompt
    from ..tuning.request import ProfileRequest
    from .report import Settings


MOST = 10_000  # prompts that are measured on; more are a data set, to be drawn from


def named_prompts(
    settings: Settings,
    path: Path | None,
    shipped: Literal["calibration", "evaluation"],
    *,
    sample: int | None = None,
    seed: int = 0,
) -> Sequence[Prompt]:
    """Return the prompts of a file; where none is named, some that come with the demo, and say so."""
    if path is None:
        if sample is not None:
            raise click.UsageError("--sample draws from --prompts FILE; give that, or leave it out.")
        from ..demo.prompts import calibration_prompts, evaluation_prompts

        tell(
            settings,
            f"measured on the demo's {shipped} prompts, pieces of Python; --prompts takes those of your traffic",
        )
        return calibration_prompts() if shipped == "calibration" else evaluation_prompts()
    from ..profiler.prompts import read_prompts

    return read_prompts(path, sample=sample, seed=seed, most=MOST, tell=partial(tell, settings))


def typed_text(prompt: str) -> str:
    """Return the text of --prompt, from stdin for "-"; RequestError where it is empty."""
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text:
        raise RequestError("the prompt is empty; write some text")
    return text


def tell_cut(settings: Settings, request: ProfileRequest) -> None:
    """Say how many prompts are cut to the most tokens, and how many conversations are read as bare text.

    SpectuneError: the target has no tokenizer, or a prompt no tokens.
    """
    prompts, target = request.prompts, request.models.target
    if settings.quiet or not target.exists():  # that there is no target is for others to say
        return
    from ..profiler.identity import require_folder
    from ..runtime.models.formats import require_no_drafter
    from ..tuning.prompts import count_bare, count_cut

    if target.is_dir():
        require_folder(target)
        require_no_drafter(target)
    if bare := count_bare(prompts, target):
        tell(settings, f"the target's tokenizer has no chat template: {bare} conversations are read as bare text")
    cut, room = count_cut(request)
    if cut:
        words = f"{cut} of {len(prompts)} prompts lose all but their last {room.tokens:,} tokens"
        tell(settings, f"{words}; the limit is {room.limit}")
