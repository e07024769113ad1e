"""What does HTTP cost: `spectune endpoint` beside a session in the process of whoever asks?

The demo's target decodes plainly, by turns: in a session here, and in an endpoint in a process of its own whose clients
are here, too, on the same cores; answers are told whole and piece by piece. Tokens/s from the first request to the last
answer, medians; milliseconds until the first piece of an answer. `holds` is true where answers told whole come at 0.75
of the session's speed, streamed ones at 0.5, and all are the session's own. The last line is one JSON object.

    python benchmarks/endpoint.py [--repeats 5]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from typing import Any

import httpx

import spectune
from spectune.demo.story import family_folder
from spectune.profiler.device import detect
from spectune.runtime.engine.scheduler import Scheduler
from spectune.runtime.openmp import let_workers_go

from result import print_result  # isort: skip

CLIENTS, NEW_TOKENS, PORT = (1, 8), 256, 8765
WHOLE, STREAMED = 0.75, 0.5
START_S = 120.0
URL = f"http://127.0.0.1:{PORT}"
Answers = tuple[float, list[str], float]  # tokens/s, the texts, milliseconds until the first piece


def main() -> None:
    """Run it and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="turns of each way")
    asked = parser.parse_args()
    target = str(family_folder() / "target")
    session = spectune.load(target, plan="none").session(slots=max(CLIENTS), warm=True)
    command = [sys.executable, "-m", "spectune", "endpoint", "--target", target, "--plan", "none", "--port", str(PORT)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_for_it(server)
        rows = [row_of(session, clients, asked.repeats) for clients in CLIENTS]
    finally:
        server.terminate()
        server.wait()
    checks: dict[str, bool] = {}
    for row in rows:
        print("  ".join(f"{name} {value:.4g}" for name, value in row.items()))
        checks[f"{row['clients']} clients: told whole at {WHOLE} of the session's speed"] = row["whole_ratio"] >= WHOLE
        checks[f"{row['clients']} clients: streamed at {STREAMED} of it"] = row["streamed_ratio"] >= STREAMED
        checks[f"{row['clients']} clients: the session's own texts"] = bool(row["same_texts"])
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {name}")
    told = {"bench": "endpoint", "device": detect("cpu").label, "rows": rows, "checks": checks}
    print_result({**told, "holds": all(checks.values())})


def wait_for_it(server: subprocess.Popen[bytes]) -> None:
    """Return when the endpoint answers."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.poll() is None:
        try:
            if httpx.get(f"{URL}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise RuntimeError(f"no endpoint on port {PORT}; end what listens there")


def row_of(session: Scheduler, clients: int, repeats: int) -> dict[str, float]:
    """Return what every way does with so many clients at once."""
    turns = []
    for _ in range(repeats):
        own = in_session(session, clients)
        let_workers_go()
        turns.append((own, *(asyncio.run(by_http(clients, is_streamed=way)) for way in (False, True))))
    speeds = [[answers[0] for answers in turn] for turn in turns]
    middle = [statistics.median(speed) for speed in zip(*speeds, strict=True)]
    return {
        "clients": clients,
        "session": middle[0],
        "whole": middle[1],
        "streamed": middle[2],
        "whole_ratio": statistics.median(whole / own for own, whole, _ in speeds),
        "streamed_ratio": statistics.median(streamed / own for own, _, streamed in speeds),
        "first_piece_ms": statistics.median(turn[2][2] for turn in turns),
        "same_texts": all(len({tuple(answers[1]) for answers in turn}) == 1 for turn in turns),
    }


def prompts_of(clients: int) -> list[str]:
    """Return what each client asks."""
    return [f"def main{place}(" for place in range(clients)]


def in_session(session: Scheduler, clients: int) -> Answers:
    """Decode here."""
    start = time.perf_counter()
    handles = [session.submit(prompt, max_new_tokens=NEW_TOKENS) for prompt in prompts_of(clients)]
    done = {event.handle: event.completion for event in session.events() if event.completion is not None}
    tokens = sum(len(done[handle].tokens) for handle in handles)
    return tokens / (time.perf_counter() - start), [done[handle].text for handle in handles], 0.0


async def by_http(clients: int, *, is_streamed: bool) -> Answers:
    """Ask the endpoint, all clients at once."""
    async with httpx.AsyncClient(base_url=URL, timeout=120.0) as client:
        await client.get("/health")
        start = time.perf_counter()
        told = await asyncio.gather(*(asked(client, prompt, is_streamed) for prompt in prompts_of(clients)))
        took_s = time.perf_counter() - start
    texts, tokens, firsts = zip(*told, strict=True)
    return sum(tokens) / took_s, list(texts), statistics.median(firsts)


async def asked(client: httpx.AsyncClient, prompt: str, is_streamed: bool) -> tuple[str, int, float]:
    """Return an answer's text and tokens, and milliseconds until its first piece."""
    body: dict[str, Any] = {"model": "target", "prompt": prompt, "max_tokens": NEW_TOKENS}
    if not is_streamed:
        answer = (await client.post("/v1/completions", json=body)).json()
        return answer["choices"][0]["text"], answer["usage"]["completion_tokens"], 0.0
    start, text, tokens, first_ms = time.perf_counter(), "", 0, 0.0
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", "/v1/completions", json=body) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data: {"):
                first_ms = first_ms or 1e3 * (time.perf_counter() - start)
                event = json.loads(line.removeprefix("data: "))
                text += "".join(choice["text"] for choice in event["choices"])
                tokens = event.get("usage", {}).get("completion_tokens", tokens)
    return text, tokens, first_ms


if __name__ == "__main__":
    main()
