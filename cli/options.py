"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from ..planner.search.objective import LatencyBound

DTYPES = ("bfloat16", "float16", "float32", "float64", "q4_0", "q4_1", "q4_k_s", "q4_k_m", "q5_0", "q6_k", "q8_0")
DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
MODEL_FORMS = "a folder, a GGUF file or a Hugging Face id"
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kKMGT]?)(i?)B")


def counts(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[int, ...]:
    """Return whole numbers of at least 1 from `1,2,4`; a number given twice counts once, an empty text is none."""
    parts = [part.strip() for part in text.split(",")] if text else []
    wrong = [part for part in parts if not re.fullmatch(r"0*[1-9][0-9]{0,8}", part)]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} is no whole number of at least 1; write for example 1,2,4")
    return tuple(dict.fromkeys(int(part) for part in parts))


def temperatures(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[float, ...]:
    """Return temperatures from `0,0.8`; one given twice counts once."""
    found = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = -1.0
        if not 0.0 <= value < math.inf:
            raise click.BadParameter(f"{part.strip()!r} is no temperature of at least 0; write for example 0,0.8")
        found.append(value)
    return tuple(dict.fromkeys(found))


def device_name(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    """Return the name of one device."""
    if not DEVICE.fullmatch(name):
        raise click.BadParameter(f"{name!r} is no device; use auto, cpu or cuda:N, for example cuda:0")
    return name


def device_name_or_all(ctx: click.Context, param: click.Parameter, name: str) -> str:
    """Return the name of one device, or "all"."""
    return name if name == "all" else device_name(ctx, param, name)


def size(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | None:
    """Return bytes from `24GiB` (2^30 each) or `24GB` (10^9 each)."""
    if text is None:
        return None
    read = SIZE.fullmatch(text.strip())
    if read is None or (read[3] and not read[2]) or float(read[1]) <= 0:
        raise click.BadParameter(f"{text!r} is no size; write a number and B, kB, MB, GB, TB, KiB, MiB, GiB or TiB")
    unit: int = (1024 if read[3] else 1000) ** " KMGT".index(read[2].upper() or " ")
    return max(1, round(float(read[1]) * unit))


def latency_bound(_ctx: click.Context, _param: click.Parameter, text: str | None) -> LatencyBound | None:
    """Return the bound of a text like `itl<=30ms`."""
    if text is None:
        return None
    from ..errors import PlanError
    from ..planner.search.objective import parse_bound

    try:
        return parse_bound(text)
    except PlanError as error:
        raise click.BadParameter(str(error)) from error


def require_untyped(names: Collection[str], why: str) -> None:
    """Raise a usage error for the first of some parameters that was typed, though it would say nothing."""
    context = click.get_current_context()
    for parameter in context.command.params:
        is_typed = context.get_parameter_source(str(parameter.name)) == ParameterSource.COMMANDLINE
        if is_typed and parameter.name in names:
            raise click.UsageError(f"{parameter.opts[0]} {why}")


def named_models(_ctx: click.Context, _param: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
    """Return what texts like `small=models/small` name: paths and ids of models by name."""
    named: dict[str, str] = {}
    for text in texts:
        name, path = (part.strip() for part in text.partition("=")[::2])
        if not name or not path:
            raise click.BadParameter(f"{text!r} is not NAME=MODEL; write for example small=models/small")
        if name in named:
            raise click.BadParameter(f"the name {name!r} stands twice; give every drafter its own")
        named[name] = path
    return named


target = click.option("--target", required=True, metavar="MODEL", help=f"The target: {MODEL_FORMS}.")
drafters = click.option(
    "--drafter",
    "drafters",
    multiple=True,
    metavar="NAME=MODEL",
    callback=named_models,
    help="A drafter, named like a target; repeatable.",
)
device = click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="DEVICE",
    callback=device_name,
    help="auto, cpu or cuda:N (PyTorch's count).",
)
followed_plan = click.option(
    "--plan", default="auto", show_default=True, metavar="auto|ID|FILE|URL|none", help="Which plan to follow."
)
followed_workload = click.option(
    "--workload", metavar="NAME", help="Follow only a plan for this workload; else 'default' goes first."
)
tls_cert = click.option(
    "--tls-cert", "certificate", metavar="FILE", type=click.Path(path_type=Path), help="Certificate chain, PEM."
)
tls_key = click.option(
    "--tls-key", "key", metavar="FILE", type=click.Path(path_type=Path), help="Its private key, PEM."
)
workload = click.option(
    "--workload", default="default", metavar="NAME", show_default=True, help="What the prompts are called."
)
planned_workload = click.option(
    "--workload", metavar="NAME", help="Texts to plan for; else those of the workload that was recorded last."
)
temperature = click.option(
    "--temperature",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0.0),
    help="Temperature of sampling; 0 is greedy.",
)
dtype = click.option(
    "--dtype",
    default="auto",
    show_default=True,
    type=click.Choice(("auto", *DTYPES)),
    help="Number format of the weights; auto is the device's native one.",
)
planned_dtype = click.option(
    "--dtype", type=click.Choice(DTYPES), help="Number format of the weights; the plan's unless given."
)
max_new_tokens = click.option(
    "--max-new-tokens", default=128, show_default=True, type=click.IntRange(2), help="Tokens decoded per prompt."
)
max_prompt_tokens = click.option(
    "--max-prompt-tokens",
    type=click.IntRange(1),
    metavar="N",
    help="Longer prompts lose their beginning; else what the model and memory have room for.",
)
prompts = click.option(
    "--prompts",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Text, .jsonl, .json, .csv, .parquet, or a folder of them; else the demo's.",
)
sample = click.option(
    "--sample", type=click.IntRange(1), metavar="N", help="Draw so many of the prompts, by --seed; else all are taken."
)
allow_lossy = click.option(
    "--allow-lossy", is_flag=True, help="Let the output differ from the target's own, where that was measured."
)
seed = click.option("--seed", default=0, show_default=True, type=int, help="Seed of whatever is drawn at random.")
store = click.option(
    "--store",
    metavar="URL",
    help="A path, an SQLAlchemy URL or https:// of a service; else SPECTUNE_STORE, else your own file.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")


def files_of(kind: str, use: str) -> Callable[[Any], Any]:  # Any: as click types a decorator
    """Return the repeatable option for files that `spectune show KIND -o` wrote.

    Args:
        kind: "surface" or "trace", which names the option; its parameter is the plural.
        use: what is done with them, as the help's first words.
    """
    return click.option(
        f"--{kind}",
        f"{kind}s",
        multiple=True,
        metavar="FILE",
        type=click.Path(path_type=Path),
        help=f"{use} from what `show {kind} -o` wrote; repeatable.",
    )
