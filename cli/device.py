"""The device a person names: one of this machine, one the store knows, or a file of its facts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DeviceError
from .options import DEVICE, torch_name

if TYPE_CHECKING:
    from ..db.store import Store
    from ..profiler.records.device import Device


def is_here(text: str) -> bool:
    """Whether a device is named as one of this machine."""
    return bool(DEVICE.fullmatch(torch_name(text)))


def named_device(text: str, store: Store) -> Device:
    """Return a device of this machine, of a JSON file, or of the store by fingerprint or name.

    DeviceError: none of them, or several devices share the name. StoreError: the file holds no device.
    """
    text = text.strip()
    if is_here(text):
        from ..profiler.device import detect

        return detect(torch_name(text))
    if Path(text).is_file():
        return _device_in(Path(text))
    known = store.devices()
    found = [device for device in known if text in (device.fingerprint, device.name, device.label)]
    if len(found) > 1:
        prints = ", ".join(device.fingerprint for device in found)
        raise DeviceError(f"{len(found)} devices in {store.url} are called {text!r}; give a fingerprint: {prints}")
    if not found:
        from ..profiler.catalogue import catalogue_names

        names = ", ".join(dict.fromkeys(device.name for device in known)) or "no device"
        raise DeviceError(
            f"{text!r} is no auto, cpu, cuda:N or file, and {store.url} knows {names}; give one of them, or plan "
            f"without the device by spectune plan --estimate, which knows {', '.join(catalogue_names(text))}"
        )
    return found[0]


def _device_in(path: Path) -> Device:
    from ..profiler.records.device import Device
    from ..profiler.records.wire import from_json

    return from_json(Device, path.read_bytes())
