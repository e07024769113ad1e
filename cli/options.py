"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from ..engines.limits import STALL_S, START_S
from . import draft_models
from .option import argument, flag, option, path_option, real, whole

if TYPE_CHECKING:
    from ..planner.engines.served_choice import LatencyBounds

OTHER_NAMES = {
    **dict.fromkeys(("bf16",), "bfloat16"),
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("fp32", "f32", "float", "single"), "float32"),
    **dict.fromkeys(("fp64", "f64", "double"), "float64"),
}


class NumberFormat(click.Choice[str]):
    """A number format; bf16, fp16 and fp32 are read as bfloat16, float16 and float32."""

    name = "number format"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the format's own name."""
        name = value.lower().removeprefix("torch.")
        return super().convert(OTHER_NAMES.get(name, name), param, ctx)


DTYPES = ("bfloat16", "float16", "float32", "float64", "q4_0", "q4_1", "q4_k_s", "q4_k_m", "q5_0", "q6_k", "q8_0")
DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
GPU = re.compile(r"gpu(:\d+)?")  # is cuda
MODEL_FORMS = "a folder, a GGUF file or a Hugging Face id"
SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smh]?)")
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
Bounds = TypeVar("Bounds")
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:([kmgt]?)(i?)b|([kmgt])i?)", re.IGNORECASE)


def counts(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[int, ...]:
    """Return whole numbers of at least 1 from `1,2,4`; a number given twice counts once, an empty text is none."""
    parts = [part.strip() for part in text.split(",")] if text else []
    wrong = [part for part in parts if not re.fullmatch(r"0*[1-9][0-9]{0,8}", part)]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} is no whole number of at least 1; write for example 1,2,4")
    return tuple(dict.fromkeys(int(part) for part in parts))


def span(_ctx: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    """Return the seconds of a text like `60s` or `10m`."""
    match = SPAN.fullmatch("1" if text is None else text.strip())
    if match is None or float(match[1]) <= 0.0:
        raise click.BadParameter(f"{text!r} is no span of time; write for example 60s or 10m")
    return None if text is None else float(match[1]) * SECONDS[match[2] or "s"]


def api_key() -> str:
    """Return the key of servers' APIs from the environment; "" where there is none."""
    return os.environ.get("SPECTUNE_API_KEY") or os.environ.get("OPENAI_API_KEY") or ""


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
    known = torch_name(name)
    if not DEVICE.fullmatch(known):
        raise click.BadParameter(f"{name!r} is no device; use auto, cpu, gpu or cuda:N, for example cuda:0")
    return known


def one_device(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    """Return the name of a device of this machine or of a store, but not of all."""
    if name.lower() == "all":
        raise click.BadParameter("a plan is for one device; name it, and plan for each in turn")
    return name


def torch_name(name: str) -> str:
    """Return what PyTorch calls a device; `gpu:1` is `cuda:1`, and what is no such name stays as it is."""
    small = name.lower()
    if GPU.fullmatch(small):
        return small.replace("gpu", "cuda")
    return small if DEVICE.fullmatch(small) else name


def device_name_or_all(ctx: click.Context, param: click.Parameter, name: str) -> str:
    """Return the name of one device, or "all"."""
    return "all" if name.lower() == "all" else device_name(ctx, param, name)


def size(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | None:
    """Return bytes from `24G` or `24GiB` (2^30 each), or `24GB` (10^9 each)."""
    if text is None:
        return None
    read = SIZE.fullmatch(text.strip())
    if read is None or (read[3] and not read[2]) or float(read[1]) <= 0:
        raise click.BadParameter(
            f"{text!r} is no size; write for example 24G or 24GiB (2^30 bytes each), or 24GB (10^9)"
        )
    is_binary = bool(read[3] or read[4])
    unit: int = (1024 if is_binary else 1000) ** " KMGT".index((read[2] or read[4] or " ").upper())
    return max(1, round(float(read[1]) * unit))


def latency_bounds(_ctx: click.Context, _param: click.Parameter, text: str | None) -> LatencyBounds | None:
    """Return a server's bounds, of a text like `tpot<=20ms,ttft<=500ms`."""
    from ..planner.engines import served_choice

    return None if text is None else bounded(served_choice.latency_bounds, text)


def bounded(read: Callable[[str], Bounds], text: str) -> Bounds:
    """Return what --slo says; BadParameter where it cannot be read so."""
    from ..errors import PlanError

    try:
        return read(text)
    except PlanError as error:
        raise click.BadParameter(str(error), param_hint="'--slo'") from error


def require_untyped(names: Collection[str], why: str) -> None:
    """Raise a usage error for the first of some parameters that was typed, though it would say nothing."""
    context = click.get_current_context()
    for parameter in context.command.params:
        is_typed = context.get_parameter_source(str(parameter.name)) == ParameterSource.COMMANDLINE
        if is_typed and parameter.name in names:
            raise click.UsageError(f"{parameter.opts[0]} {why}")


# The table. `absent`, `default` and the kinds of values: `option.py`.
target = option(f"The target: {MODEL_FORMS}.", "--target", "--model", "target", required=True, metavar="MODEL")
named_target = target.but(required=False)
drafters = draft_models.drafters
device = option(
    "auto, cpu, gpu, or cuda:N as PyTorch counts.",
    "--device",
    default="auto",
    metavar="DEVICE",
    callback=device_name,
)
dtype = option(
    "bf16, fp16, fp32 or a GGUF format; auto is the device's native one.",
    "--dtype",
    default="auto",
    metavar="FORMAT",
    type=NumberFormat(("auto", *DTYPES)),
)
profiled_dtype = dtype.but(help="bf16, fp16, fp32 or a GGUF format; else the one profiled last.", default=None)
planned_dtype = profiled_dtype.but(
    help="bf16, fp16, fp32 or a GGUF format; else the plan's.", type=NumberFormat(DTYPES)
)
followed_plan = option(
    "A number of the list, a file, or another store.", "--plan", default="auto", metavar="auto|PLAN|URL|none"
)
workload = option("What the prompts are called.", "--workload", default="default", metavar="NAME")
followed_workload = option("Follow only a plan for this workload; else 'default' goes first.", metavar="NAME")
profiled_workload = option("What its prompts are called; else the workload profiled last.", metavar="NAME")
temperature = real("Temperature of sampling; 0 is greedy.", "--temperature", default=0.0)
slo = option(
    "Mean latencies that a server keeps: tpot<=20ms,ttft<=500ms.",
    *("--slo", "bounds"),
    metavar="METRIC<=Nms,...",
    callback=latency_bounds,
)
batches = option(
    "Batch sizes: sequences decoded at once (concurrency).",
    "--batch",
    "--batch-size",
    "batches",
    absent="",
    metavar="N,N,...",
    callback=counts,
)
contexts = option("Context lengths, in tokens.", "--context", "contexts", absent="", metavar="N,N,...", callback=counts)
seconds = option("So long: 60s, 10m.", "--for", "seconds", metavar="60s", callback=span)
url = option("With --engine: a server that runs there; it is never stopped.", "--server", "url", metavar="URL")
server_command = argument(nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
start_timeout = real(
    "Seconds that a server may take to start.", "--start-timeout", "start_s", least=1.0, default=START_S
)
stall_timeout = real(
    "Seconds without a byte of a server's answer.", "--stall-timeout", "stall_s", least=1.0, default=STALL_S
)
starts = whole("Starts of a server at most.", least=2, default=8)
requests = whole("Requests of each load of a server; 16, or twice the largest concurrency, unless given.", metavar="N")
longest = whole("A server's drafted tokens at most.", most=64, default=8)
ignore_eos = flag("Let a server's answers have --max-new-tokens tokens each.")
model_name = option("What requests call a server's model; else the first served.", absent="", metavar="NAME")
prompt = option("What to continue; - reads it from stdin.", required=True, metavar="TEXT")
stop = option("End before this text; repeatable.", multiple=True, metavar="TEXT")
prompts = path_option("Text, .jsonl, .json, .csv, .parquet, or a folder of them; else the demo's.")
sample = whole("Draw so many of the prompts, by --seed; else all are taken.", metavar="N")
max_new_tokens = whole("Tokens decoded per prompt.", least=2, default=128)
max_prompt_tokens = whole(
    "Longer prompts lose their beginning; else what the model and memory have room for.", metavar="N"
)
allow_lossy = flag("Let the output differ from the target's own, where that was measured.")
estimated = option("A catalogued device, which is not here.", "--estimate", "estimated", metavar="DEVICE")
seed = option("Seed of whatever is drawn at random.", default=0, type=int)
host = option("Where to listen.", default="127.0.0.1", metavar="ADDRESS")
port = whole("On which port.", most=65535)
tls_cert = path_option("Certificate chain, PEM.", "--tls-cert", "certificate")
tls_key = path_option("Its private key, PEM.", "--tls-key", "key")
is_behind_proxy = flag("A proxy ends TLS.", "--behind-proxy", "is_behind_proxy")
store = option(
    "A path, an SQLAlchemy URL or https:// of a service; else SPECTUNE_STORE, else your own file.",
    "--store",
    metavar="URL",
)
fresh = flag("Start over what an earlier run left unfinished.")
output = path_option("Write the JSON document to this file.", "-o", "--output")
folder = path_option("The drafter's folder.", "-o", "--output", metavar="DIR", required=True)
plot = path_option("Draw it: .png, or .html to look into.")
as_json = flag("Print one JSON object instead of tables.", "--json", "as_json")


def files_of(kind: str, use: str) -> Any:  # Any: as `option` returns it
    """Return the repeatable option for files that `spectune show KIND -o` wrote; `use` begins the help.

    `kind`, "surface" or "trace", names the option; its parameter is the plural.
    """
    return path_option(f"{use} from what `show {kind} -o` wrote; repeatable.", f"--{kind}", f"{kind}s", multiple=True)
