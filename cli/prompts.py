"""The prompts of a command, and what their owner should know before anything is measured on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .report import tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..profiler.prompts import Prompt
    from .settings import Settings


def named_prompts(
    settings: Settings, path: Path | None, shipped: Literal["calibration", "evaluation"]
) -> Sequence[Prompt]:
    """Return the prompts of a file; where none is named, some that come with the demo, and say so."""
    if path is None:
        from ..demo.prompts import calibration_prompts, evaluation_prompts

        tell(
            settings,
            f"measured on the demo's {shipped} prompts, pieces of Python; --prompts takes those of your traffic",
        )
        return calibration_prompts() if shipped == "calibration" else evaluation_prompts()
    from ..profiler.prompts import read_prompts

    return read_prompts(path)


def tell_cut(settings: Settings, prompts: Sequence[Prompt], target: Path, most: int) -> None:
    """Say how many prompts have more tokens than are kept of one, and how many conversations are read as bare text.

    Raises:
        SpectuneError: the target has no tokenizer, or a prompt no tokens.
    """
    if settings.quiet or not (target.is_dir() or target.is_file()):  # that there is no target is for others to say
        return
    from ..tuning.prompts import count_bare, count_cut

    if bare := count_bare(prompts, target):
        tell(settings, f"the target's tokenizer has no chat template: {bare} conversations are read as bare text")
    if cut := count_cut(prompts, target, most):
        tell(
            settings, f"{cut} of {len(prompts)} prompts lose all but their last {most} tokens; see --max-prompt-tokens"
        )
