"""A pretended GPU: tensors that lie on "cuda:0" and are computed on the host, and what a real one would not forgive.

What is told: operands on different devices, waits of the host where none is meant, numbers read on the host before
they have arrived, memory of the host changed on its way to the device, and, since a capture repeats operations and
not the code that asked for them, whatever of a round a graph has frozen. What is not: how long anything takes, and
streams that overtake each other, for all work is done in the order it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .capture import Capture
from .nested import leaves_of, mapped
from .traffic import DeviceMistakeError, Traffic

PLACE = torch.device("cuda:0")
HOST = torch.device("cpu")
ATEN: Any = torch.ops.aten
PLACING = (ATEN.to, ATEN.type_as)  # copies by another name
PINNING = (ATEN.pin_memory, ATEN._pin_memory)
ABOUT_PLACES = (*PLACING, *PINNING, ATEN.is_pinned)
WAITING = (  # whose result's shape or value numbers on the device tell
    ATEN._local_scalar_dense,
    ATEN._unique2,
    ATEN.equal,
    ATEN.is_nonzero,
    ATEN.item,
    ATEN.masked_select,
    ATEN.nonzero,
    ATEN.unique_consecutive,
)
INDEXING = (ATEN.index, ATEN.index_put, ATEN.index_put_)


class OnDevice(Tensor):
    """A tensor on the pretended GPU; its numbers are a tensor's on the host."""

    numbers: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # seen one floor below

    @staticmethod
    def __new__(cls, numbers: Tensor) -> OnDevice:
        made: OnDevice = Tensor._make_wrapper_subclass(
            cls,
            numbers.shape,
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=PLACE,
        )
        made.numbers = numbers
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch calls it on the class
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise DeviceMistakeError(f"{func} is asked of a pretended GPU that nobody has entered")

    def tolist(self) -> Any:
        """Do what a GPU's tensor does; torch itself refuses it to subclasses."""
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Refuse what a GPU's tensor refuses."""
        raise DeviceMistakeError("numpy reads no memory of a device")

    def copy_(self, source: Tensor, non_blocking: bool = False) -> Tensor:
        """Take in another tensor's numbers; torch copies only to devices that it was built for."""
        entered().__torch_dispatch__(ATEN.copy_.default, ON_DEVICE, (self, source, non_blocking))
        return self

    def nonzero(self, *, as_tuple: bool = False) -> Any:
        found = entered().__torch_dispatch__(ATEN.nonzero.default, ON_DEVICE, (self,))
        return found.unbind(1) if as_tuple else found

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def item(self) -> Any:
        """Wait for a number, as reading one of a GPU's tensor does."""
        return self.tolist()

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> Tensor:
        return self if self.is_contiguous() else self.clone(memory_format=memory_format)

    def __invert__(self) -> Tensor:
        return torch.bitwise_not(self)

    def __getitem__(self, key: Any) -> Any:
        with entered().lifting(self) as lifted:
            return lifted.of(self.numbers[mapped(lifted.numbers, key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        with entered().lifting(self) as lifted:
            self.numbers[mapped(lifted.numbers, key)] = lifted.numbers(value)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnDevice({self.numbers!r})"


class _Lifted:
    """Tensors of the host that stand for those of the device: torch slices only devices that it was built for."""

    def __init__(self, first: OnDevice) -> None:
        self._known = {id(first.numbers): first}

    def numbers(self, one: Any) -> Any:
        """Return a tensor's numbers, which stand for it from now on."""
        if not isinstance(one, OnDevice):
            return one
        self._known[id(one.numbers)] = one
        return one.numbers

    def of(self, one: Any) -> Any:
        """Return the tensor that numbers stand for."""
        return self._known.get(id(one), one)


class PretendedGpu(TorchDispatchMode):
    """Sees every operation of torch while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.traffic = Traffic()
        self.waits = 0  # nobody asked for
        self._capture: Capture | None = None
        self._lifted: _Lifted | None = None
        self._pinned: set[int] = set()

    def __enter__(self) -> PretendedGpu:
        _ENTERED.append(self)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _ENTERED.remove(self)

    @contextmanager
    def capturing(self, capture: Capture) -> Iterator[None]:
        """Note what is given, and do none of it."""
        assert self._capture is None
        self._capture, self.traffic.is_capturing = capture, True
        try:
            yield
        finally:
            self._capture, self.traffic.is_capturing = None, False
            capture.end()

    @contextmanager
    def lifting(self, first: OnDevice) -> Iterator[_Lifted]:
        """Take numbers for the tensors that they are of."""
        assert self._lifted is None
        self._lifted = _Lifted(first)
        try:
            yield self._lifted
        finally:
            self._lifted = None

    def launch(self, kernel: Callable[[], object], touched: list[Tensor]) -> None:
        """Run a kernel, which may write to all that it touches, and note it where work is captured."""
        self.traffic.given += 1
        if self._capture is not None:
            self._capture.note(lambda: self._aside(kernel), writes=touched)
        self._aside(kernel)

    def _aside(self, kernel: Callable[[], object]) -> None:
        with torch.utils._python_dispatch._disable_current_modes():
            kernel()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # which takes as long as a small operation, and nothing here is compiled

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._lifted is None and OnDevice not in types and _is_of_the_host(func, kwargs):
            return func(*args, **kwargs)
        args, kwargs = mapped(_placed, args), mapped(_placed, kwargs)
        if self._lifted is None:
            return self._dispatched(func, args, kwargs)
        lifted, self._lifted = self._lifted, None
        try:
            found = self._dispatched(func, mapped(lifted.of, args), mapped(lifted.of, kwargs))
            return mapped(lifted.numbers, found)
        finally:
            self._lifted = lifted

    def _dispatched(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        leaves = leaves_of(args, kwargs)
        given = [one for one in leaves if isinstance(one, Tensor)]
        name, is_pinned = func.overloadpacket, kwargs.pop("pin_memory", False)
        if name in PINNING:
            return self._pin(args[0].clone())
        if name is ATEN.is_pinned:
            return _memory(args[0]) in self._pinned
        if not any(isinstance(one, OnDevice) for one in given) and not any(
            isinstance(one, torch.device) and one == PLACE for one in leaves
        ):
            made = func(*args, **kwargs)
            return self._pin(made) if is_pinned else made
        if name in PLACING and torch.is_inference_mode_enabled():  # else torch has done so before
            with self:
                return func.decompose(*args, **kwargs)
        if name is ATEN._to_copy:
            return self._copied(func, args, kwargs)
        if name is ATEN.copy_:
            return self._copy(args[0], args[1], bool([*args, False][2] or kwargs.get("non_blocking")))
        if name is ATEN._has_compatible_shallow_copy_type:
            return False
        if name is ATEN._fused_sdp_choice:
            return 0  # one operation after the other
        if name in INDEXING and isinstance(args[0], OnDevice) and any(map(_is_strange, args[1])):
            self._wait("places of the host, which torch copies to the device")
            args = (args[0], [OnDevice(one) if _is_strange(one) else one for one in args[1]], *args[2:])
            given = [one for one in leaves_of(args, kwargs) if isinstance(one, Tensor)]
        if any(one.dim() > 0 and not isinstance(one, OnDevice) for one in given):
            raise DeviceMistakeError(f"{func} of tensors on {PLACE} and on the host")
        is_as_often_as_told = name is ATEN.repeat_interleave and "Tensor" in func._overloadname
        if name in WAITING or is_as_often_as_told or (name in INDEXING and any(_is_mask(one) for one in args[1])):
            self._wait(str(func))
        return self._done(func, args, kwargs)

    def _done(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Do an operation with the numbers, and note it where work is captured."""
        self.traffic.given += 1
        numbers, options = mapped(_on_host, args), mapped(_on_host, kwargs)
        written = _written(func, numbers, options)
        known = {id(_numbers(one)): one for one in leaves_of(args, kwargs) if isinstance(one, OnDevice)}
        if self._capture is not None and written:
            self._capture.note(lambda: func(*numbers, **options), writes=written)
        found = func(*numbers, **options)
        if self._capture is not None and not written:
            sources = {_memory(one) for one in leaves_of(numbers, options) if isinstance(one, Tensor)}
            makes = [one for one in leaves_of(found) if isinstance(one, Tensor) and _memory(one) not in sources]
            if makes:  # else a view: its memory is the same in every replay
                self._capture.note(lambda: _again(makes, func(*numbers, **options), sources), makes=makes)
        return mapped(lambda one: _found(one, known), found)

    def _copied(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        """Return a copy of another kind, or on another device."""
        source, to = args[0], kwargs.pop("device", None)
        may_follow = bool(kwargs.pop("non_blocking", False))
        if to is None or torch.device(to).type == source.device.type:
            made: Tensor = self._done(func, args, kwargs)
            return made
        found = func(_numbers(source), **kwargs)
        if isinstance(source, OnDevice):
            if self._capture is not None:
                raise DeviceMistakeError("a capture makes memory on the host")
            place = torch.empty_like(found)
        else:
            place = OnDevice(torch.empty_like(found))
        return self._copy(place, source, may_follow)

    def _copy(self, place: Tensor, source: Tensor, may_follow: bool) -> Tensor:
        """Copy numbers into a place, wherever either is."""
        is_here, is_from_here = isinstance(place, OnDevice), isinstance(source, OnDevice)
        is_pinned = is_from_here or _memory(source) in self._pinned
        to, numbers = _numbers(place), _numbers(source)

        def step() -> None:
            if is_from_here and not is_here:
                self.traffic.land(to, numbers.to(to.dtype).expand_as(to))
                return
            to.copy_(numbers)
            if is_pinned and not is_from_here:
                self.traffic.depart(numbers)

        if self._capture is None:
            self.traffic.given += 1
            step()
            if is_here != is_from_here and not may_follow:
                self._wait("a copy from the device" if is_from_here else "a copy to the device")
            return place
        if not is_pinned:
            raise DeviceMistakeError("a capture copies from memory of the host that is not pinned")
        self._capture.note(step, writes=[to])
        if is_here:
            to.copy_(numbers)
        return place

    def _pin(self, tensor: Tensor) -> Tensor:
        self._pinned.add(_memory(tensor))
        return tensor

    def _wait(self, what: str) -> None:
        self.waits += 1
        self.traffic.wait_unasked(what)


ON_DEVICE = (OnDevice,)  # types of what an operation is given
_ENTERED: list[PretendedGpu] = []


def entered() -> PretendedGpu:
    """Return the pretended GPU that tensors lie on."""
    return _ENTERED[-1]


def _is_of_the_host(func: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an operation that is given no tensor of the device has nothing to do with it, nor with pinned memory."""
    place = kwargs.get("device")
    is_elsewhere = place is None or torch.device(place).type != PLACE.type
    return is_elsewhere and not kwargs.get("pin_memory") and func.overloadpacket not in ABOUT_PLACES


def _placed(one: Any) -> Any:
    return PLACE if isinstance(one, torch.device) and one.type == PLACE.type else one


def _numbers(one: Any) -> Any:
    return one.numbers if isinstance(one, OnDevice) else one


def _on_host(one: Any) -> Any:
    return HOST if isinstance(one, torch.device) else _numbers(one)


def _found(one: Any, known: dict[int, OnDevice]) -> Any:
    if not isinstance(one, Tensor):
        return one
    return known[id(one)] if id(one) in known else OnDevice(one)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _again(places: list[Tensor], found: Any, sources: set[int]) -> None:
    """Write a repeated operation's results where the first ones lie."""
    results = [one for one in leaves_of(found) if isinstance(one, Tensor) and _memory(one) not in sources]
    for place, one in zip(places, results, strict=True):
        place.copy_(one)


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Return the tensors that an operation writes to."""
    written = (args[place] if place < len(args) else kwargs.get(name) for place, name in _written_arguments(func))
    return [each for one in written for each in leaves_of(one) if isinstance(each, Tensor)]


@cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    """Return the places and names of the arguments that an operation writes to."""
    told = enumerate(func._schema.arguments)
    return tuple((place, one.name) for place, one in told if one.alias_info is not None and one.alias_info.is_write)


def _is_strange(one: Any) -> bool:
    return isinstance(one, Tensor) and not isinstance(one, OnDevice)


def _is_mask(one: Any) -> bool:
    return isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8)
