"""The tensors of a folder, by their headers and whole, and whether a drafter's are the ones computed with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...errors import ModelError

Shape = tuple[int, ...]
FLOATS: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}  # as headers name them
SHOWN = 3  # names of tensors in one message
DERIVED = (".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached")  # follow from config.json


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHeader:
    """One tensor as the header of its file describes it."""

    shape: Shape
    dtype: str  # as headers name it: "BF16", "F8_E4M3", ...


def stored_tensors(folder: Path, files: Sequence[Path] = ()) -> dict[str, TensorHeader]:
    """Return shape and number format of every tensor by name, from the headers of `files`, or of all safetensors.

    ModelError where a file cannot be read, or two files hold a tensor of one name.
    """
    found: dict[str, TensorHeader] = {}
    for path in files or sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
                own = {
                    name: TensorHeader(shape=tuple(one.get_shape()), dtype=str(one.get_dtype()))
                    for name, one in slices.items()
                }
        except SafetensorError as error:
            raise ModelError(f"{path} is not a safetensors file ({error}); copy or save it again") from error
        if twice := sorted(found.keys() & own.keys()):
            raise ModelError(f"two files of {folder} hold the tensor {twice[0]}; leave one of them out")
        found |= own
    return found


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a folder by name; ModelError where a file cannot be read."""
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                names: Sequence[str] = file.keys()
                found |= {name: file.get_tensor(name) for name in names}
        except SafetensorError as error:
            raise ModelError(f"{path} is not a safetensors file ({error}); copy or save it again") from error
    return found


def as_numbers(weight: Tensor, like: Tensor) -> Tensor:
    """Return a copy of a weight in the format and on the device of `like`: a view would hold its whole file mapped."""
    return weight.to(device=like.device, dtype=like.dtype if weight.is_floating_point() else torch.int64, copy=True)


def held_tensors(weights: Mapping[str, Tensor]) -> dict[str, TensorHeader]:
    """Return the shapes and number formats of loaded tensors."""
    return {
        name: TensorHeader(shape=tuple(one.shape), dtype=FLOATS.get(one.dtype, str(one.dtype).removeprefix("torch.")))
        for name, one in weights.items()
    }


def require_tensors(
    what: str,
    stored: Mapping[str, TensorHeader],
    wanted: Mapping[str, Shape],
    *,
    optional: Mapping[str, Shape] | None = None,
    others: Collection[str] = (),
) -> None:
    """Raise ModelError unless `what` has the tensors it computes with; `others` are checked where they are read."""
    known = {**wanted, **(optional or {})}
    missing = [name for name in wanted if name not in stored]
    if missing:
        raise ModelError(f"{what} lacks {_named(missing)}; finish the download or train it again")
    unread = [name for name in stored if name not in known and name not in others and not name.endswith(DERIVED)]
    if unread:
        raise ModelError(
            f"{what} holds {_named(unread)}, which spectune does not compute with; give a drafter without "
            f"{'it' if len(unread) == 1 else 'them'}"
        )
    for name, shape in known.items():
        if name in stored:
            _require_one(what, name, stored[name], shape)


def _require_one(what: str, name: str, one: TensorHeader, shape: Shape) -> None:
    if one.shape != shape:
        raise ModelError(
            f"{what}: {name} is {_sized(one.shape)}, and its config.json and this target need {_sized(shape)}; "
            "give the drafter of this target"
        )
    if one.dtype not in FLOATS.values():
        raise ModelError(
            f"{what}: {name} is stored as {one.dtype}, which is not read; give one in {', '.join(FLOATS.values())}"
        )


def _named(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"the tensor {shown}" if len(names) == 1 else f"the tensors {shown}{more}"


def _sized(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "one number"
