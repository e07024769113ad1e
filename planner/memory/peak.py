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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..pricing.cells import Cell
from ..records.beside import Beside, BlockMemory, LookedUp
from ..records.footprint import MOST_ROWS, Footprint
from ..records.room import masked_tokens
from ..strategies import TreePolicy, drafting
from ..strategies.lossy import LossyPolicy
from ..strategies.naming import LOOKUP
from ..strategies.stack import StackPolicy

if TYPE_CHECKING:
    from ...profiler.records.device import Device
    from ..inputs import PlanInputs
    from ..plans.plan import PlanCell


HOPPER_WORKSPACE, OLDER_WORKSPACE = 32 * 2**20, 8320 * 2**10  # bytes


def memory_bytes(
    cell: Cell, policy: TreePolicy, drafter: str | None, inputs: PlanInputs, run_tokens: Sequence[int] = ()
) -> int | None:
    """Return the peak of decoding by a policy in a cell; None where a model's footprint is not known."""
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


PIECE = 512  # most tokens of a prompt that are read at once
DRAWN = 4  # bytes of a number that tokens are drawn or chosen by
NOISE = {"cpu": DRAWN, "cuda": 24}  # bytes alive at once for each number of noise: by torch three of 64 bits


def drafting_bytes(model: Footprint, load: Load, *, device_kind: str, is_sampled: bool) -> int:
    """Return what the largest forward of a drafter has alive at once, the choice among its scores included."""
    beside = model.beside or Beside()
    if beside.looked_up is not None:
        return _looking(beside, beside.looked_up, load)
    piece = min(PIECE, load.prompt_tokens) if beside.has_own_text else 0
    unread = load.slots * unread_tokens(model, load)
    read_bytes = beside.read_bytes or model.row_bytes
    forwards = [
        piece * read_bytes + piece * load.prompt_tokens * model.pair_bytes + widened(model, piece),
        unread * read_bytes + unread * load.capacity * model.pair_bytes + widened(model, unread),
        unread * load.capacity * beside.sight_bytes,
    ]
    if beside.said is None:
        rows = load.slots * load.layer_tokens
        pairs = rows * load.capacity
        forwards += [inside(model, rows, pairs), pairs * beside.sight_bytes]
        return max(*forwards, answering(model, rows), _scoring(model, load, device_kind, is_sampled))
    forwards += [
        piece * beside.carried_bytes + _saying(model, beside.said, 1, load),
        unread * beside.carried_bytes + _saying(model, beside.said, load.slots, load),
        _asking(model, beside.said, load, device_kind, is_sampled),
    ]
    return max(forwards)


def are_read_in_place(model: Footprint, device_kind: str) -> bool:
    """Whether scores are read as they lie, by compiled calls: elsewhere they become float32 first."""
    return device_kind == "cpu" and model.number_bytes <= DRAWN


def inside(model: Footprint, rows: int, pairs: int) -> int:
    """Return the bytes alive inside a layer of `rows` fed tokens; a pair is a fed token and a position in its sight."""
    return rows * model.row_bytes + pairs * model.pair_bytes + widened(model, rows)


def answering(model: Footprint, rows: int, beside_bytes: int = 0) -> int:
    """Return the bytes alive where `rows` tokens get logits, with them; `beside_bytes` of each are for drafters."""
    each = model.vocabulary * model.number_bytes + model.left_bytes + beside_bytes
    return rows * each + widened(model, rows)


def widened(model: Footprint, rows: int) -> int:
    """Return what a product of so many rows takes where weights are stored as halves."""
    return model.widened_bytes if rows > MOST_ROWS else 0


def fed_pairs(model: Footprint, load: Load) -> int:
    """Return the most pairs that a drafter's masks have room for; they see the whole cache from the first."""
    beside = model.beside or Beside()
    piece = min(PIECE, load.prompt_tokens) if beside.has_own_text else 0
    is_fed = beside.said is None and beside.looked_up is None
    layer = load.layer_tokens if is_fed else 0
    together = max(layer, unread_tokens(model, load))
    return max(masked_tokens(piece), load.slots * masked_tokens(together)) * load.capacity


def unread_tokens(model: Footprint, load: Load) -> int:
    """Return the most committed tokens per sequence that a drafter reads before it drafts: an exit reads the newest."""
    has_own_text = model.beside is None or model.beside.has_own_text
    return load.unread_tokens if has_own_text else min(1, load.unread_tokens)


def _scoring(model: Footprint, load: Load, device_kind: str, is_sampled: bool) -> int:
    in_place, noise = are_read_in_place(model, device_kind), NOISE[device_kind]
    copied = DRAWN if model.number_bytes < DRAWN else 0
    logits, scored = (load.slots * tokens * model.vocabulary for tokens in (load.layer_tokens, load.scored_tokens))
    if load.is_ranked and in_place and is_sampled:  # taken out of the logits; over the temperature, and noise
        return logits * model.number_bytes + scored * (model.number_bytes + 2 * DRAWN)
    if load.is_ranked:
        chosen = scored * (model.number_bytes + copied)  # taken out of the logits, and in float32
        return logits * model.number_bytes + chosen + (max(noise * scored, 3 * DRAWN * scored) if is_sampled else 0)
    if in_place and is_sampled:  # over the temperature, and with noise, which is made once for a text
        return logits * (model.number_bytes + 2 * DRAWN) + load.slots * model.vocabulary * noise
    scored_from = DRAWN if is_sampled else 0 if in_place else copied
    return logits * (model.number_bytes + scored_from + (0 if in_place else DRAWN))


def _saying(model: Footprint, said: BlockMemory, slots: int, load: Load) -> int:
    """Return what the forward of a block drafter has alive at once behind so many texts."""
    places, seen = slots * said.places, load.capacity + said.places
    masked = model.number_bytes * seen if said.pair_bytes else 0  # its own mask outlives its layer
    return places * max(said.row_bytes + seen * said.pair_bytes, said.made_bytes + masked)


def _looking(beside: Beside, looked_up: LookedUp, load: Load) -> int:
    """Return what reading committed text takes, or looking a layer's nodes up, where no layer is a forward."""
    nodes = load.slots * load.layer_tokens
    read = max(min(PIECE, load.prompt_tokens), load.slots * load.unread_tokens)
    chosen = min(looked_up.piece_tokens, read) * looked_up.logit_bytes
    return max(
        read * (looked_up.row_bytes + looked_up.kept_bytes) + max(chosen, read * looked_up.kept_bytes),
        nodes * (load.prompt_tokens * beside.sight_bytes + looked_up.found_bytes),
    )


def _asking(model: Footprint, said: BlockMemory, load: Load, device_kind: str, is_sampled: bool) -> int:
    """Return what growing a layer on a block drafter's answer takes; the answer stays until the tree is done."""
    kept = load.slots * said.places * said.kept_bytes
    rows = load.slots * (load.layer_tokens if said.asked_bytes else min(1, load.layer_tokens))
    scores = rows * model.vocabulary
    is_apart = said.asked_bytes or model.number_bytes < DRAWN or not is_sampled
    copied = DRAWN if is_apart else 0  # the scores of one layer, in float32, taken out of what was said
    if are_read_in_place(model, device_kind) and not (said.asked_bytes or is_sampled):
        return kept + 2 * scores * model.number_bytes  # taken out of what was said, and laid side by side
    chosen = scores * (copied + DRAWN)
    if is_sampled:
        made = load.slots * model.vocabulary
        chosen = scores * (copied + DRAWN) + max(NOISE[device_kind] * made, DRAWN * scores)
    return kept + max(rows * said.asked_bytes, chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The most that a decoder holds and feeds at once."""

    slots: int  # sequences
    capacity: int  # cache positions of each
    prompt_tokens: int  # of the longest prompt
    verify_tokens: int  # per sequence, root and padding included
    verify_depths: int = 1  # different places in the text that these tokens stand at
    layer_tokens: int = 0  # per sequence, in the widest forward of a drafter; 0 without a drafting model
    scored_tokens: int = 0  # of these, those whose scores are looked at
    is_ranked: bool = False  # those forwards are asked for their best tokens alone, not for probabilities
    unread_tokens: int = 0  # per sequence, committed since the drafter last read, that it reads together
    is_lossy: bool = False  # another rule than the target's own draws reads its scores
    resumed_tokens: int = 0  # per sequence, of a verification that goes on from states that an exit keeps


def load_of(cell: Cell, policy: TreePolicy, run_tokens: Sequence[int] = ()) -> Load:
    """Return what a policy holds and feeds in a cell, the cell's context being taken for the longest prompt."""
    verified, drafts = policy.max_verify_tokens, drafting(policy)
    fed = max(verified, *run_tokens[: verified + 1], 1)
    return Load(
        slots=cell.batch,
        capacity=cell.context + max(policy.draft_room(cell.batch), fed) + 1,
        prompt_tokens=cell.context,
        verify_tokens=fed,
        verify_depths=1 + policy.bounds.depth,
        layer_tokens=policy.widest_layer,
        scored_tokens=drafts.max_chain + 1 if isinstance(drafts, StackPolicy) else policy.widest_layer,
        is_ranked=isinstance(drafts, StackPolicy),
        unread_tokens=policy.most_unread,
        is_lossy=isinstance(policy, LossyPolicy),
        resumed_tokens=fed if policy.kind == "resumed" else 0,
    )
