"""How often drafted tokens of each kind of drafter are the target's, by depth, as others have published it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """Shares of drafted tokens that are the target's, given that those before them are; greedy, the first depth first.

    Depths beyond the last one are as that.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    source: str

    def at(self, depth: int) -> tuple[float, float]:
        """Return the lowest and the highest share at a depth, 1 being the first."""
        return tuple(part[min(depth, len(part)) - 1] for part in (self.low, self.high))  # type: ignore[return-value]


def _of_demo(kind: str, *shares: float) -> Usual:
    return Usual(low=shares, high=shares, source=f"demo/models/{kind}/card.md, small; none published by depth")


USUAL: Mapping[str, Usual] = {
    "draft": Usual(low=(0.5,), high=(0.9,), source="Leviathan et al. 2023, arXiv:2211.17192, Sec. 4.2"),
    "eagle": Usual(
        low=(0.74, 0.69, 0.65, 0.64, 0.64),
        high=(0.79, 0.74, 0.72, 0.74, 0.71),
        source="Li et al. 2024, arXiv:2401.15077, Table 2 (Vicuna, LLaMA2-Chat, T=0)",
    ),
    "eagle3": Usual(
        low=(0.58, 0.58, 0.64),  # 0.58, 0.34, 0.22 of all rounds
        high=(0.74,),  # 3.53 tokens a round by chains of 7
        source="vLLM #24243 (MiniCPM3) to vLLM #26191 (EAGLE3-LLaMA3.1-Instruct-8B, MT-bench)",
    ),
    "medusa": _of_demo("medusa", 0.364, 0.347, 0.598, 0.681),
    "ctc": _of_demo("ctc", 0.431, 0.303, 0.763, 0.690),
    "specformer": _of_demo("specformer", 0.457, 0.366, 0.700, 0.506),
    "dflash": Usual(
        low=(0.0,),  # none published by depth
        high=(0.85,),  # 6.24 tokens a round by blocks of 16
        source="arXiv:2610.00321 (Qwen3-8B, T=0)",
    ),
    "exit": _of_demo("exit", 0.406, 0.348, 0.850, 0.691),
    "recycling": Usual(
        low=(0.0,),  # nothing is known when a text begins
        high=(0.790, 0.853, 0.809, 0.838),
        source="demo/models/recycling/card.md, texts of 224 tokens; none published by depth",
    ),
}
