"""A server in a separate process; on Linux it also ends where this process is killed."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial

import httpx

from ..errors import MeasurementError, NoRoomError, RequestError
from .limits import START_S

STOP_S = 10.0  # between SIGTERM and SIGKILL
ANSWER_S = 10.0  # of the path that says whether it is up: SGLang decodes a token first, and waits for a second
POLL_S = 0.05
TAIL_LINES, TAIL_BYTES = 12, 2**16  # of its log, in an error; the first error stands far before the last lines
ERROR = re.compile(r"\b[\w.]*(?:Error|Exception): .*")
HOST = "127.0.0.1"
PR_SET_PDEATHSIG = 1
NO_ROOM = re.compile(
    r"out of memory|OutOfMemory|cudaMalloc failed|bad_alloc|cannot allocate memory|failed to allocate|"
    r"No available memory for the cache blocks|ErrorOutOfDeviceMemory",
    re.IGNORECASE,
)
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded before any fork


class ServerProcess:
    """One running server; `close` ends it."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        is_up: str = "/health",
        advice: str,
        start_s: float = START_S,
        port: int | None = None,
        secrets: Sequence[str] = (),
    ) -> None:
        """Start a server and wait until `is_up` answers 200.

        `--host` and `--port` are added to the command where no `port` is given, which the command names then. No error
        shows `secrets`, words of the command.

        Raises:
            MeasurementError: it cannot be run, ends, or is not up in time; `advice` is then part of the message.
            NoRoomError: it ends for want of memory.
            RequestError: something else listens on the port.
        """
        if port is not None:
            require_free(port)
        self._name, self._advice = name, advice
        self._secrets = secrets
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        own = free_port() if port is None else port
        added = ("--host", HOST, "--port", str(own)) if port is None else ()
        self.url = f"http://{HOST}:{own}"
        try:
            self._process = subprocess.Popen(
                [*command, *added],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches it through `close` alone
                preexec_fn=partial(_die_with, os.getpid()) if LIBC is not None else None,
            )
        except OSError as error:
            self._log.close()
            raise MeasurementError(f"{name} does not start: {command[0]}: {error.strerror}; {advice}") from error
        atexit.register(self.close)
        try:
            self._wait(is_up, start_s)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def close(self) -> None:
        """End it by SIGTERM, and `STOP_S` later by SIGKILL, with all that it started."""
        atexit.unregister(self.close)
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _signal(self, how: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # nothing of its group is left
            os.killpg(self._process.pid, how)

    def _wait(self, is_up: str, start_s: float) -> None:
        end = time.monotonic() + start_s
        while (left_s := end - time.monotonic()) > 0.0:
            with contextlib.suppress(httpx.TransportError):  # past any proxy, and without certificates
                answer = httpx.get(self.url + is_up, timeout=min(ANSWER_S, left_s), trust_env=False, verify=False)
                if answer.status_code == httpx.codes.OK and self._process.poll() is None:
                    return
            if self._process.poll() is not None:
                raise self._not_up(self._ending())
            time.sleep(POLL_S)
        raise self._not_up(f"was not up after {start_s:g} s")

    def require_alive(self) -> None:
        """Raise what ended the process, if anything did.

        Raises:
            MeasurementError: it ended.
            NoRoomError: it ended for want of memory.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)  # a process that dies closes its sockets first
        if self._process.poll() is not None:
            tail = self._tail()
            raise self._kind(tail)(f"{self._name} {self._ending()}{tail}")

    def _not_up(self, why: str) -> MeasurementError:
        tail = self._tail()
        return self._kind(tail)(f"{self._name} does not start: it {why}; {self._advice}{tail}")

    def _kind(self, tail: str) -> type[MeasurementError]:
        """Return the error of its end: want of memory is one that fewer sequences may mend."""
        is_killed = self._process.returncode == -signal.SIGKILL
        return NoRoomError if is_killed or NO_ROOM.search(tail) else MeasurementError

    def _ending(self) -> str:
        status = self._process.returncode
        if status == -signal.SIGKILL:
            return "was killed by the system, most likely for want of memory: free some, or give fewer sequences"
        return f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"

    def _tail(self) -> str:
        """Return the first error and the last lines of its log; the file's position stays, where it writes on."""
        size = os.fstat(self._log.fileno()).st_size
        told = os.pread(self._log.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace")
        for word in self._secrets:
            told = told.replace(word, "...")
        whole = told.splitlines()[size > TAIL_BYTES :]  # the first line may be the end of one, and of a key in it
        lines = [line for line in whole if line.strip()]
        if not lines:
            return ""
        last = lines[-TAIL_LINES:]
        cause = next((found[0] for line in lines if (found := ERROR.search(line))), None)
        first = "" if cause is None or any(cause in line for line in last) else f"\nits first error:\n  {cause}"
        return f"{first}\nits last lines:\n  " + "\n  ".join(last)


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def require_free(port: int) -> None:
    """Raise RequestError where something listens on a port of the loopback."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        if probe.connect_ex((HOST, port)) == 0:
            raise RequestError(f"something listens on port {port} already; stop it, or give the command another --port")


def _die_with(parent: int) -> None:
    """Let the kernel kill this process with the thread that started it."""
    assert LIBC is not None
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed before
        os._exit(1)
