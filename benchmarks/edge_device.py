"""One emulated device of `edge.py`: a real drafter slowed down to a device's pace, behind a way of a given length.

Reads one JSON line, decodes prompts over and over until another line comes, and writes what it did; where it is told no
way to draft, it measures as any device does what a token takes it and how far away the server is, and writes that.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from dataclasses import asdict, replace

import torch

from spectune.demo.prompts import calibration_prompts
from spectune.demo.story import family_folder, family_models
from spectune.planner.edge.setting import DeviceDrafting
from spectune.profiler.records.wire import from_json
from spectune.runtime.edge import device, joining
from spectune.runtime.edge.device import EdgeRun, RemoteTarget
from spectune.runtime.edge.edge_drafter import EdgeDrafter
from spectune.runtime.edge.link import TcpLink
from spectune.runtime.edge.messages import FromDevice, FromServer, Hello
from spectune.runtime.edge.patience import RetryPolicy
from spectune.runtime.models.loading import load_model

from sweep import PROFILE_PROMPTS, requests  # isort: skip

SWITCH_S = 1e-4  # between threads: what comes must not wait for a forward to end


def paced(draft_ms: float) -> type[EdgeDrafter]:
    """Return guessers each of whose guesses takes a device's time, once the prompt is read."""

    class Paced(EdgeDrafter):
        """Guesses at a device's pace."""

        def guess(self) -> None:
            """Guess, and come back when a device would."""
            until = time.perf_counter() + draft_ms / 1000.0
            super().guess()
            time.sleep(max(until - time.perf_counter(), 0.0))

    return Paced


class Far:
    """A link whose answers come later: all of the way lies on the way back, which a device cannot tell."""

    def __init__(self, link: TcpLink, rtt_ms: float) -> None:
        """Lengthen the way of a link."""
        self._link, self._rtt_s = link, rtt_ms / 1000.0
        self._coming: deque[tuple[float, FromServer]] = deque()
        self._came = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def send(self, message: FromDevice) -> None:
        """Send."""
        self._link.send(message)
        if not self._reader.is_alive():
            self._reader.start()

    def renew(self) -> None:
        """There is but one way."""

    def receive(self, timeout_s: float) -> FromServer | None:
        """Return the next message that has come all the way."""
        until = time.perf_counter() + timeout_s
        with self._came:
            while True:
                now = time.perf_counter()
                due = self._coming[0][0] if self._coming else float("inf")
                if due <= now:
                    return self._coming.popleft()[1]
                if now >= until:
                    return None
                self._came.wait(min(due, until) - now)

    def _read(self) -> None:
        while True:
            message = self._link.receive(1.0)
            if message is not None:
                with self._came:
                    self._coming.append((time.perf_counter() + self._rtt_s, message))
                    self._came.notify()


def main() -> None:
    """Decode until told to stop."""
    told = json.loads(sys.stdin.readline())
    os.sched_setaffinity(0, {told["core"]})
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_S)
    models = family_models(family_folder())
    drafter = load_model(str(models.drafters["small"]), dtype=told["dtype"], device="cpu")
    device.EdgeDrafter = paced(told["draft_ms"])  # type: ignore[attr-defined]
    hello = Hello(drafter="small", draft_ms=told["draft_ms"])
    link = Far(TcpLink("127.0.0.1", told["port"], greeting=lambda: hello), told["rtt_ms"])
    if told["drafting"] is None:
        joining.EdgeDrafter = device.EdgeDrafter  # type: ignore[attr-defined]
        known = joining.introduce(link, replace(hello, draft_ms=joining.draft_ms_of(drafter)))
        print(json.dumps(asdict(known.device)), flush=True)
        return
    drafting = from_json(DeviceDrafting, json.dumps(told["drafting"]))
    remote = RemoteTarget(
        drafter, link, drafting, most_drafted=told["most_drafted"], patience=RetryPolicy(timeout_s=60.0)
    )
    is_over = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        is_over.set()

    threading.Thread(target=listen, daemon=True).start()
    asked = requests(calibration_prompts()[:PROFILE_PROMPTS], 0.0, seed=0)
    print("ready", flush=True)
    seen: list[tuple[float, int, float]] = []  # when, tokens, seconds of the round that brought them
    place, asked_again = told["first"], 0
    while not is_over.is_set():
        run, last = EdgeRun(), None
        for new in remote.stream(asked[place % len(asked)], run):
            now = time.perf_counter()
            if last is not None:  # the first token is the prompt's
                seen.append((now, len(new), now - last))
            last = now
            if is_over.is_set():
                break
        asked_again += run.asked_again
        place += 1
    print(json.dumps({"seen": seen, "asked_again": asked_again}), flush=True)


if __name__ == "__main__":
    main()
