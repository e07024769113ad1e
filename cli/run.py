"""`spectune run`: one prompt, decoded by the plan."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import RequestError
from . import options
from .command import Command
from .model import tell_dequantised
from .report import Settings, print_json, tell

if TYPE_CHECKING:
    from collections.abc import Generator as Pieces
    from collections.abc import Iterable

    from ..runtime.engine.generator import Generator
    from ..runtime.engine.observer import RoundObserver
    from ..runtime.engine.settings import Completion, GenerationSettings
    from ..runtime.engine.step_output import StepOutput
    from ..runtime.plan_choice import Choice


UNPLANNED = (
    "drafters",
    "draft_models",
    "workload",
    "allow_lossy",
)  # options that say nothing where no plan is followed


@click.command(
    cls=Command,
    basic=(
        "target",
        "prompt",
        "chat",
        "draft-model",
        "drafter",
        "plan",
        "temperature",
        "max-new-tokens",
        "device",
        "json",
    ),
    stray="name the model with --target MODEL and the text with --prompt TEXT",
)
@options.target
@click.option("--prompt", required=True, metavar="TEXT", help="What to continue; - reads it from stdin.")
@click.option("--chat", is_flag=True, help="Ask the prompt as a user does, through the target's chat template.")
@click.option(
    "--image",
    "images",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Image for a target that sees: .npy, .png or .jpg; repeatable.",
)
@options.drafters
@options.followed_plan
@options.device
@options.planned_dtype
@options.followed_workload
@options.temperature
@click.option("--top-k", default=0, show_default=True, type=click.IntRange(0), help="Draw from the K best; 0 is all.")
@click.option(
    "--top-p",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.0, 1.0, min_open=True),
    help="Draw from the fewest best tokens with this probability.",
)
@click.option(
    "--min-p",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0.0, 1.0),
    help="Draw no token below this share of the best one's probability.",
)
@click.option(
    "--repetition-penalty",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.0, min_open=True),
    help="Above 1, tokens of the text become less likely.",
)
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; repeatable.")
@click.option(
    "--max-new-tokens", default=128, show_default=True, type=click.IntRange(1), help="Tokens decoded at most."
)
@options.seed
@options.allow_lossy
@options.store
@options.as_json
@click.pass_obj
def run(
    settings: Settings,
    /,
    target: str,
    prompt: str,
    chat: bool,
    images: tuple[Path, ...],
    drafters: dict[str, str],
    plan: str,
    device: str,
    dtype: str | None,
    workload: str | None,
    store: str | None,
    allow_lossy: bool,
    as_json: bool,
    **generation: Any,  # click gives the fields of GenerationSettings
) -> None:
    """Decode a prompt by the stored plan.

    Decoding is lossless: the text is the target's own, whatever the plan. Only a lossy plan with --allow-lossy
    changes it, and stderr then says so. Without a plan, or where a drafter's weights changed, it decodes plainly
    and says why.

    \b
        spectune run --target path/to/target --prompt "def main():" --max-new-tokens 64
        spectune run --target path/to/target --chat --prompt "What is a KV cache?"
        spectune run --target path/to/target --prompt "def main():" --plan none
        spectune run --target path/to/target --prompt "def main():" --plan 3
        spectune run --target path/to/target --prompt "def main():" --temperature 0.8 --top-p 0.9 --stop "def "
    """
    if plan == "none":
        options.require_untyped(UNPLANNED, "is about a plan, and --plan none follows none; leave it out.")
    text = sys.stdin.read() if prompt == "-" else prompt
    if chat and images:
        raise click.UsageError("--chat reads no --image; leave one of them out.")
    if not text:
        raise RequestError("the prompt is empty; write some text")
    from ..runtime.batch.images import ImagePrompt, read_image
    from ..runtime.engine.settings import GenerationSettings
    from ..runtime.fallbacks import in_brief
    from ..runtime.load import load

    wanted = GenerationSettings(**generation)
    turns = [{"role": "user", "content": text}]
    asked = ImagePrompt(text=text, images=tuple(read_image(path) for path in images)) if images else text
    generator = load(
        target,
        device=device,
        store=store,
        plan=plan,
        drafters=drafters,
        workload=workload,
        temperature=wanted.temperature,
        dtype=dtype,
        allow_lossy=allow_lossy,
    )
    choice = generator.choice
    _require_planned(drafters, choice)
    planned = None if choice.plan is None else choice.plan.dtype
    tell_dequantised(settings, (target, *drafters.values()), dtype or planned)
    number = "" if choice.plan_id is None else f", plan {choice.plan_id}"
    tell(settings, f"{choice.reason if settings.verbose else in_brief(choice)}{number}{_unloaded(drafters, choice)}")
    if as_json:
        done = generator.chat(turns, wanted) if chat else generator.generate(asked, wanted)
        origin = {"source": choice.source, "reason": choice.reason}
        facts = {"text": done.text, "tokens": list(done.tokens), "rounds": done.rounds}
        facts |= {"lossy": list(done.lossy)} if _is_lossy(generator, allow_lossy) else {}
        seen = _seen(generator)
        print_json({**facts, "finish_reason": done.finish_reason, "plan": origin, "events": seen})
        return
    watch = generator.observer
    generator.observer = pace = Pace(watch)
    try:
        done = _echoed(generator.stream_chat(turns, wanted) if chat else generator.stream(asked, wanted))
    finally:
        generator.observer = watch
    click.echo()
    if words := pace.told(done, wanted, choice):
        tell(settings, words)
    if _is_lossy(generator, allow_lossy):
        tell(settings, "LOSSY: the plan lets tokens be that the target would not have said; --json tells which")
    for message in _seen(generator):
        tell(settings, message)


def _echoed(pieces: Pieces[str, None, Completion]) -> Completion:
    while True:
        try:
            click.echo(next(pieces), nl=False)
        except StopIteration as ended:
            done: Completion = ended.value
            return done


def _is_lossy(generator: Generator, allow_lossy: bool) -> bool:
    """Say whether any round may have accepted a token that is not the target's own."""
    return allow_lossy and any(setup.is_lossy for setup in generator.choice.setups)


def _seen(generator: Generator) -> list[str]:
    """Return the decoder's findings on its plan: drift, faults, a way back to plain decoding."""
    from ..runtime.watch.watch import Watch

    return [event.message for event in generator.observer.events] if isinstance(generator.observer, Watch) else []


def _unloaded(names: Iterable[str], choice: Choice) -> str:
    idle = ", ".join(names) if choice.plan is None else ""
    return f"; --drafter {idle} is not loaded: without a plan nothing drafts" if idle else ""


def _require_planned(names: Iterable[str], choice: Choice) -> None:
    if choice.plan is None:
        return
    known = [name for name, _ in (*choice.plan.drafters, *choice.plan.classifiers)]
    if unknown := [name for name in names if name not in known]:
        raise RequestError(
            f"the plan knows no drafter called {', '.join(unknown)}; it was made with {', '.join(known) or 'none'}"
        )


STRAY = 3.0  # times the middle round: what takes longer meets a capture, a compiler or another process


class Pace:
    """Notes what the rounds of one text take, and tells whoever else watches."""

    def __init__(self, watch: RoundObserver | None) -> None:
        """Stand before a watch."""
        self._watch = watch
        self._ms: list[float] = []
        self._contexts: list[int] = []

    def note(self, done: StepOutput, /) -> None:
        """Note a round that is over."""
        self._ms.append(done.round_ms)
        self._contexts.append(done.context)
        if self._watch is not None:
            self._watch.note(done)

    def told(self, done: Completion, wanted: GenerationSettings, choice: Choice) -> str:
        """Return in how many rounds a text came, how fast, and what was promised for texts like the plan's."""
        behind = len(done.tokens) - 1
        if not done.rounds or not self._ms or behind < 1:
            return ""
        rounds = "1 round" if done.rounds == 1 else f"{done.rounds} rounds"
        most = STRAY * statistics.median(self._ms)
        speed = 1000.0 * behind / sum(min(ms, most) for ms in self._ms)
        words = f"{len(done.tokens)} tokens in {rounds}, {behind / done.rounds:.2f} a round behind the first"
        return f"{words}: about {speed:,.0f} tokens/s{self._promise(wanted, choice)}"

    def _promise(self, wanted: GenerationSettings, choice: Choice) -> str:
        """Return the plan's promise, if any: for one text of its own temperature, run as planned."""
        plan = choice.plan
        is_near = choice.match is not None and choice.match.grade == "same"
        if plan is None or not is_near or not choice.is_in_planned_dtype or plan.temperature != wanted.temperature:
            return ""
        cell = plan.cell(1, int(statistics.median(self._contexts)))
        if cell.batch != 1 or (cell.batch, cell.context) in dict(choice.substitutes):
            return ""
        promise = cell.prediction
        interval = f"{promise.low:,.0f} to {promise.high:,.0f}"
        return f"; planned are {promise.tokens_per_s:,.0f} ({interval}) over all texts of workload {plan.workload}"
