"""Hidden states of a target along rows of tokens: computed once, and read from memory-mapped files."""

from __future__ import annotations

import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import TrainingError
from .frozen import FrozenTarget
from .own_text import Ids, readable
from .run_folder import Progress, save_whole
from .trainer import multiplies_bfloat16

ROWS = 64  # of a file
TOGETHER = 8  # rows computed at once
GB = 1e9


class States:
    """States (rows, columns, len(reads) * hidden) behind `reads` layers each; the last layer's are final-normed.

    `likeliest` is (rows, columns), the target's likeliest next tokens, where they are wanted.
    """

    def __init__(
        self,
        target: FrozenTarget,
        ids: Ids,  # (rows, columns), BLANK behind ends
        reads: tuple[int, ...],
        folder: Path,
        progress: Progress,
        *,
        dtype: torch.dtype = torch.float32,
        likeliest: bool = False,
    ) -> None:
        """Compute what the folder lacks; TrainingError where the disk has no room for it."""
        self._target, self._reads, self._dtype = target, reads, dtype
        made_of = repr((ids.shape, reads, dtype, likeliest)).encode() + np.ascontiguousarray(ids).tobytes()
        name = sha256(made_of).hexdigest()[:16]
        firsts = range(0, len(ids), ROWS)
        paths = [folder / f"states-{name}-{first}.npy" for first in firsts]
        tokens = [folder / f"likeliest-{name}-{first}.npy" for first in firsts]
        wide = ids.shape[1] * len(reads) * target.hidden * dtype.itemsize
        missing = [first for first, path in zip(firsts, paths, strict=True) if not path.exists()]
        _require_room(folder, wide * sum(len(ids[first : first + ROWS]) for first in missing))
        for first, path, own in zip(firsts, paths, tokens, strict=True):
            if first in missing:
                progress(f"the target reads the texts once, {wide * len(ids) / GB:.1f} GB of states", first / len(ids))
                self._write(ids[first : first + ROWS], path, own if likeliest else None)
        self._files = [np.load(path, mmap_mode="r") for path in paths]
        found = [np.load(path) for path in tokens] if likeliest else [np.zeros((0, ids.shape[1]), dtype=np.int32)]
        self.likeliest: NDArray[np.int32] = np.concatenate(found)

    def read(self, rows: Tensor) -> Tensor:
        """Return states (batch, columns, len(reads) * hidden) of rows (batch,) in float32, on their device."""
        some = np.stack([self._files[row // ROWS][row % ROWS] for row in rows.tolist()])
        return torch.from_numpy(some).view(self._dtype).to(rows.device).float()

    def _write(self, ids: Ids, path: Path, likeliest: Path | None) -> None:
        """Write the states of some rows, and before them their likeliest next tokens."""
        device, states, tokens = self._target.device, list[Tensor](), list[Tensor]()
        is_narrow = self._dtype == torch.bfloat16 and multiplies_bfloat16(device)
        for start in range(0, len(ids), TOGETHER):
            some = readable(torch.from_numpy(ids[start : start + TOGETHER])).to(device)
            with torch.no_grad():
                with torch.autocast(device.type, dtype=torch.bfloat16, enabled=is_narrow):
                    read = self._target.states(some)
                states.append(torch.cat([read[count] for count in self._reads], dim=-1).to(self._dtype).cpu())
                if likeliest is not None:  # row by row: the logits of all would take much memory
                    tokens += [self._target.said(row.float()).argmax(-1).int().cpu() for row in read[-1]]
        if likeliest is not None:
            save_whole(likeliest, torch.stack(tokens).numpy())
        whole = torch.cat(states)
        save_whole(path, (whole.view(torch.int16) if self._dtype.itemsize == 2 else whole).numpy())


def _require_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise TrainingError(
            f"the target's states along its texts take {needed / GB:.1f} GB and {folder} has {free / GB:.1f} GB free; "
            "lower --texts or --new-tokens, or name a folder on another disk"
        )
