"""Waiting for a device that is held elsewhere."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spectune.errors import DeviceError
from spectune.planner.kernels.compiled import kernels_folder
from spectune.profiler.lock import POLL_S, device_lock
from spectune.profiler.records.device import Device
from spectune.profiler.remembered import cache_folder

CPU = Device(kind="cpu", name="a processor", index=0, memory_bytes=2**30, cores=2, threads=2)


def test_jobs_of_two_test_workers_do_not_meet_at_a_lock(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert cache_folder().is_relative_to(tmp_path_factory.getbasetemp())
    assert kernels_folder().samefile(cache_folder() / "kernels")  # machine code they share


def test_a_held_device_is_had_as_soon_as_it_is_free(tmp_path: Path) -> None:
    order = []

    def wait_for_it() -> None:
        with device_lock(CPU, tmp_path, wait_s=60.0):
            order.append("had")

    with ThreadPoolExecutor() as pool:
        with device_lock(CPU, tmp_path):
            waiting = pool.submit(wait_for_it)
            time.sleep(4 * POLL_S)  # some looks at the lock
            order.append("freed")
        waiting.result()
    assert order == ["freed", "had"]


def test_a_device_that_stays_held_is_refused_after_the_wait(tmp_path: Path) -> None:
    late = device_lock(CPU, tmp_path, wait_s=2 * POLL_S)
    with device_lock(CPU, tmp_path), pytest.raises(DeviceError, match=f"measured by process {os.getpid()} "), late:
        pass
