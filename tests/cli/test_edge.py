"""`spectune edge` as people type it: planned from a profile, served to devices, and decoded on one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.cli.edge_run import _pieces
from spectune.db import open_store
from spectune.planner.edge.setting import BatchRule
from spectune.profiler.device import detect
from spectune.profiler.identity import identify
from spectune.profiler.records.device import Device
from spectune.profiler.records.document import SurfaceDocument, TraceDocument
from spectune.profiler.records.model import ModelIdentity
from spectune.profiler.records.role import CAPTURED
from spectune.profiler.records.surface import LatencySurface
from spectune.profiler.records.wire import to_json
from spectune.runtime.edge.device import EdgeRun
from spectune.runtime.engine.detokenizer import Detokenizer
from spectune.runtime.models import loading
from spectune.tuning.edge import EdgeRequest, adviser_from_store
from spectune.tuning.foreign.importing import read_import
from spectune.tuning.foreign.told import Given

from ..support.synthetic import Language, SkilledDrafter, overhead, record, surface, texts

FAMILY = Path(__file__).parents[2] / "demo" / "models"
TARGET, SMALL = str(FAMILY / "target"), str(FAMILY / "small")
PROMPT = "def main("
SECRET = "secret"


def typed(folder: Path, *arguments: str, token: str = SECRET) -> Result:
    places = {
        "SPECTUNE_STORE": str(folder / "store.db"),
        "SPECTUNE_CACHE": str(folder / "run"),
        "SPECTUNE_EDGE_TOKEN": token,
    }
    return CliRunner(env=places).invoke(main, arguments)


def answered(folder: Path, *arguments: str) -> Any:
    result = typed(folder, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of made-up measurements of real models on this machine."""
    folder = tmp_path_factory.mktemp("profiled")
    here, target, small = detect("cpu"), identify(Path(TARGET)), identify(Path(SMALL))
    language = Language(3)
    spoken = record(SkilledDrafter(language, 0.8), texts(language, 4, lambda text: 30), [(0,) * n for n in range(6)])
    trace = replace(spoken, target=target.key, drafter=small.key, workload="default")
    sizes: dict[str, Any] = {"batches": (1, 2), "contexts": (2, 60), "tokens": range(1, 6)}
    verify = surface("large", "verify", lambda batch, context, tokens: 20.0 + batch * tokens, **sizes)
    draft = surface("small", "draft", lambda batch, context, tokens: 1.0, **sizes)
    host = replace(overhead(0.1, (1, 2)), device=here.fingerprint, target=target.key)
    captured = replace(surface("large", "verify", lambda *shape: 5.0, **sizes), regime=CAPTURED)
    faster = replace(host, regime=CAPTURED)
    documents = [
        SurfaceDocument(surface=on(here, verify, target), device=here, model=target, overhead=host),
        SurfaceDocument(surface=on(here, captured, target), device=here, model=target, overhead=faster),
        SurfaceDocument(surface=on(here, draft, small), device=here, model=small),
        TraceDocument(trace=trace, target=target, drafter=small),
    ]
    with open_store(str(folder / "store.db")) as opened:
        for place, document in enumerate(documents):
            (folder / f"{place}.json").write_text(to_json(document))
            opened.add_records(read_import(folder / f"{place}.json", Given()))
    return folder


def on(device: Device, made_up: LatencySurface, model: ModelIdentity) -> LatencySurface:
    return replace(made_up, device=device.fingerprint, model=model.key)


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[str]:
    """Serve the target in a process of its own; yield where, and ask it to end as people do."""
    command = (sys.executable, "-m", "spectune", "edge", "serve", "--target", TARGET, "--port", "0", *arguments)
    places = {**os.environ, "SPECTUNE_STORE": str(folder / "store.db"), "SPECTUNE_EDGE_TOKEN": SECRET}
    heeds_ctrl_c = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # whoever runs the tests may ignore it
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=places, preexec_fn=heeds_ctrl_c
    ) as process:
        assert process.stderr is not None and process.stdout is not None
        try:
            said = ""
            while not (found := re.search(r"listening on (127\.0\.0\.1:\d+)", said)):
                line = process.stderr.readline()
                assert line, said
                said += line
            yield found[1]
            process.send_signal(signal.SIGINT)
            counters = json.loads(process.communicate(timeout=60)[0])
            assert counters["sessions"] > 0 and counters["drafts"] >= counters["rounds"] > 0
        finally:
            process.kill()


def test_a_plan_says_what_devices_get_and_what_the_server_alone_would_give(profiled: Path) -> None:
    asked = ("edge", "plan", "--target", TARGET, "--drafter", "small", "--dtype", "float32", "--devices", "1,2")
    found = answered(profiled, *asked, "--draft-ms", "0.2", "--rtt-ms", "1")
    assert [each["devices"] for each in found["plans"]] == [1, 2]
    for each in found["plans"]:
        best, usual = each["best"]["forecast"], each["usual"]["forecast"]
        assert min(best["tokens_per_s"]) >= min(usual["tokens_per_s"]) > 0.0
        assert each["drafts_at_the_edge"] is (min(best["tokens_per_s"]) > each["server_tokens_per_s"])
        assert each["server_tokens_per_s"] == pytest.approx(1000.0 / (20.0 + each["devices"] + 0.1))  # run eagerly
    assert "to the server and back" in typed(profiled, *asked, "--devices", "1").stdout


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (("--devices", "3"), "at most 2; profile larger"),
        (("--drafter", "large"), "no drafter 'large'"),
        (("--workload", "other"), "no trace of the workload 'other'"),
    ],
)
def test_what_cannot_be_planned_is_told(changed: tuple[str, ...], reason: str, profiled: Path) -> None:
    asked = ("edge", "plan", "--target", TARGET, "--drafter", "small", "--dtype", "float32", "--devices", "1")
    result = typed(profiled, *asked, *changed)
    assert result.exit_code == 1 and reason in result.output


def test_a_device_decodes_the_target_s_own_text_as_it_was_planned_for_it(profiled: Path) -> None:
    float32 = ("--dtype", "float32", "--prompt", PROMPT, "--max-new-tokens", "24")
    own = answered(profiled, "run", "--target", TARGET, "--plan", "none", *float32)
    with served(profiled, "--dtype", "float32", "--slots", "4", "--most-drafted", "4") as address:
        asked = ("edge", "run", "--server", address, *float32, "--drafter")
        found = answered(profiled, *asked, SMALL)
        shown = typed(profiled, *asked, SMALL, "--stop", "\n")
        other = answered(profiled, *asked, str(FAMILY / "medium"))
        stranger = typed(profiled, *asked, SMALL, token="")
    assert (found["text"], found["tokens"], found["own"]) == (own["text"], own["tokens"], [])
    assert found["reason"].startswith("planned for 2 devices") and found["rounds"] < 24  # as many as were timed
    assert shown.exit_code == 0 and shown.stdout.rstrip("\n") == own["text"].partition("\n")[0]
    assert other["tokens"] == own["tokens"] and other["reason"].startswith("not planned, as is usual: ")
    assert stranger.exit_code == 1 and "asks for a token" in stranger.output


@pytest.mark.parametrize(("devices", "why"), [(None, ""), (2, ""), (3, "3 sequences were not timed, at most 2")])
def test_devices_are_planned_for_up_to_as_many_as_were_timed(devices: int | None, why: str, profiled: Path) -> None:
    asked = EdgeRequest(target=Path(TARGET), device="cpu", dtype="float32")
    with open_store(str(profiled / "store.db")) as opened:
        found = adviser_from_store(asked, opened, slots=32, devices=devices, rule=BatchRule(), most_drafted=4)
    assert why in found.why_not and bool(found.why_not) is bool(why)


def test_without_a_profile_the_server_says_why_devices_draft_as_is_usual(tmp_path: Path) -> None:
    asked = EdgeRequest(target=Path(TARGET), device="cpu", dtype="float32")
    with open_store(str(tmp_path / "store.db")) as opened:
        found = adviser_from_store(asked, opened, slots=2, devices=None, rule=BatchRule(), most_drafted=4)
    assert "spectune profile" in found.why_not


def test_tokens_behind_a_stop_string_are_neither_shown_nor_told() -> None:
    tokenizer = loading.load_tokenizer(SMALL)
    prompt, answer = (tokenizer.encode(text) for text in (PROMPT, "x = 1\ny = 2\n"))
    done = EdgeRun(tokens=list(answer), own=[0, len(answer) - 1])  # which came at once
    transcript = Detokenizer(tokenizer, len(prompt), ("\n",))
    assert "".join(_pieces((tokens for tokens in [answer]), transcript, prompt, done)) == "x = 1"
    assert tokenizer.decode(done.tokens) == "x = 1\n" and done.own == [0]


@pytest.mark.parametrize("waiting", [("--gather", "8"), ("--wait-ms", "5")])
def test_drafts_are_gathered_by_number_and_time_or_not_at_all(waiting: tuple[str, ...], tmp_path: Path) -> None:
    result = typed(tmp_path, "edge", "serve", "--target", TARGET, *waiting)
    assert result.exit_code == 2 and "give both or neither" in " ".join(result.output.split())


@pytest.mark.parametrize("address", ["host:", "host:0", ":8322", "host:99999", "::1"])
def test_an_address_that_is_none_is_refused(address: str, tmp_path: Path) -> None:
    result = typed(tmp_path, "edge", "run", "--server", address, "--drafter", SMALL, "--prompt", PROMPT)
    assert result.exit_code == 2 and "is no HOST:PORT" in result.output


@pytest.mark.parametrize(
    ("drafter", "reason"), [("nowhere", "nowhere"), (str(FAMILY / "eagle3"), "reads what the target computes")]
)
def test_what_cannot_draft_on_a_device_is_refused_before_anything_is_loaded(
    drafter: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "load_tokenizer", None)
    result = typed(tmp_path, "edge", "run", "--server", "127.0.0.1:9", "--drafter", drafter, "--prompt", PROMPT)
    assert result.exit_code == 1 and reason in result.output
