"""What the commands that make a drafter of a target's own text take and print."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import options
from .command import Args
from .option import path_option, real, whole
from .report import Progress, Table, TimeLeft, print_facts, progress, tell

if TYPE_CHECKING:
    from ..training.cards import Card
    from ..training.run import LearningRequest

BASIC = "target data output hours steps texts new-tokens cache device dtype"
STRAY = "name the model with --target MODEL"

data = path_option(
    "Text whose pieces the target continues; data files hold texts or conversations. Repeatable.",
    *("--data", "files"),
    required=True,
    multiple=True,
)
intermediate = whole("Width of the MLP; else the target's.", least=0, absent=0, metavar="N")


@dataclass(frozen=True, kw_only=True)
class DrafterArgs(Args):
    """What was typed to each command that makes a drafter."""

    target: str = options.target
    files: tuple[Path, ...] = data
    output: Path = options.folder


@dataclass(frozen=True, kw_only=True)
class TrainArgs(DrafterArgs):
    """What was typed to each command that trains one."""

    steps: int = whole("Updates of the weights.", default=1000)
    hours: float = real(
        "Most time, texts included; the training then ends early.", is_open="least", absent=math.inf, metavar="H"
    )
    batch: int = whole("Pieces of text per step.", "--batch", "--batch-size", default=16)
    piece: int = whole("Tokens of a piece.", least=4, default=256)
    texts: int = whole("Texts the target writes.", default=2048)
    new_tokens: int = whole("Tokens of each of them.", default=224)
    cache: Path | None = path_option(
        "Where texts and the target's states stay for other trainings; else they go with the run.", metavar="DIR"
    )
    device: str = options.device
    dtype: str = options.dtype
    seed: int = options.seed
    fresh: bool = options.fresh.but(help="Start an unfinished training over; its texts stay.")
    as_json: bool = options.as_json

    def request(self) -> dict[str, Any]:
        """Return what every request to train a drafter says, by its fields; a target that is missing is fetched."""
        from ..profiler.hub import resolve_model
        from ..training.own_text import OwnTextSettings
        from ..training.trainer import TrainingSettings

        settings = TrainingSettings(steps=self.steps, batch=self.batch, sequence_tokens=self.piece, seed=self.seed)
        own = OwnTextSettings(texts=self.texts, new_tokens=self.new_tokens, seed=self.seed)
        about = {"target": resolve_model(self.target), "data": self.files, "settings": settings, "own": own}
        return about | {"cache": self.cache, "hours": self.hours} | placed(self.device, self.dtype)


def placed(device: str, dtype: str) -> dict[str, Any]:  # Any: as requests have more fields
    """Return where and in which number format a drafter is made, by the fields of requests."""
    from ..profiler.device import detect
    from ..tuning.family import torch_device

    here = detect(device)
    return {"device": torch_device(here), "dtype": here.dtype_for(dtype)}


class StagesLeft:
    """A progress that says the time left of each stage."""

    def __init__(self, report: Progress) -> None:
        self._report, self._stage, self._left = report, "", TimeLeft(report)

    def __call__(self, what: str, share: float) -> None:
        """Report a share of a stage."""
        if what != self._stage:
            self._stage, self._left = what, TimeLeft(self._report)
        self._left(what, share)


def train_and_show(args: TrainArgs, request: LearningRequest, name: str) -> None:
    """Train a drafter, and print its card and the next command, in which it is called `name`."""
    from ..training.run import train_drafter

    with progress(args.settings) as report:
        card = train_drafter(request, args.output, fresh=args.fresh, progress=StagesLeft(report))
    show_card(args, card, f"{card.parameters:,} parameters", name, as_json=args.as_json)


def show_card(args: DrafterArgs, card: Card, size: str, name: str, *, as_json: bool) -> None:
    """Print a drafter's card and the next command, in which it is called `name`."""
    rows = [(depth, f"{chance:.1%}") for depth, chance in enumerate(card.acceptance, start=1)]
    title = f"{size}, {card.tokens_per_round:.2f} tokens a round in chains"
    table = Table(title=title, columns=("depth", "accepted"), rows=rows)
    print_facts(asdict(card) | {"folder": str(args.output)}, [table], as_json=as_json)
    if not as_json:
        following = f"spectune profile --target {args.target} --drafter {name}={args.output}"
        tell(args.settings, f"kept in {args.output}; next: {following}")
