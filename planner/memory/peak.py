"""What decoding by a policy takes of memory at its peak: weights, caches, masks, and the largest forward's own results.

    peak     = held + the most that any forward has alive at once
    held     = weights and tables of target and drafters + slots * capacity * (key-value bytes per token of all) + masks
    capacity = context + what a round drafts or verifies at most + 1
    forward  = max(rows * row_bytes + pairs * pair_bytes,  rows * vocabulary * bytes per logit)

A forward peaks inside a layer and where tokens are drawn from its logits. A pair is a fed token and a cache position in
its sight; masks have an entry for each. For drafters beside their target (heads, exits) see `beside.py`. Bytes are
those of torch's allocator, for the lean forward run eagerly, with cuBLAS's workspace on a GPU; libraries' own maps and
CUDA graphs are not included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..pricing.cells import Cell
from ..records.footprint import Footprint
from ..records.room import masked_tokens
from ..strategies import TreePolicy, drafting
from ..strategies.naming import LOOKUP
from ..strategies.stack import StackPolicy
from .drafting import DRAWN, NOISE, PIECE, answering, are_read_in_place, drafting_bytes, fed_pairs, inside
from .load import Load, load_of

if TYPE_CHECKING:
    from ...profiler.records.device import Device
    from ..inputs import PlanInputs
    from ..plans.plan import PlanCell

HOPPER_WORKSPACE, OLDER_WORKSPACE = 32 * 2**20, 8320 * 2**10  # bytes


def memory_bytes(
    cell: Cell, policy: TreePolicy, drafter: str | None, inputs: PlanInputs, run_tokens: Sequence[int] = ()
) -> int | None:
    """Return the peak of decoding by a policy in a cell; None where a model's footprint is not known.

    `drafter` is a name among the inputs' drafters, of a stack, "lookup", or None. `run_tokens` (index = tokens in the
    tree, value = tokens fed) is given where a round runs padded.
    """
    drafts = drafting(policy)
    names = drafts.models if isinstance(drafts, StackPolicy) else [drafter]
    keys = [inputs.drafter(name).model.key for name in names if name not in (None, LOOKUP)]
    if any(key not in inputs.footprints for key in (inputs.target.key, *keys)):
        return None
    return peak_bytes(
        inputs.footprints[inputs.target.key],
        [inputs.footprints[key] for key in keys],
        load_of(cell, policy, run_tokens),
        device_kind=inputs.device.kind,
        is_sampled=inputs.temperature > 0,
        library_bytes=workspace_bytes(inputs.device),
    )


def plan_bytes(cells: Sequence[PlanCell], inputs: PlanInputs) -> int | None:
    """Return the peak of a decoder of all cells: every drafter, most sequences and tokens; None without footprints."""
    most = Cell(batch=max(cell.batch for cell in cells), context=max(cell.context for cell in cells))
    names = dict.fromkeys(name for cell in cells for name in cell.drafters if name != LOOKUP)
    keys = [inputs.drafter(name).model.key for name in names]
    if any(key not in inputs.footprints for key in (inputs.target.key, *keys)):
        return None
    drafters = [inputs.footprints[key] for key in keys]
    return max(
        peak_bytes(
            inputs.footprints[inputs.target.key],
            drafters,
            load_of(most, cell.policy, cell.run_tokens),
            device_kind=inputs.device.kind,
            is_sampled=inputs.temperature > 0,
            library_bytes=workspace_bytes(inputs.device),
        )
        for cell in cells
    )


def workspace_bytes(device: Device) -> int:
    """Return cuBLAS's workspace: torch gives it 32 MiB from Hopper on and 8.125 MiB before; nothing on a CPU.

    Source: PyTorch's documentation of CUBLAS_WORKSPACE_CONFIG.
    """
    if device.kind == "cpu":
        return 0
    return HOPPER_WORKSPACE if float(device.compute_capability or "9.0") >= 9.0 else OLDER_WORKSPACE


def peak_bytes(
    target: Footprint,
    drafters: Sequence[Footprint],
    load: Load,
    *,
    device_kind: str,
    is_sampled: bool,
    library_bytes: int = 0,
) -> int:
    """Return the most bytes that a decoder's tensors take at once.

    `is_sampled`: some request has a temperature above 0; `library_bytes` of torch's allocator are the libraries'.
    """
    if device_kind != "cpu":
        target, *drafters = (replace(model, widened_bytes=0, halved_bytes=0) for model in (target, *drafters))
    tapped = [drafter.beside for drafter in drafters if drafter.beside is not None]
    waiting, kept = sum(one.waiting_bytes for one in tapped), sum(one.answering_bytes for one in tapped)
    rows, piece = load.slots * load.verify_tokens, min(PIECE, load.prompt_tokens)
    held = library_bytes
    held += sum(_held(model, device_kind) + load.slots * _cached(model, load.capacity) for model in (target, *drafters))
    held += load.slots * load.capacity * sum(one.tapped_bytes for one in tapped)
    held += load.slots * load.resumed_tokens * sum(one.state_bytes for one in tapped)
    held += load.slots * masked_tokens(load.verify_tokens) * load.capacity * target.number_bytes
    held += sum(fed_pairs(drafter, load) * drafter.number_bytes for drafter in drafters)
    prompt_mask = piece * load.prompt_tokens * target.number_bytes  # its own, while it is read
    forwards = [
        prompt_mask + piece * waiting + inside(target, piece, piece * load.prompt_tokens),
        rows * waiting + inside(target, rows, rows * load.capacity),
        answering(target, rows, kept),
        _drawing_bytes(target, load, device_kind, is_sampled),
        target.looking_bytes,
    ]
    return held + max(
        *forwards,
        *(drafting_bytes(drafter, load, device_kind=device_kind, is_sampled=is_sampled) for drafter in drafters),
    )


def _held(model: Footprint, device_kind: str) -> int:
    """Return a model's weights and tables; a tied head in oneDNN's layout or in halves is a second token table."""
    again = model.tied_head_bytes if device_kind == "cpu" else 0
    return model.weight_bytes + model.table_bytes + again - model.halved_bytes


def _cached(model: Footprint, capacity: int) -> int:
    """Return a sequence's keys and values, and the features that a head keeps with them."""
    further = 0 if model.beside is None else model.beside.further_positions
    return (capacity + further) * model.kv_bytes_per_token


def _drawing_bytes(model: Footprint, load: Load, device_kind: str, is_sampled: bool) -> int:
    """Return what drawing from the target's logits takes, themselves included.

    Compiled calls draw from logits in place; a repetition penalty, which no plan has, is not included. Elsewhere noise
    is made once per place in the text, and spread over the tokens there.
    """
    logits = load.slots * load.verify_tokens * model.vocabulary
    if not is_sampled or (are_read_in_place(model, device_kind) and not load.is_lossy):
        return logits * model.number_bytes
    made = load.slots * load.verify_depths * model.vocabulary
    return logits * (model.number_bytes + DRAWN) + max(NOISE[device_kind] * made, DRAWN * (made + 2 * logits))
