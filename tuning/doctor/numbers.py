"""The number formats of a drafter's weights, and their quantisation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...profiler.gguf_file import is_gguf, read_gguf
from ...runtime.models.checkpoint import strange_scales
from .finding import DrafterFinding
from .pair import Pair

EIGHT_BITS = ("F8_E4M3", "F8_E5M2", "I8", "U8")


def check_numbers(pair: Pair) -> Iterator[DrafterFinding]:
    """Yield the number formats; weights in eight bits without what they are scaled by are broken."""
    if is_gguf(pair.drafter):
        file = read_gguf(pair.drafter)
        yield DrafterFinding(check="numbers", seen=f"{file.format}{f', {file.reading}' if file.reading else ''}")
        return
    weights = {name: one for name, one in pair.stored.items() if name.endswith(("weight", "bias"))}
    small = sorted(name for name, one in weights.items() if one.dtype in EIGHT_BITS)
    counts = Counter(one.dtype for one in weights.values())
    seen = ", ".join(f"{count} tensors {dtype}" for dtype, count in counts.most_common())
    scales, method = strange_scales(pair.stored), pair.written.get("quantization_config")
    if small and not scales:
        yield DrafterFinding(
            check="numbers",
            seen=f"{seen}: {small[0]} has eight bits and no scale beside it",
            severity="broken",
            advice="export it with its scales, or in bfloat16",
        )
    elif scales and pair.role == "head":
        yield DrafterFinding(
            check="numbers",
            seen=f"{seen}, with scales such as {sorted(scales)[0]}, which are not read",
            severity="broken",
            advice="dequantise the head to bfloat16",
        )
    elif seen:
        kind = method.get("quant_method") if isinstance(method, dict) else None
        yield DrafterFinding(check="numbers", seen=f"{seen}, quantised by {kind}" if kind else seen)
