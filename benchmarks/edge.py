"""Does drafting at the edge bring what was foretold, and is the planned way the fastest?

The demo's target runs on one core and is profiled there. Devices are processes on the other core: each runs the demo's
small drafter, slowed down to the pace of a device, behind a way to the server of a given length; server, protocol and
drafts are real. What a device takes for a token and how far away it is, it measures itself, as any device does, and the
plan goes by that. For every pace, distance and number of devices three ways race in turns: the planned one, the usual
one (chains of 4 while surer than 0.6, 8 tokens ahead), and chains of 8 without drafting ahead. Measured are tokens per
second of a device, the reading of prompts not counted; the middle of `--repeats` turns counts. Texts are some of the
profile's, so a speed is judged as it would be on all of them: times the tokens that a round keeps there over those that
it kept. Beside them is told what the server alone would stream to each, decoding plainly for all. The last line is one
JSON object.

    python benchmarks/edge.py [--repeats 3] [--seconds 4]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from edge_thread import serve_in_thread

from spectune.demo.story import family_folder, family_models
from spectune.planner.edge.costs import edge_rounds
from spectune.planner.edge.forecast import forecast
from spectune.planner.edge.search import EdgeChoice
from spectune.planner.edge.setting import BatchRule, DeviceDrafting, EdgeDevice
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.runtime.edge.messages import Hello, Welcome
from spectune.runtime.edge.server import EdgeServer
from spectune.runtime.edge.verification_queue import VerificationQueue
from spectune.runtime.edge.verifier import EdgeVerifier
from spectune.runtime.models.loading import load_model
from spectune.tuning.edge import EdgePlanner

from sweep import DTYPE, Chapter, learned  # isort: skip
from result import print_result  # isort: skip

SERVER_CORE, DEVICE_CORE = 0, 1
BATCHES = (1, 2, 4)
SCENES = ((2.0, 4.0, 1), (2.0, 40.0, 1), (8.0, 4.0, 4))  # draft ms, rtt ms, devices
MOST_DRAFTED = 16
WARM_S = 1.5  # of every turn, not counted: devices begin with reading prompts
MOST_OFF = 0.10
LEAST_RATIO = 0.97  # planned over the best of the others


def main() -> None:
    """Run it and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of every turn")
    asked = parser.parse_args()
    os.sched_setaffinity(0, {SERVER_CORE})
    torch.set_num_threads(1)
    chapter = learned(0.0, 10.0, batches=BATCHES)
    planner = EdgePlanner(chapter.inputs)
    rows = [one_scene(planner, chapter, *scene, asked.repeats, asked.seconds) for scene in SCENES]
    checks = verdicts(rows)
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {name}")
    result = {"bench": "edge", "device": chapter.inputs.device.label, "rows": rows, "checks": checks}
    print_result({**result, "holds": all(checks.values())})


def one_scene(
    planner: EdgePlanner, chapter: Chapter, draft_ms: float, rtt_ms: float, devices: int, repeats: int, seconds: float
) -> dict[str, Any]:
    """Race the ways of one scene; return what was foretold and what was measured."""
    emulated, drafter = EdgeDevice(draft_ms=draft_ms, rtt_ms=rtt_ms), planner.named("small")
    device = measured_by_itself(emulated)
    plan = planner.plan(drafter, device, devices)
    search = planner.search(drafter, devices)
    eights = DeviceDrafting(chain=ConfidentChainPolicy(length=8, confidence=0.0), ahead=0)
    rounds = [edge_rounds(eights.chain, search.recording)] * devices
    by_hand = EdgeChoice(
        draftings=(eights,) * devices,
        rule=BatchRule(),
        forecast=forecast([device] * devices, (eights,) * devices, rounds, BatchRule(), search.costs),
    )
    ways = {"planned": plan.best, "usual": plan.usual, "chains of 8": by_hand}
    kept = {
        name: float(edge_rounds(way.draftings[0].chain, search.recording).kept.mean()) for name, way in ways.items()
    }
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(repeats):
        names = list(ways)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            measured[name].append(rounds_per_s(ways[name], emulated, devices, seconds))
    row: dict[str, Any] = {
        "draft_ms": draft_ms,
        "rtt_ms": rtt_ms,
        "devices": devices,
        "measured_by_devices": asdict(device),
        "planned": f"{plan.best.draftings[0].label}; {plan.best.rule.label}",
        "server_alone_tokens_per_s": plan.server_tokens_per_s,
        "ways": {
            name: {
                "predicted": statistics.fmean(way.forecast.tokens_per_s),
                "measured": kept[name] * statistics.median(rounds for rounds, _ in measured[name]),
                "rounds_per_s": [rounds for rounds, _ in measured[name]],
                "tokens_per_round": {"recorded": kept[name], "raced": [tokens for _, tokens in measured[name]]},
            }
            for name, way in ways.items()
        },
    }
    said = ", ".join(f"{n} {w['measured']:.1f} (predicted {w['predicted']:.1f})" for n, w in row["ways"].items())
    print(
        f"{draft_ms:g} ms a token, {rtt_ms:g} ms away, {devices} devices: {said} tokens/s each; {row['planned']}",
        flush=True,
    )
    return row


def measured_by_itself(device: EdgeDevice) -> EdgeDevice:
    """Return what an emulated device finds of itself when it introduces itself to a server, as any device does."""
    with served(
        BatchRule(), 1, lambda _: Welcome(drafting=DeviceDrafting(), most_drafted=MOST_DRAFTED, reason="")
    ) as server:
        command = [sys.executable, str(Path(__file__).with_name("edge_device.py"))]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
            _tell(one, _told(None, device, server.port, 0))
            assert one.stdout is not None
            return EdgeDevice(**json.loads(one.stdout.readline()))


@contextmanager
def served(rule: BatchRule, slots: int, welcome: Callable[[Hello], Welcome]) -> Iterator[EdgeServer]:
    """Serve the demo's target."""
    models = family_models(family_folder())
    target = load_model(str(models.target), dtype=DTYPE, device="cpu")
    verifier = EdgeVerifier(target, slots=slots, capacity=512, most_drafted=MOST_DRAFTED)
    server = EdgeServer(VerificationQueue(verifier, rule, welcome))
    thread = serve_in_thread(server)
    try:
        yield server
    finally:
        server.stop()
        thread.join()


def rounds_per_s(way: EdgeChoice, device: EdgeDevice, devices: int, seconds: float) -> tuple[float, float]:
    """Return rounds/s of a device, on average, where so many draft in a way, and the tokens that a round has kept."""
    command = [sys.executable, str(Path(__file__).with_name("edge_device.py"))]
    with served(way.rule, devices, _never_asked) as server, ExitStack() as stack:
        crowd = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(devices)
        ]
        for place, one in enumerate(crowd):
            _tell(one, _told(way.draftings[place], device, server.port, place))
        for one in crowd:
            assert one.stdout is not None and one.stdout.readline() == "ready\n"
        time.sleep(WARM_S)
        begin = time.perf_counter()
        time.sleep(seconds)
        end = time.perf_counter()
        for one in crowd:
            _tell(one, {})
        seen = [json.loads(one.stdout.readline()) for one in crowd if one.stdout is not None]
    assert not any(one["asked_again"] for one in seen), "a device has waited for a minute"
    counted = [[(tokens, took) for at, tokens, took in one["seen"] if begin <= at <= end] for one in seen]
    rates = [len(own) / sum(took for _, took in own) for own in counted]
    return statistics.fmean(rates), statistics.fmean(tokens for own in counted for tokens, _ in own)


def _told(drafting: DeviceDrafting | None, device: EdgeDevice, port: int, place: int) -> dict[str, Any]:
    told = {"draft_ms": device.draft_ms, "rtt_ms": device.rtt_ms, "core": DEVICE_CORE, "dtype": DTYPE, "port": port}
    return {**told, "drafting": drafting and asdict(drafting), "most_drafted": MOST_DRAFTED, "first": 3 * place}


def _tell(one: subprocess.Popen[str], told: dict[str, Any]) -> None:
    assert one.stdin is not None
    one.stdin.write(json.dumps(told) + "\n")
    one.stdin.flush()


def _never_asked(hello: Hello) -> Welcome:
    raise AssertionError(f"devices of this benchmark know how to draft, {hello.drafter} has asked")


def verdicts(rows: Sequence[dict[str, Any]]) -> dict[str, bool]:
    """Return what holds."""
    found = {}
    for row in rows:
        ways = row["ways"]
        place = f"{row['draft_ms']:g} ms a token, {row['rtt_ms']:g} ms away, {row['devices']} devices"
        best = max(way["measured"] for name, way in ways.items() if name != "planned")
        ratio = ways["planned"]["measured"] / best
        found[f"{place}: planned at least {LEAST_RATIO} of the best ({ratio:.3f})"] = ratio >= LEAST_RATIO
        off = ways["planned"]["measured"] / ways["planned"]["predicted"] - 1.0
        found[f"{place}: planned within {MOST_OFF:.0%} of its prediction ({off:+.1%})"] = abs(off) <= MOST_OFF
    return found


if __name__ == "__main__":
    main()
