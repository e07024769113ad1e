"""The target's layers whose states a drafter reads."""

from __future__ import annotations

from collections.abc import Iterator

from ...runtime.models.config_file import DFLASH, LAYER_IDS, OWN
from ...runtime.models.drafter_shapes import block_shape, is_block
from .finding import DrafterFinding
from .pair import Pair


def check_layers(pair: Pair) -> Iterator[DrafterFinding]:
    """Yield the layers that are read; such as the target does not have are broken."""
    if pair.role == "head":
        reads = pair.head.reads_of(pair.sizes.layers)
        whence = "as its config.json says" if pair.head.reads else f"as published: its config.json has no {LAYER_IDS}"
    elif is_block(pair.drafter):
        shape = block_shape(pair.drafter)
        whence = f"as {DFLASH}'s config.json says" if shape.kind == "dflash" else f"as {OWN}.reads says"
        reads = shape.reads
    else:
        return
    shown, layers = ", ".join(map(str, reads)), pair.sizes.layers
    if not 0 <= min(reads) <= max(reads) <= layers:
        yield DrafterFinding(
            check="layers",
            seen=f"reads states after {shown} layers, and the target has {layers}",
            severity="broken",
            advice="give the drafter of this target, or mend the layers in its config.json",
        )
    else:
        yield DrafterFinding(check="layers", seen=f"reads states after {shown} of {layers} layers, {whence}")
