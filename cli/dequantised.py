"""What is said of GGUF files before our own decoder runs them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from .report import tell

if TYPE_CHECKING:
    from .report import Settings


def tell_dequantised(settings: Settings, models: Iterable[Path | str], dtype: str | None) -> None:
    """Say of each model in a GGUF file how its weights run, if not as stored; ModelError where it cannot be read."""
    from ..profiler.gguf_file import is_gguf, read_gguf
    from ..profiler.records.architecture import QUANTISED

    if dtype in QUANTISED:
        return
    for model in dict.fromkeys(Path(each) for each in models):
        if is_gguf(model) and model.is_file() and (reading := read_gguf(model).reading):
            tell(settings, f"{model.name}: {reading}")
