"""Every check of files, in the order in which it is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from ...errors import SpectuneError
from .finding import DrafterFinding
from .format import check_format
from .layers import check_layers
from .numbers import check_numbers
from .pair import Pair
from .positions import check_positions
from .template import check_template
from .vocabulary import check_vocabulary
from .widths import check_widths

Check = Callable[[Pair], Iterator[DrafterFinding]]
CHECKS: tuple[Check, ...] = (
    check_format,
    check_numbers,
    check_widths,
    check_layers,
    check_vocabulary,
    check_template,
    check_positions,
)


def file_findings(name: str, target: Path, drafter: Path) -> Iterator[DrafterFinding]:
    """Yield what the files of a target and a drafter show; no weight is read.

    A check whose files cannot be read yields nothing: whoever loads them says what is wrong.
    """
    pair = Pair(name=name, target=target, drafter=drafter)
    for check in CHECKS:
        try:
            yield from check(pair)
        except (SpectuneError, OSError):
            continue
