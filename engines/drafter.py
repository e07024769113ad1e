"""A plan's drafters as an engine needs them: where each lies, and whether it is a head."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import RequestError
from ..planner.plans.plan import Plan
from ..profiler.records.role import BLOCK, HEAD, SELF
from ..profiler.snapshot import place_or_id, snapshot_at
from ..runtime.models.config_file import named_layers, own_config, own_kind, published_reads, written_config
from .setting import DrafterForm, EngineDrafter

JOINS = "fc.weight"  # a tensor that heads of EAGLE's forms have and language models do not
BIAS = "fc.bias"  # one that heads of form EAGLE have where they were trained as EAGLE-1 was published
FORMS: Mapping[str, DrafterForm] = {  # how tensors of their one layer begin
    "midlayer.": "eagle3",
    "layers.0.hidden_norm.": "eagle3",
    "layers.0.": "eagle",
}
CONFIG = "config.json"
MOST_HEADER_BYTES = 2**27
READS_OTHERWISE = (
    "{name} reads the target's states after {reads} layers, and engines read those after 2, L/2 and L - 3 of L; train "
    "one without --reads for them"
)
FILES_SAY = "the files of {name} say how an engine loads it; where they lie, run: spectune export"


def engine_drafters(plan: Plan, places: Mapping[str, Path], target: Path | None = None) -> dict[str, EngineDrafter]:
    """Return a plan's drafters by name."""
    large = _described(target, plan.target.location)
    layers, models = _number_in(large, "num_hidden_layers"), _models_in(plan)
    found = {}
    for name, model in plan.drafters:
        path = places.get(name, Path(model.location))
        files = _described(path, model.location)
        form = drafter_form(files, name in models)
        reads = own_reads(files, layers) if form == "eagle3" else ()
        found[name] = EngineDrafter(
            name=name,
            path=str(path),
            form="unknown" if reads else form,
            refused=READS_OTHERWISE.format(name=name, reads=", ".join(map(str, reads))) if reads else "",
            architecture=_architecture(files),
            has_bias=BIAS in set(_tensor_names(files)),
            tables=tables_of(files, large),
        )
    return found


def listed_drafters(plan: Plan) -> dict[str, EngineDrafter]:
    """Return a plan's drafters by name, as the plan alone describes them: no file is opened, and paths are names."""
    models = _models_in(plan)
    return {
        name: EngineDrafter(
            name=name,
            path=shared_name(model.location),
            form="model" if name in models else "unknown",
            refused="" if name in models else FILES_SAY.format(name=name),
        )
        for name, model in plan.drafters
    }


def shared_name(location: str) -> str:
    """Return what a model is called where its path means nothing: its id on the hub, else its folder or file."""
    return place_or_id(location) if snapshot_at(location) is not None else Path(location).name


def _models_in(plan: Plan) -> set[str]:
    """Return the drafters that draft from the text alone, as language models do."""
    beside_target = {surface.model for surface in plan.provenance.surfaces if surface.role in (HEAD, BLOCK, SELF)}
    follows_text = {trace.drafter: trace.prefix_exact for trace in plan.provenance.traces}
    return {name for name, model in plan.drafters if follows_text.get(name, True) and model.key not in beside_target}


def drafter_form(path: Path, follows_text: bool) -> DrafterForm:
    """Return a drafter's form by its tensors' names; `follows_text`: its drafts depend on the text alone."""
    names = set(_tensor_names(path))
    if JOINS in names:
        return next((form for start, form in FORMS.items() if any(n.startswith(start) for n in names)), "unknown")
    return "model" if follows_text and own_kind(path) is None else "unknown"  # only we run other kinds of our own


def require_language_model(name: str, path: Path, engine: str) -> None:
    """Raise RequestError for a drafter that is no language model by itself, by its files."""
    if drafter_form(path, follows_text=True) != "model":
        raise RequestError(
            f"{name} at {path} works beside its target and is no language model, and {engine} runs none but "
            "these here; leave it out"
        )


def own_reads(head: Path, layers: int | None) -> tuple[int, ...]:
    """Return the layers behind each state of an EAGLE-3 head, if engines read others; else none.

    Engines read those that a head's files name for them, else the states after 2, L/2 and L - 3 of L layers. `layers`
    is the target's; None: as many as the head's last state says.
    """
    reads, (named, _) = tuple(own_config(head).get("reads") or ()), named_layers(written_config(head))
    if not reads or named:
        return ()
    total = reads[-1] + 3 if layers is None else layers
    return () if reads == published_reads(total) else reads


def tables_of(drafter: Path, target: Path) -> tuple[int, int] | None:
    """Return the vocabulary sizes of a drafter and its target where both are known and differ."""
    rows, wanted = _number_in(drafter, "vocab_size"), _number_in(target, "vocab_size")
    return None if rows is None or wanted is None or rows == wanted else (rows, wanted)


def _described(place: Path | None, profiled: str) -> Path:
    return place if place is not None and (place / CONFIG).is_file() else Path(profiled)


def _number_in(model: Path, name: str) -> int | None:
    config = written_config(model)
    text = config.get("text_config")
    number = (text if isinstance(text, dict) else config).get(name)
    return number if isinstance(number, int) else None


def _architecture(model: Path) -> str:
    named = written_config(model).get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def _tensor_names(path: Path) -> Iterator[str]:
    for file in sorted(path.glob("*.safetensors")) if path.is_dir() else ():
        with file.open("rb") as opened:
            start = opened.read(8)
            size = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if 0 < size <= MOST_HEADER_BYTES:
                yield from json.loads(opened.read(size))
