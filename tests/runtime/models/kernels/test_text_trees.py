"""The kernels that copy out of texts compile for small and large GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from spectune.runtime.models.kernels import text_copies, text_trees
from spectune.runtime.models.kernels.jitted import DeviceFunction, has_triton
from spectune.runtime.models.kernels.text_runs import told_in

from ....support.compiled_kernels import CAPABILITIES, compiled_for

POINTERS = {
    **dict.fromkeys(("state", "keys", "lengths", "trees", "drafted", "numbers"), "*i64"),
    **dict.fromkeys(("texts", "runs", "ends", "slots", "lines"), "*i32"),
    **dict.fromkeys(("chances", "found"), "*fp64"),
    "is_live": "*i1",
}
TOLD = told_in(48)
SIZES = {
    **{"longest": text_trees.LONGEST, "programs": text_trees.PROGRAMS, "most_places": text_trees.MOST_PLACES},
    **{"most_listed": text_trees.LISTED, "deepest": 64, "tile": text_trees.TILE, "places": TOLD["places"]},
}
FIXED: dict[str, dict[str, Any]] = {
    "_copy": {**TOLD, "is_first": False, "goes_on": True, "has_model": True, "padded": 64},
    "_find_ends": {**TOLD, "longest": text_trees.LONGEST},
    "_grow": {
        **SIZES,
        "places": TOLD["places"],
        "most_listed": text_trees.LISTED,
        "deepest": 64,
        "tile": text_trees.TILE,
    },
    "_choose": {"has_model": True, "programs": text_trees.PROGRAMS, "padded": 64},
}
KERNELS: dict[str, tuple[DeviceFunction, int]] = {
    "_copy": (text_copies._copy, text_copies.WARPS),
    "_find_ends": (text_trees._find_ends, text_trees.WARPS),
    "_grow": (text_trees._grow, text_trees.GROWING_WARPS),
    "_choose": (text_trees._choose, 1),
}


@pytest.mark.thinned
@pytest.mark.skipif(not has_triton(), reason="needs triton")
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", KERNELS)
def test_they_compile(name: str, capability: int) -> None:
    kernel, warps = KERNELS[name]
    compiled_for(capability, kernel, POINTERS, FIXED[name], warps)
