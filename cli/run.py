"""`spectune run`: one prompt, decoded by the plan."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import RequestError
from . import options
from .command import Args, command, fields_of
from .model import loading, tell_dequantised, tell_unused
from .option import flag, path_option, real, whole
from .prompts import typed_text
from .report import print_json, tell

if TYPE_CHECKING:
    from collections.abc import Generator as Pieces
    from collections.abc import Iterable

    from ..runtime.engine.generator import Generator
    from ..runtime.engine.observer import RoundObserver
    from ..runtime.engine.settings import Completion, GenerationSettings
    from ..runtime.engine.step_output import StepOutput
    from ..runtime.plan_choice import Choice


# options that say nothing where no plan is followed
UNPLANNED = ("drafters", "draft_models", "workload", "allow_lossy")


@dataclass(frozen=True, kw_only=True)
class RunArgs(Args):
    """What was typed; the fields of GenerationSettings have their names there, and it checks them."""

    target: str = options.target
    prompt: str = options.prompt
    chat: bool = flag("Ask the prompt as a user does, through the target's chat template.")
    images: tuple[Path, ...] = path_option(
        "Image for a target that sees: .npy, .png or .jpg; repeatable.", "--image", multiple=True
    )
    drafters: dict[str, str] = options.drafters
    plan: str = options.followed_plan
    device: str = options.device
    dtype: str | None = options.planned_dtype
    workload: str | None = options.followed_workload
    temperature: float = options.temperature
    top_k: int = whole("Draw from the K best; 0 is all.", least=0, default=0)
    top_p: float = real(
        "Draw from the fewest best tokens with this probability.", most=1.0, is_open="least", default=1.0
    )
    min_p: float = real("Draw no token below this share of the best one's probability.", most=1.0, default=0.0)
    repetition_penalty: float = real("Above 1, tokens of the text become less likely.", is_open="least", default=1.0)
    stop: tuple[str, ...] = options.stop
    max_new_tokens: int = whole("Tokens decoded at most.", default=128)
    seed: int = options.seed
    allow_lossy: bool = options.allow_lossy
    store: str | None = options.store
    as_json: bool = options.as_json


@command(
    RunArgs,
    basic="target prompt chat draft-model drafter plan temperature max-new-tokens device json",
    stray="name the model with --target MODEL and the text with --prompt TEXT",
)
def run(args: RunArgs) -> None:
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
    if args.plan == "none":
        options.require_untyped(UNPLANNED, "is about a plan, and --plan none follows none; leave it out.")
    if args.chat and args.images:
        raise click.UsageError("--chat reads no --image; leave one of them out.")
    text = typed_text(args.prompt)
    from ..runtime.engine.settings import GenerationSettings

    wanted = GenerationSettings(**fields_of(GenerationSettings, args))
    question = _question(args, text)
    generator = _loaded(args)
    _tell_choice(args, generator.choice, generator.backend)
    if args.as_json:
        _print_done(generator, (generator.chat if args.chat else generator.generate)(question, wanted), args)
        return
    watch = generator.observer
    generator.observer = pace = Pace(watch)
    try:
        done = _echoed((generator.stream_chat if args.chat else generator.stream)(question, wanted))
    finally:
        generator.observer = watch
    click.echo()
    if words := pace.told(done, wanted, generator.choice):
        tell(args.settings, words)
    if _is_lossy(generator, args.allow_lossy):
        tell(args.settings, "LOSSY: the plan lets tokens be that the target would not have said; --json tells which")
    for message in _seen(generator):
        tell(args.settings, message)


def _question(args: RunArgs, text: str) -> Any:  # Any: what `chat` or `generate` takes
    from ..runtime.batch.images import ImagePrompt, read_image

    if args.chat:
        return [{"role": "user", "content": text}]
    return ImagePrompt(text=text, images=tuple(read_image(each) for each in args.images)) if args.images else text


def _loaded(args: RunArgs) -> Generator:
    """Return the target that decodes by the plan; RequestError where the plan lacks a drafter that was typed."""
    from ..runtime.load import load

    generator = load(args.target, **loading(args))
    _require_planned(args.drafters, generator.choice)
    return generator


def _tell_choice(args: RunArgs, choice: Choice, backend: str) -> None:
    from ..runtime.fallbacks import in_brief

    planned = None if choice.plan is None else choice.plan.dtype
    tell_dequantised(args.settings, (args.target, *args.drafters.values()), args.dtype or planned)
    tell_unused(args.settings, args.target)
    number = "" if choice.plan_id is None else f", plan {choice.plan_id}"
    reason = choice.reason if args.settings.verbose else in_brief(choice)
    tell(args.settings, f"{reason}{number}; backend {backend}{_unloaded(args.drafters, choice)}")


def _print_done(generator: Generator, done: Completion, args: RunArgs) -> None:
    origin = {"source": generator.choice.source, "reason": generator.choice.reason}
    facts = {"text": done.text, "tokens": list(done.tokens), "rounds": done.rounds}
    facts |= {"lossy": list(done.lossy)} if _is_lossy(generator, args.allow_lossy) else {}
    facts |= {"finish_reason": done.finish_reason, "plan": origin, "backend": generator.backend}
    print_json({**facts, "events": _seen(generator)})


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
    """Notes what the rounds of one text take, and passes it to other observers."""

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
