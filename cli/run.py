"""`spectune run`: one prompt, decoded by the plan."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import RequestError
from . import options
from .report import print_json, tell
from .settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..runtime.choice import Choice


@click.command()
@options.target
@click.option("--prompt", required=True, metavar="TEXT", help="What to continue; - reads it from stdin.")
@options.drafters
@click.option("--plan", default="auto", show_default=True, metavar="auto|FILE|none", help="Which plan to follow.")
@options.device
@options.planned_dtype
@options.workload
@options.temperature
@options.max_new_tokens
@options.seed
@options.store
@options.as_json
@click.pass_obj
def run(
    settings: Settings,
    /,
    target: Path,
    prompt: str,
    drafters: dict[str, Path],
    plan: str,
    device: str,
    dtype: str | None,
    workload: str,
    temperature: float,
    max_new_tokens: int,
    seed: int,
    store: str | None,
    as_json: bool,
) -> None:
    """Decode a prompt with the stored plan.

    The text is the target's own, whatever the plan. Where there is no plan, or a drafter's weights
    are not the planned ones, it is decoded plainly, and stderr says so.

    \b
        spectune run --target path/to/target --prompt "def main():" --max-new-tokens 64
        spectune run --target path/to/target --prompt "def main():" --plan none
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise RequestError("the prompt is empty; write some text")
    from ..runtime.loader import load

    generator = load(
        target,
        device=device,
        store=store,
        plan=plan,
        drafters=drafters,
        workload=workload,
        temperature=temperature,
        dtype=dtype,
    )
    choice = generator.choice
    _require_planned(drafters, choice)
    tell(settings, choice.reason)
    if as_json:
        done = generator.generate(text, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
        origin = {"source": choice.source, "reason": choice.reason}
        print_json({"text": done.text, "tokens": list(done.tokens), "rounds": done.rounds, "plan": origin})
        return
    for piece in generator.stream(text, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed):
        click.echo(piece, nl=False)
    click.echo()


def _require_planned(names: Iterable[str], choice: Choice) -> None:
    if choice.plan is None:
        return
    known = [name for name, _ in choice.plan.drafters]
    if unknown := [name for name in names if name not in known]:
        raise RequestError(
            f"the plan knows no drafter called {', '.join(unknown)}; it was made with {', '.join(known) or 'none'}"
        )
