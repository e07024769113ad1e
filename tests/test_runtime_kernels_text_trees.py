"""The kernels that copy out of texts compile for small and large GPUs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from spectune.runtime.models.kernels import text_copies, text_trees
from spectune.runtime.models.kernels.jitted import DeviceFunction, has_triton
from spectune.runtime.models.kernels.text_runs import told_in

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


@pytest.mark.skipif(not has_triton(), reason="needs triton")
@pytest.mark.parametrize("capability", [86, 90])
@pytest.mark.parametrize("name", KERNELS)
def test_they_compile(name: str, capability: int) -> None:
    compiler: Any = import_module("triton.compiler")  # untyped
    target = import_module("triton.backends.compiler").GPUTarget("cuda", capability, 32)
    (kernel, warps), fixed = KERNELS[name], {**FIXED[name], "is_chained": capability >= 90}
    made = kernel.made()
    types = {one: POINTERS.get(one, "i32") for one in made.arg_names if one not in fixed}
    source = compiler.ASTSource(made, {**types, **dict.fromkeys(fixed, "constexpr")}, fixed, {})
    compiled = compiler.compile(source, target=target, options={"num_warps": warps})
    waits = compiled.asm["ptx"].count("griddepcontrol.wait")
    assert compiled.metadata.num_warps == warps and waits == (capability >= 90)
