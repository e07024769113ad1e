"""The cells of a surface that could not run, and what they say of other shapes."""

from __future__ import annotations

from collections.abc import Iterable

from .measurement import Measurement


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
