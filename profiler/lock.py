"""One profile at a time per device: two at once would measure each other."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..errors import DeviceError
from .records.device import Device

POLL_S = 0.05  # between two looks at a lock that another profile holds


@contextmanager
def device_lock(device: Device, folder: Path, wait_s: float = 0.0) -> Iterator[Path]:
    """Hold a device for one block, at most as long as the process; yield the lock file with the holder's process id.

    A processor is the same one under any software. `wait_s` 0 is one look. DeviceError where another process or block
    still holds the device, or the folder cannot be written.
    """
    path = folder / f"{device.kind}-{device.uuid or device.index}.lock"
    with _opened(path) as file:
        if not _is_acquired(file, wait_s):
            holder = path.read_text().strip() or "unknown"
            raise DeviceError(
                f"{device.label} is being measured by process {holder} ({path}); wait for it to end or stop it"
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield path


def _is_acquired(file: IO[str], wait_s: float) -> bool:
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(POLL_S)
        else:
            return True


def _opened(path: Path) -> IO[str]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+")
    except OSError as error:
        raise DeviceError(f"cannot write the lock {path} ({error}); choose a folder you may write to") from error
