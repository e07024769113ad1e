"""A server of drafts in a thread of its own, as the benchmark and tests run it."""

from __future__ import annotations

import asyncio
import threading

from spectune.runtime.edge.server import EdgeServer


def serve_in_thread(server: EdgeServer) -> threading.Thread:
    """Serve in a thread of its own; return it once devices may come; OSError if the port is taken."""
    failed: list[BaseException] = []
    is_known = threading.Event()

    def run() -> None:
        try:
            asyncio.run(server.serve(lambda _: is_known.set()))
        except BaseException as error:
            failed.append(error)
            is_known.set()

    thread = threading.Thread(target=run, daemon=True, name="edge server")
    thread.start()
    is_known.wait()
    if failed:
        raise failed[0]
    return thread
