"""`spectune train pad`: a classifier that says which drafted tokens decide the answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import options
from .command import Args, command, fields_of
from .option import option, real, whole
from .report import Table, print_facts, progress, tell
from .train_run import STRAY, data, placed

if TYPE_CHECKING:
    from ..training.pad_request import Exercise, PadCard, PadRequest


@dataclass(frozen=True, kw_only=True)
class PadArgs(Args):
    """What was typed; the fields of a PadRequest have their names there, and it checks them."""

    target: str = options.target
    drafter: str = option("Whose tokens.", "--drafter", "--draft-model", "drafter", required=True, metavar="MODEL")
    files: tuple[Path, ...] = data.but(help='Problems: .jsonl, every line with "prompt" and "answer". Repeatable.')
    output: Path = options.folder.but(help="Its folder.")
    rollouts: int = whole("Texts with each token, and without.", default=8)
    rollout_temperature: float = real("Temperature of these texts; at 0 take one rollout.", default=0.6)
    least_share: float = real(
        "Share of the right answers that a token must keep not to be a pivot.", most=1.0, is_open="least", default=0.9
    )
    floor: float = real("Least probability by the target.", most=1.0, default=1e-4)
    reads: int = whole("Layers behind the state it reads; 0 is usual.", least=0, absent=0, metavar="LAYERS")
    width: int = whole("Width of its two layers.", default=256)
    steps: int = whole("Updates of the weights.", default=300)
    batch: int = whole("Pairs of tokens per step.", "--batch", "--batch-size", default=32)
    held_out: float = real("Share of the problems it is judged on.", most=1.0, is_open="least most", default=0.25)
    recall: float = real(
        "Share of pivots that the recommended threshold rejects.", most=1.0, is_open="least", default=0.95
    )
    max_new_tokens: int = options.max_new_tokens
    device: str = options.device
    dtype: str = options.dtype
    seed: int = options.seed
    fresh: bool = options.fresh.but(help="Start an unfinished training over; its labels stay.")
    as_json: bool = options.as_json


@command(PadArgs, basic="target drafter data output rollouts steps max-new-tokens device dtype fresh", stray=STRAY)
def pad(args: PadArgs) -> None:
    """Train a pivot classifier for lossy decoding by PAD.

    The target decodes problems whose answers are known. Where it rejects a drafted token, it continues with and
    without that token several times. A token that makes answers wrong is a pivot. A small network learns to see
    pivots in the target's hidden state. The folder is for this target alone, with a card that says how good it is.
    A run that was stopped resumes where it stopped.

    \b
        spectune train pad --target path/to/target --drafter path/to/small --data problems.jsonl -o my-pivots
        spectune lossy --target path/to/target --drafter small=path/to/small --drafter pivots=my-pivots \\
            --prompts prompts.jsonl -o lossy.json
    """
    from ..training.pad import train_pad

    request = _request(args)
    with progress(args.settings) as report:
        card = train_pad(request, args.output, fresh=args.fresh, progress=report)
    print_facts(asdict(card) | {"folder": str(args.output)}, [_table(card)], as_json=args.as_json)
    if not args.as_json:
        tell(
            args.settings,
            f"kept in {args.output}; next: spectune lossy --target {args.target} --drafter small={args.drafter} "
            f"--drafter pivots={args.output} --prompts FILE --setting 10,pad,{card.threshold:.4g} -o lossy.json",
        )


def _request(args: PadArgs) -> PadRequest:
    from ..profiler.hub import resolve_model
    from ..training.pad_labels import RolloutSettings
    from ..training.pad_request import PadRequest
    from ..training.trainer import TrainingSettings

    place, drafter = resolve_model(args.target), resolve_model(args.drafter)
    own = {
        "target": place,
        "drafter": drafter,
        "exercises": tuple(each for path in args.files for each in exercises_of(path, place)),
        "files": tuple(path.name for path in args.files),
        "rollouts": RolloutSettings(rollouts=args.rollouts, temperature=args.rollout_temperature, seed=args.seed),
        "settings": TrainingSettings(steps=args.steps, batch=args.batch, sequence_tokens=1, seed=args.seed),
    }
    return PadRequest(**(fields_of(PadRequest, args) | placed(args.device, args.dtype) | own))


def exercises_of(path: Path, target: Path) -> list[Exercise]:
    """Return the problems of a file in the target's tokens.

    RequestError: the file cannot be read as prompts, or a line has no answer or an image.
    """
    from ..errors import RequestError
    from ..profiler.prompts import answers_of, read_prompts
    from ..runtime.engine.prompts import encode_prompt
    from ..runtime.models.loading import load_tokenizer
    from ..training.pad_request import Exercise

    prompts = read_prompts(path)
    answers = answers_of(prompts)
    if not answers:
        raise RequestError(
            f"{path} does not tell every answer, and a token is judged by the answer it leads to; write a .jsonl file "
            'whose every line has "prompt" and "answer"'
        )
    if any(prompt.images for prompt in prompts):
        raise RequestError(
            f"a problem of {path} has an image, and pivots are labelled on problems of text alone; leave such lines out"
        )
    tokenizer = load_tokenizer(str(target))
    pairs = zip(prompts, answers, strict=True)
    return [Exercise(prompt=encode_prompt(prompt, tokenizer), answer=answer) for prompt, answer in pairs]


def _table(card: PadCard) -> Table:
    rows = [
        (f"{each.threshold:.4g}", _shown(each.recall, each.recall_95), _shown(each.passed, each.passed_95))
        for each in card.thresholds
    ]
    title = f"{card.parameters:,} parameters, {card.pivots:,} pivots of {card.candidates:,} tokens. {card.judgement}"
    return Table(title=title, columns=("threshold", "pivots rejected, 95 %", "others let be, 95 %"), rows=rows)


def _shown(share: float | None, interval: tuple[float, float] | None) -> str | None:
    if share is None or interval is None:
        return None
    return f"{share:.1%} ({interval[0]:.1%} to {interval[1]:.1%})"
