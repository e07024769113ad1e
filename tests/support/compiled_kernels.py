"""Kernels of ours compiled for a GPU that is not here."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from spectune.runtime.models.kernels.jitted import DeviceFunction

CAPABILITIES = (86, 90)  # without launches that begin early, and with them


def compiled_for(
    capability: int, kernel: DeviceFunction, pointers: Mapping[str, str], fixed: Mapping[str, Any], warps: int
) -> None:
    """Compile a chained kernel, and see that it takes its turn where launches begin early, and only there.

    Args:
        capability: of the GPU, 90 being 9.0.
        kernel: at a module's top level.
        pointers: Triton's kinds of those arguments that are tensors; others are whole numbers.
        fixed: what code is compiled for, besides whether the kernel is chained.
        warps: of a program.
    """
    compiler: Any = import_module("triton.compiler")  # untyped
    target = import_module("triton.backends.compiler").GPUTarget("cuda", capability, 32)
    told = {**fixed, "is_chained": capability >= 90}
    made = kernel.made()
    types = {one: pointers.get(one, "i32") for one in made.arg_names if one not in told}
    source = compiler.ASTSource(made, {**types, **dict.fromkeys(told, "constexpr")}, told, {})
    compiled = compiler.compile(source, target=target, options={"num_warps": warps})
    waits = compiled.asm["ptx"].count("griddepcontrol.wait")
    assert compiled.metadata.num_warps == warps and waits == (capability >= 90)
