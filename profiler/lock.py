"""One profile at a time per device: two at once would measure each other."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..errors import DeviceError
from .records.device import Device


@contextmanager
def device_lock(device: Device, folder: Path) -> Iterator[Path]:
    """Hold a device for one block; the lock ends with the block or the process, whichever comes first.

    Args:
        device: what is held: the processor itself, under whatever software it was detected.
        folder: where the lock file lies; created where absent.

    Yields:
        The lock file, which holds the process id of its holder.

    Raises:
        DeviceError: another process, or another block of this one, holds the device; or the folder cannot be written.
    """
    path = folder / f"{device.kind}-{device.uuid or device.index}.lock"
    with _opened(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = path.read_text().strip() or "unknown"
            raise DeviceError(
                f"{device.label} is being measured by process {holder} ({path}); wait for it to end or stop it"
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield path


def _opened(path: Path) -> IO[str]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+")
    except OSError as error:
        raise DeviceError(f"cannot write the lock {path} ({error}); choose a folder you may write to") from error
