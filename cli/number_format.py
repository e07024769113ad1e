"""Number formats by the names that people type."""

from __future__ import annotations

import click

OTHER_NAMES = {
    **dict.fromkeys(("bf16",), "bfloat16"),
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("fp32", "f32", "float", "single"), "float32"),
    **dict.fromkeys(("fp64", "f64", "double"), "float64"),
}


class NumberFormat(click.Choice[str]):
    """A number format; bf16, fp16 and fp32 are read as bfloat16, float16 and float32."""

    name = "number format"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the format's own name."""
        name = value.lower().removeprefix("torch.")
        return super().convert(OTHER_NAMES.get(name, name), param, ctx)
