"""Times as people read them."""

from __future__ import annotations

UNITS = (("s", 1e3), ("ms", 1.0), ("us", 1e-3), ("ns", 1e-6))  # and their milliseconds
LEAST_MS = 0.01  # shorter ones would be cut to nothing by two digits behind the point


def duration(ms: float) -> str:
    """Return a time with three digits, in the unit that suits it: "29.4 ns", "1.83 ms", "12.0 s"."""
    rounded = float(f"{ms:.3g}")
    name, unit_ms = next((unit for unit in UNITS if rounded >= unit[1]), UNITS[-1])
    return f"{rounded / unit_ms:#.3g} {name}".replace(". ", " ")


def milliseconds(ms: float) -> str:
    """Return a time in milliseconds with two digits behind the point, shorter ones as `duration` does."""
    return f"{ms:.2f} ms" if ms <= 0.0 or ms >= LEAST_MS else duration(ms)
