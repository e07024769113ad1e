"""One runner over several processes: rank 0 is timed, the others run the same forwards beside it.

A forward under tensor parallelism ends only when all ranks have run it. So the others do not wait for orders: they
enter the current shape's next forward at once and meet rank 0 in its first exchange, at no cost to the timed call. To
change the shape, rank 0 writes which forward will be the first of the new one, then runs the pending one of the old
shape, untimed. Give a session `prepared=1`, so that no pending forward runs inside a timed call.

All must be on one host. A forward that fails on one rank leaves the others waiting, until torchrun ends all processes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch.distributed
from numpy.typing import NDArray

from ...errors import MeasurementError
from .forwards import ForwardShapes

Shape = tuple[int, int, int]  # (batch, context_tokens, tokens)
FIRST: Shape = (1, 0, 1)  # what all ranks begin with
END: Shape = (0, 0, 0)
MOST_ORDERS = 2**16


class LockstepShapes:
    """Rank 0's runner; every other rank is in `follow` with the same arguments."""

    def __init__(self, runner: ForwardShapes) -> None:
        """Meet the other ranks."""
        self.identity, self.dtype, self.role = runner.identity, runner.dtype, runner.role
        self.regime, self.attention = runner.regime, runner.attention
        self._runner = runner
        self._orders, self._given = _shared_orders(), 0
        self._shape, self._call, self._runs = FIRST, runner.prepare(*FIRST), 0

    def prepare(self, batch: int, context_tokens: int, tokens: int) -> Callable[[], None]:
        """Return a call that runs one forward of the shape on all ranks.

        MeasurementError where the shape does not fit; the other ranks do not change then.
        """
        shape = (batch, context_tokens, tokens)
        call = self._runner.prepare(*shape)
        self._turn_to(shape, call)

        def run() -> None:
            self._turn_to(shape, call)
            self._run()

        return run

    def wait(self) -> None:
        """Return when this rank's device has finished its work."""
        self._runner.wait()

    def close(self) -> None:
        """End the other ranks; nothing can be run afterwards."""
        self._turn_to(END, self._call)

    def _turn_to(self, shape: Shape, call: Callable[[], None]) -> None:
        if shape == self._shape:
            return
        if self._given == MOST_ORDERS:
            raise MeasurementError(f"the shape changed {MOST_ORDERS} times; measure fewer cells in one run")
        self._orders[self._given] = (self._runs + 1, *shape)
        self._given += 1
        self._run()  # the pending one of the old shape
        self._shape, self._call = shape, call

    def _run(self) -> None:
        self._call()
        self._runs += 1


def follow(runner: ForwardShapes) -> int:
    """Run every forward that rank 0 runs until it closes; return how many."""
    orders, taken = _shared_orders(), 0
    call, runs = runner.prepare(*FIRST), 0
    while True:
        call()
        runner.wait()
        runs += 1
        if taken < MOST_ORDERS and orders[taken, 0] == runs:
            shape = tuple(int(number) for number in orders[taken, 1:])
            taken += 1
            if shape == END:
                return runs
            call = runner.prepare(*shape)


def _shared_orders() -> NDArray[np.int64]:
    """Return (MOST_ORDERS, 4) in memory that all ranks share: the first forward of an order, and its shape."""
    place: list[str] = [""]
    if torch.distributed.get_rank() == 0:
        with tempfile.NamedTemporaryFile(prefix="spectune-lockstep-", delete=False) as file:
            file.truncate(MOST_ORDERS * 4 * 8)
        place = [file.name]
    torch.distributed.broadcast_object_list(place)
    orders = np.memmap(place[0], dtype=np.int64, mode="r+", shape=(MOST_ORDERS, 4))
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        Path(place[0]).unlink()  # the memory lives on in those who hold it
    return orders
