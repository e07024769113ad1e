"""`spectune convert`: a model folder in the form an engine reads."""

from __future__ import annotations

from pathlib import Path

import click

from . import options
from .report import Settings, print_json, tell

NAMES = ("llama.cpp", "openvino")  # a test compares them


@click.command()
@click.argument("named", metavar="MODEL")
@click.option("--engine", required=True, type=click.Choice(NAMES), help="Who is to read it.")
@options.dtype
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Where to; the folder's name with .gguf or .openvino here, unless given.",
)
@options.as_json
@click.pass_obj
def convert(settings: Settings, /, named: str, engine: str, dtype: str, output: Path | None, as_json: bool) -> None:
    """Write a model in an engine's own form.

    MODEL is a model folder of Hugging Face, or its id there. It becomes the GGUF file, or the folder of OpenVINO,
    that `spectune profile --engine` makes for itself and throws away; an exported command reads it. Nothing is
    overwritten.

    \b
        spectune convert path/to/target --engine llama.cpp
        spectune convert path/to/target --engine openvino --dtype float16 -o target.openvino
    """
    from ..engines.running import OWN_FORMS, convert_model, own_dtype
    from ..profiler.device import detect
    from ..profiler.hub import resolve_model
    from ..profiler.records.device import AUTO_DTYPE
    from ..profiler.snapshot import name_of

    written_in = own_dtype(engine, detect("cpu").native_dtype) if dtype == AUTO_DTYPE else dtype
    model = resolve_model(named)
    name = name_of(model.resolve())
    out = output or Path(f"{name}.{OWN_FORMS[engine].ending}")
    made = convert_model(engine, model, out, dtype=written_in)
    size = sum(file.stat().st_size for file in [made, *made.rglob("*")] if file.is_file())
    if as_json:
        print_json({"engine": engine, "model": named, "dtype": written_in, "written": str(made), "bytes": size})
    else:
        click.echo(f"{made}: {name} for {engine} in {written_in}, {size / 1e6:,.1f} MB")
    tell(settings, f"written to {made}; next: spectune profile --engine {engine} --target {made} --dtype {written_in}")
