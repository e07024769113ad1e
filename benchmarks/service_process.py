"""`spectune serve` as a process of its own, and what it holds in memory."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np

READY_S, STOPS_S = 120.0, 60.0
WARM_UP = 0.2  # share of the time watched
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
COMMAND = (sys.executable, "-m", "spectune")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Where the service listens, and a token that may do everything there."""

    host: str
    port: int
    token: str
    store: Path


@dataclass(slots=True)
class Memory:
    """Resident bytes of a process and its children, read every second."""

    pid: int
    seconds: list[float] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)
    _is_over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Read until the block ends."""
        thread = threading.Thread(target=self._read)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def figures(self) -> dict[str, float]:
        """Return what it came to: slope, and how far the last third lies above the first one."""
        begin = int(len(self.seconds) * WARM_UP)
        seconds, resident = np.array(self.seconds[begin:]), np.array(self.resident_bytes[begin:]) / 2**20
        third = max(1, len(resident) // 3)
        return {
            "first_mib": float(resident[0]),
            "last_mib": float(resident[-1]),
            "most_mib": float(resident.max()),
            "slope_mib_per_minute": float(np.polyfit(seconds, resident, 1)[0]) * 60.0 if len(seconds) > 1 else 0.0,
            "growth": float(resident[-third:].mean() / resident[:third].mean()) - 1.0,
        }

    def _read(self) -> None:
        began = time.monotonic()
        while not self._is_over.wait(1.0):
            self.resident_bytes.append(sum(map(resident_bytes, family_of(self.pid))))
            self.seconds.append(time.monotonic() - began)


@contextmanager
def served(place: Path) -> Iterator[tuple[subprocess.Popen[bytes], Service, Path]]:
    """Serve a store as a process of its own, and stop it in the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    service = Service(host="127.0.0.1", port=port, token=made_token(place), store=place)
    log = place.with_name("serve.log")
    command = [*COMMAND, "serve", "--store", str(place), "--host", service.host, "--rate", "0"]
    with log.open("wb") as stream:
        process = subprocess.Popen([*command, "--port", str(port)], stdout=stream, stderr=stream)
    try:
        wait_until_ready(process, service, log)
        yield process, service, log
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOPS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise SystemExit(f"the service did not stop within {STOPS_S:g} s") from None


def made_token(place: Path) -> str:
    """Return a new token of the store."""
    command = [*COMMAND, "token", "create", "benchmark", "--scope", "admin"]
    done = subprocess.run([*command, "--store", str(place)], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


def wait_until_ready(process: subprocess.Popen[bytes], service: Service, log: Path) -> None:
    """Wait until the service says that it can answer."""
    end = time.monotonic() + READY_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urlopen(f"http://{service.host}:{service.port}/readyz", timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.2)
    raise SystemExit("the service did not start:\n" + log.read_text(errors="replace")[-2000:])


def family_of(pid: int) -> list[int]:
    """Return a process and all below it."""
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            with suppress(OSError):  # the thread has just ended
                found += map(int, children.read_text().split())
    return found


def resident_bytes(pid: int) -> int:
    """Return what a process holds in memory, 0 where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return 0
