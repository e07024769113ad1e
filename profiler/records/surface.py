"""t(batch, context, tokens): what one forward costs on one device, and never a guess beyond what was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from ...errors import MeasurementError
from .measurement import NORMAL_FROM_MAD, Measurement
from .pooling import pooled_cells
from .role import Origin, origin_of, require_regime, require_role
from .rows import BatchRows

Source = Literal["measured", "interpolated", "estimated", "bound", "imported"]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """One looked-up cost and where it comes from."""

    ms: float
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaddedCosts:
    """Cost of n = 0..up_to tokens per sequence when a forward may run padded to a larger measured shape."""

    ms: Floats  # (up_to + 1,), entry 0 is 0.0
    run_tokens: Ints  # (up_to + 1,), the tokens per sequence to run for n; entry 0 is 0


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of at least one value lies, straight between ranks."""
    return float(np.quantile(np.asarray(values), share))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """A cell that is no part of its surface, and what the surface says of it."""

    cell: Measurement
    predicted_ms: float

    @property
    def error(self) -> float:
        """Return |predicted - measured| / measured."""
        return abs(self.predicted_ms / self.cell.median_ms - 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySurface:
    """Every cell measured for one model in one role on one device; cells are distinct, failures are among them."""

    device: str  # Device.fingerprint
    model: str  # ModelIdentity.key
    role: str  # what the forwards were for; see role.py
    regime: str  # how it ran; see role.py
    dtype: str
    measurements: tuple[Measurement, ...]
    attention: str = ""  # the attention kernel, e.g. "sdpa"; "" where it is not known
    _grid: dict[int, BatchRows] = field(init=False, repr=False, compare=False)
    _failures: Failures = field(init=False, repr=False, compare=False)
    _margins: list[float] = field(init=False, repr=False, compare=False)  # of padding, once it was asked for

    def __post_init__(self) -> None:
        require_role(self.role)
        require_regime(self.regime)
        if not (self.device and self.model and self.dtype and self.measurements):
            raise MeasurementError("a surface needs device, model, dtype and at least one measurement")
        cells = [(cell.batch, cell.context_tokens, cell.tokens) for cell in self.measurements]
        if len(set(cells)) < len(cells):
            twice = next(cell for cell in cells if cells.count(cell) > 1)
            raise MeasurementError(f"(batch, context, tokens) = {twice} occurs twice in one surface; keep one of them")
        object.__setattr__(self, "_grid", _grid_of(self.measurements))
        object.__setattr__(self, "_failures", Failures(self.measurements))
        object.__setattr__(self, "_margins", [])

    @property
    def origin(self) -> Origin:
        """Where the numbers come from: measured here, imported, estimated, or a bound."""
        return origin_of(self.regime)

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes with at least one cell that ran, ascending."""
        return tuple(sorted(self._grid))

    def full_contexts(self, batches: Sequence[int]) -> tuple[int, ...]:
        """Return the contexts tried from the fewest tokens to the most at all of these batches that ran, ascending.

        Something must have run at the smallest batch (see `barred`). Several batches may share none; one falls back to
        its first and last context. Without a batch that ran, all that did count, or MeasurementError.
        """
        self.require_ran()
        known = sorted({*batches} & {*self._grid}) or list(self.batches)
        spans = [
            {c for c in self._grid[b].contexts if self._grid[b].spans(c)} | self._failures.cut_contexts(b)
            for b in known
        ]
        first = self.contexts(known[0])
        common = sorted(set(first).intersection(*spans))
        return tuple(common) if common or len(known) > 1 else first[:: max(1, len(first) - 1)]

    def require_ran(self) -> None:
        """Raise MeasurementError where no cell of the surface ran, held-out ones aside."""
        if not self._grid:
            why = next((cell.failure for cell in self.measurements if cell.failure), "none was tried")
            raise MeasurementError(
                f"no shape could run ({self._name}): {why}; ask for shorter contexts or smaller batches"
            )

    def all_failed(self, batch: int) -> dict[int, str]:
        """Return the contexts at which all forwards of a batch failed, ascending, and why the smallest did."""
        return self._failures.everywhere(batch)

    def barred(self, batch: int, context: int) -> str | None:
        """Return why all of a batch failed at a context, or at a shorter one behind its last; None where it did not."""
        last = self.contexts(batch)[-1] if batch in self._grid else -1
        for failed, why in self.all_failed(batch).items():
            if failed == context or last < failed < context:
                return f"no forward of batch {batch} ran at context {failed} ({self._name}): {why}"
        return None

    def contexts(self, batch: int) -> tuple[int, ...]:
        """Return the context lengths measured at a batch size, ascending; raise MeasurementError for another batch."""
        return tuple(self._at(batch).contexts)

    def latency(self, batch: int, context: int, tokens: int) -> Latency:
        """Return the cost of one forward of `tokens` tokens per sequence behind `context` committed tokens.

        Measured cells count as measured, pooled where calls are few and long (`pooling.py`); between them the best row
        of tokens plus how its context differs (`rows.py`). `source` names the origin of other surfaces than measured
        ones. MeasurementError where the batch was not measured, the point is out of range, or it or a smaller one
        failed.
        """
        rows = self._at(batch)
        self._refuse_failed(batch, context, tokens)
        ms = rows.ms(context, tokens)
        if ms is None:
            self._outside(batch, context, tokens)
        is_cell = rows.measured(context, tokens) is not None
        source: Source = "measured" if is_cell else "interpolated"
        return Latency(ms=ms, source=source if self.origin == "measured" else self.origin)

    def table(self, batch: int, context: int, up_to: int) -> Floats:
        """Return (up_to + 1,) ms of n = 0..up_to tokens, unpadded, entry 0 is 0.0; MeasurementError out of range."""
        _check_up_to(up_to)
        return np.array([0.0] + [self.latency(batch, context, tokens).ms for tokens in range(1, up_to + 1)])

    def padded(self, batch: int, context: int, up_to: int) -> PaddedCosts:
        """Return t*(n) = min of t(n) and t(n') over measured n' > n, for n = 0..up_to, and the shape that gives it.

        Padding must gain more than the cells' noise: the cheapest of many is else the luckiest. Failed shapes do not
        count. MeasurementError: no measured shape holds up_to tokens, or batch or context are outside the range.
        """
        _check_up_to(up_to)
        rows = self._at(batch)
        own = {tokens: self._cost(batch, context, tokens) for tokens in range(1, max(rows.tokens) + 1)}
        largest = max((tokens for tokens, cost in own.items() if cost is not None), default=0)
        if largest < up_to:
            self._outside(batch, context, up_to)
        ms, run_tokens = np.zeros(up_to + 1), np.zeros(up_to + 1, dtype=np.int64)
        cheapest, cheapest_shape, measured = math.inf, 0, set(rows.tokens)
        clearly = 1.0 - self._padding_margin()
        for tokens in range(largest, 0, -1):
            cost = own[tokens]
            is_padded = cost is None or cheapest < cost * clearly
            if tokens <= up_to:
                ms[tokens] = cheapest if cost is None or is_padded else cost
                run_tokens[tokens] = cheapest_shape if is_padded else tokens
            if cost is not None and tokens in measured and cost <= cheapest:  # an equal cost goes to the smaller shape
                cheapest, cheapest_shape = cost, tokens
        return PaddedCosts(ms=ms, run_tokens=run_tokens)

    def relative_error(self) -> float:
        """Return the median over cells of the median's relative error; MeasurementError where all failed."""
        ran = self._ran()
        if not ran:
            raise MeasurementError(f"all {len(self.measurements)} cells failed; {self.measurements[0].failure}")
        return statistics.median(cell.spread_ms / cell.median_ms for cell in ran)

    def held_out(self) -> tuple[HeldOut, ...]:
        """Return what the surface says of each held-out cell beside what was measured; a failure says nothing."""
        judged = [cell for cell in self.measurements if cell.purpose == "held-out" and cell.failure is None]
        predicted = [(cell, self._cost(cell.batch, cell.context_tokens, cell.tokens)) for cell in judged]
        return tuple(HeldOut(cell=cell, predicted_ms=ms) for cell, ms in predicted if ms is not None)

    def repeat_noise(self) -> tuple[float, ...]:
        """Return sentinels' (else revisited cells') relative distances from their median, ascending, without drift."""
        cells = [cell for cell in self._ran() if len(cell.steady_ms) >= 3]
        sentinels = [cell for cell in cells if cell.purpose == "sentinel"] or cells
        return tuple(sorted(abs(ms / cell.median_ms - 1.0) for cell in sentinels for ms in cell.steady_ms))

    def drift(self) -> float:
        """Return the relative standard deviation of the device's speed, robust to stalled parts; 0 where not known."""
        apart = [abs(factor - 1.0) for cell in self._ran() for factor in cell.drift]
        return NORMAL_FROM_MAD * statistics.median(apart) if apart else 0.0

    def _ran(self) -> list[Measurement]:
        return [cell for cell in self.measurements if cell.failure is None]

    def _padding_margin(self) -> float:
        if not self._margins:
            error = self.relative_error()
            self._margins.append(2.0 * error if math.isfinite(error) else 0.0)
        return self._margins[0]

    def _cost(self, batch: int, context: int, tokens: int) -> float | None:
        try:
            return self.latency(batch, context, tokens).ms
        except MeasurementError:
            return None

    def _at(self, batch: int) -> BatchRows:
        if batch not in self._grid:
            raise MeasurementError(f"batch {batch} was not measured ({self._name}); measured: {list(self.batches)}")
        return self._grid[batch]

    def _refuse_failed(self, batch: int, context: int, tokens: int) -> None:
        """Refuse a shape that failed, or that is no smaller than one while nothing as large was seen to run."""
        cell = self._failures.ruling_out(batch, context, tokens)
        if cell is not None:
            named = f"batch {batch}, context {cell.context_tokens}, tokens {cell.tokens}"
            raise MeasurementError(f"{named} could not run ({self._name}): {cell.failure}; choose another shape")

    def _outside(self, batch: int, context: int, tokens: int) -> NoReturn:
        rows = self._at(batch)
        covering, counts = rows.covering(tokens), rows.tokens
        of_tokens = f"tokens {counts[0]}..{counts[-1]}"
        of_context = f"{tokens} tokens at context {covering[0]}..{covering[-1]}" if covering else ""
        raise MeasurementError(
            f"batch {batch}, context {context}, tokens {tokens} lies outside what was measured ({self._name}): "
            f"{of_context or of_tokens}; profile that shape first"
        )

    @property
    def _name(self) -> str:
        return f"{self.role} of {self.model}, {self.regime}, {self.dtype}"


def _grid_of(measurements: Iterable[Measurement]) -> dict[int, BatchRows]:
    cells = [cell for cell in measurements if cell.failure is None and cell.purpose != "held-out"]
    grid: dict[int, dict[int, dict[int, float]]] = {}
    for cell, ms in zip(cells, pooled_cells(cells), strict=True):
        grid.setdefault(cell.batch, {}).setdefault(cell.context_tokens, {})[cell.tokens] = float(ms)
    return {batch: BatchRows(rows) for batch, rows in grid.items()}


def _check_up_to(up_to: int) -> None:
    if up_to < 0:
        raise MeasurementError(f"up_to must be at least 0, got {up_to}")


class Failures:
    """Failed cells by batch, beside those that ran; held-out ones tell only of their own and of larger shapes."""

    def __init__(self, measurements: Iterable[Measurement]) -> None:
        self._failed: dict[int, list[Measurement]] = {}
        self._ran: dict[int, list[Measurement]] = {}
        for cell in measurements:
            (self._failed if cell.failure else self._ran).setdefault(cell.batch, []).append(cell)

    def ruling_out(self, batch: int, context: int, tokens: int) -> Measurement | None:
        """Return the failure that a shape is, or is no smaller than while nothing as large ran; None without one."""
        for cell in self._failed.get(batch, ()):
            is_itself = (cell.context_tokens, cell.tokens) == (context, tokens)
            is_below = cell.context_tokens <= context and cell.tokens <= tokens
            if is_itself or (is_below and not self._ran_as_large(batch, context, tokens)):
                return cell
        return None

    def everywhere(self, batch: int) -> dict[int, str]:
        """Return the contexts at which all of a batch failed, ascending, and why the smallest of their cells did."""
        ran = {cell.context_tokens for cell in _designed(self._ran, batch)}
        failed = [cell for cell in _designed(self._failed, batch) if cell.context_tokens not in ran]
        ordered = sorted(failed, key=lambda cell: (cell.context_tokens, -cell.tokens))
        return {cell.context_tokens: cell.failure or "" for cell in ordered}  # the last, smallest one of each stands

    def cut_contexts(self, batch: int) -> set[int]:
        """Return the contexts where a batch was tried from its fewest tokens to its most, and a part of that failed."""
        ran, failed = _designed(self._ran, batch), _designed(self._failed, batch)
        widths = [cell.tokens for cell in ran]
        tried: dict[int, list[int]] = {}
        for cell in (*ran, *failed):
            tried.setdefault(cell.context_tokens, []).append(cell.tokens)
        cut = {cell.context_tokens for cell in failed}
        return {c for c in cut if widths and min(tried[c]) <= min(widths) and max(tried[c]) >= max(widths)}

    def _ran_as_large(self, batch: int, context: int, tokens: int) -> bool:
        return any(cell.context_tokens >= context and cell.tokens >= tokens for cell in self._ran.get(batch, ()))


def _designed(cells: dict[int, list[Measurement]], batch: int) -> list[Measurement]:
    """Return a batch's cells but the held-out ones, which are drawn by chance."""
    return [cell for cell in cells.get(batch, ()) if cell.purpose != "held-out"]
