"""Hold a device for one profile: no other process of ours measures it, and disturbances are noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...db.store import Store
from ...profiler.lock import device_lock
from ...profiler.records.device import Device
from ...profiler.remembered import cache_folder
from ...profiler.state import disturbances, read_state
from ..request import Identities


@contextmanager
def device_session(
    device: Device, identities: Identities, store: Store, *, wait_s: float
) -> Iterator[Callable[[], tuple[str, ...]]]:
    """Hold a device for one block, and store it and the models; yield a function that names disturbances.

    DeviceError where another profile holds it after `wait_s`, or it cannot be read.
    """
    with device_lock(device, cache_folder(), wait_s=wait_s):
        before = read_state(device)
        store.add_device(device)
        for identity in (identities.target, *identities.drafters.values()):
            store.add_model(identity)
        yield lambda: disturbances(before, read_state(device))
