"""`spectune convert`: a model folder in the form an engine reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..engines.table import FORMATS
from . import options
from .command import Args, command
from .option import argument, choice
from .report import print_facts, tell


@dataclass(frozen=True, kw_only=True)
class ConvertArgs(Args):
    """What was typed."""

    named: str = argument(metavar="MODEL")
    engine: str = choice("Who is to read it.", sorted(FORMATS), required=True)
    dtype: str = options.dtype
    output: Path | None = options.output.but(
        metavar="PATH", help="Where to; the folder's name with .gguf or .openvino here, unless given."
    )
    as_json: bool = options.as_json


@command(ConvertArgs)
def convert(args: ConvertArgs) -> None:
    """Write a model in an engine's own form.

    MODEL is a model folder of Hugging Face, or its id there. It becomes the GGUF file, or the folder of OpenVINO,
    that `spectune profile --engine` makes for itself and throws away; an exported command reads it. Nothing is
    overwritten.

    \b
        spectune convert path/to/target --engine llama.cpp
        spectune convert path/to/target --engine openvino --dtype float16 -o target.openvino
    """
    from ..engines.running import convert_model, own_dtype
    from ..profiler.device import detect
    from ..profiler.hub import resolve_model
    from ..profiler.records.device import AUTO_DTYPE
    from ..profiler.snapshot import name_of

    engine, is_native = args.engine, args.dtype == AUTO_DTYPE
    dtype = own_dtype(engine, detect("cpu").native_dtype) if is_native else args.dtype
    model = resolve_model(args.named)
    name = name_of(model.resolve())
    out = args.output or Path(f"{name}.{FORMATS[engine].ending}")
    made = convert_model(engine, model, out, dtype=dtype)
    size = sum(file.stat().st_size for file in [made, *made.rglob("*")] if file.is_file())
    facts = {"engine": engine, "model": args.named, "dtype": dtype, "written": str(made), "bytes": size}
    words = f"{made}: {name} for {engine} in {dtype}, {size / 1e6:,.1f} MB"
    print_facts(facts, [words], as_json=args.as_json)
    following = f"spectune profile --engine {engine} --target {made} --dtype {dtype}"
    tell(args.settings, f"written to {made}; next: {following}")
