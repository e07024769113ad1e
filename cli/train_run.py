"""The options that all drafters trained on a target's own text share, gathered into one record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import options
from .report import Settings, Table, print_json, print_table, progress, tell

if TYPE_CHECKING:
    from ..training.cards import Card

Command = Callable[..., None]
BASIC = ("target", "data", "output", "steps", "batch", "texts", "new-tokens", "device", "dtype", "fresh")  # options

CONTINUED = "Text whose pieces the target continues; data files hold texts or conversations. Repeatable."

intermediate = click.option(
    "--intermediate", default=0, metavar="N", type=click.IntRange(0), help="Width of the MLP; else the target's."
)


def data_files(said: str) -> Callable[[Command], Command]:
    """Return the option --data; `said` is its help."""
    path = click.Path(path_type=Path)
    return click.option("--data", "files", required=True, multiple=True, metavar="FILE", type=path, help=said)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """What every such command is told."""

    target: Path
    files: tuple[Path, ...]
    output: Path
    steps: int
    batch: int
    piece: int
    texts: int
    new_tokens: int
    device: str
    dtype: str
    seed: int
    fresh: bool
    as_json: bool

    @property
    def asked(self) -> dict[str, Any]:
        """What every request to train a drafter says, by its fields."""
        from ..profiler.device import detect
        from ..training.language_model import TrainingSettings
        from ..training.own_text import OwnTextSettings
        from ..tuning.family import torch_device

        here = detect(self.device)
        return {
            "target": self.target,
            "data": self.files,
            "settings": TrainingSettings(
                steps=self.steps, batch=self.batch, sequence_tokens=self.piece, seed=self.seed
            ),
            "own": OwnTextSettings(texts=self.texts, new_tokens=self.new_tokens, seed=self.seed),
            "device": torch_device(here),
            "dtype": here.dtype_for(self.dtype),
        }


def training_run(*, piece: int, least_piece: int, said: str) -> Callable[[Command], Command]:
    """Return a decorator that gives a command the shared options, and calls it with a `TrainingRun` for all of them.

    `piece` and `least_piece` are default and least value of --piece, `said` is its help.
    """

    def given(command: Command) -> Command:
        @wraps(command)
        def gathered(settings: Settings, /, **told: Any) -> None:  # Any: each option has its own type
            from ..profiler.hub import resolve_model

            told["target"] = resolve_model(told["target"])
            run = TrainingRun(**{name: told.pop(name) for name in TrainingRun.__dataclass_fields__})
            command(settings, run, **told)

        decorated: Command = gathered
        for option in reversed(_options(piece, least_piece, said)):
            decorated = option(decorated)
        return decorated

    return given


def train_and_show(
    settings: Settings, run: TrainingRun, train: Callable[..., Card], request: object, name: str
) -> None:
    """Train a drafter, and print its card and the next command, in which it is called `name`."""
    with progress(settings) as report:
        card = train(request, run.output, fresh=run.fresh, progress=report)
    if run.as_json:
        print_json(asdict(card) | {"folder": str(run.output)})
        return
    from ..profiler.snapshot import place_or_id

    target = place_or_id(run.target)
    rows = [(depth, f"{chance:.1%}") for depth, chance in enumerate(card.acceptance, start=1)]
    title = f"{card.parameters:,} parameters, {card.tokens_per_round:.2f} tokens a round in chains"
    print_table(Table(title=title, columns=("depth", "accepted"), rows=rows))
    tell(settings, f"kept in {run.output}; next: spectune profile --target {target} --drafter {name}={run.output}")


def _options(piece: int, least_piece: int, said: str) -> list[Callable[[Command], Command]]:
    path, positive = click.Path(path_type=Path), click.IntRange(1)
    return [
        options.target,
        data_files(CONTINUED),
        click.option("-o", "--output", required=True, metavar="DIR", type=path, help="The drafter's folder."),
        click.option("--steps", default=1000, show_default=True, type=positive, help="Updates of the weights."),
        click.option("--batch", default=16, show_default=True, type=positive, help="Pieces of text per step."),
        click.option("--piece", default=piece, show_default=True, type=click.IntRange(least_piece), help=said),
        click.option("--texts", default=2048, show_default=True, type=positive, help="Texts the target writes."),
        click.option("--new-tokens", default=224, show_default=True, type=positive, help="Tokens of each of them."),
        options.device,
        options.dtype,
        options.seed,
        click.option("--fresh", is_flag=True, help="Start an unfinished training over; its texts stay."),
        options.as_json,
        click.pass_obj,
    ]
