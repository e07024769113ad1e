"""`spectune watch` over HTTP: reports, metrics of its own, and nothing sent but requests for pages."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.db import open_store
from spectune.planner.plans.document import plan_to_json
from spectune.planner.strategies.chain import ChainPolicy
from spectune.profiler.device import detect
from spectune.profiler.records.wire import to_json
from spectune.service.metrics_page import metrics_page
from spectune.tuning.engines.models import identify_engine_model
from spectune.tuning.engines.plan import EnginePlanRequest, plan_engine

from ..support.engine_policies import chains_by_batch
from ..support.engine_profiles import profiled, saved_models
from ..support.metrics_pages import Rounds, as_prometheus, shown
from ..tuning.engines.test_tune_worlds import serving, tuned

RATES = (0.8, 0.6, 0.4)


@pytest.fixture
def plan(tmp_path: Path) -> str:
    file = tmp_path / "plan.json"
    made = chains_by_batch([(1, 3), (4, 0)])
    chain = replace(made.cells[0], prediction=replace(made.cells[0].prediction, tokens_per_round=2.8))
    file.write_text(plan_to_json(replace(made, cells=(chain, made.cells[1]))))
    return str(file)


def typed(*words: str) -> Result:
    return CliRunner().invoke(main, ["watch", *words])


def test_once_tells_of_all_since_the_start_and_only_asks_for_pages(plan: str) -> None:
    one, two = Rounds(1), Rounds(2)
    one.decode(2000, RATES)
    two.decode(1000, RATES)
    with shown(lambda: one.page(1.0)) as (first, asked), shown(lambda: two.page(1.0)) as (second, _):
        result = typed(first, f"{second}/metrics", "--plan", plan, "--once", "--json")
        assert result.exit_code == 0, result.output
        told = json.loads(result.stdout)
        assert (told["servers"], told["generated"]) == (2, one.tokens + two.tokens)
        assert told["acceptance"] == pytest.approx(RATES, abs=0.05)
        assert set(told) >= {"moment", "accepted", "mix", "gain", "better", "events", "has_left", "planned"}
        assert "tokens a round that drafts: 2.8" in typed(first, "--plan", plan, "--once").stdout
    assert set(asked) == {"GET /metrics"}


def test_a_span_counts_what_lies_in_it(plan: str) -> None:
    rounds = Rounds(1)
    rounds.decode(5000, (0.1, 0.1, 0.1))

    def page() -> str:
        text = rounds.page(1.0)
        rounds.decode(100, RATES)
        return text

    with shown(page) as (url, asked):
        told = json.loads(typed(url, "--plan", plan, "--for", "1s", "--json").stdout)
    assert told["acceptance"] == pytest.approx(RATES, abs=0.12)
    assert len(asked) >= 4  # the running batch is looked at more often


def test_two_pages_are_a_span(plan: str, tmp_path: Path) -> None:
    rounds, pages = Rounds(1), [tmp_path / "before", tmp_path / "after"]
    for page, rates in zip(pages, ((0.1, 0.1, 0.1), RATES), strict=True):
        rounds.decode(2000, rates)
        page.write_text(rounds.page(1.0))
    words = ("--before", str(pages[0]), "--after", str(pages[1]), "--plan", plan)
    told = json.loads(typed(*words, "--json").stdout)
    assert told["acceptance"] == pytest.approx(RATES, abs=0.05) and told["accepted"] == "as planned"
    turned = typed("--before", str(pages[1]), "--after", str(pages[0]), "--plan", plan)
    assert "event:" in turned.stdout and "the server started again in between" in turned.stdout
    assert typed(*words[2:]).exit_code == 2


def test_a_stored_plan_is_priced_by_the_store_s_records(tmp_path: Path) -> None:
    """llama.cpp drafts for all what is best for one sequence; at 4 at once another way is better."""
    (tmp_path / "models").mkdir()
    models, store = saved_models(tmp_path / "models"), str(tmp_path / "store.db")
    with open_store(store) as opened:
        profiled(models, opened)
        target = identify_engine_model(models.target)
        number, plan = plan_engine(EnginePlanRequest(engine="llama.cpp", target=target, device=detect("cpu")), opened)
    one, four = plan.cells
    assert isinstance(one.policy, ChainPolicy) and one.policy != four.policy
    rounds = Rounds(1, "llama.cpp")
    rounds.decode(3000, [0.8**place for place in range(1, one.policy.length + 1)])
    with shown(lambda: rounds.page(4.0)) as (url, _):
        words = (url, "--plan", str(number), "--store", store, "--once", "--json")
        told = json.loads(typed(*words).stdout)
    assert told["shares"] == {"1": 0.0, "4": 1.0} and told["accepted"] == "as planned"
    assert told["gain"] > 1.05 and {one["now"] for one in told["better"]} == {f"{one.policy.length} by small"}
    nowhere = typed(url, "--plan", "1", "--store", str(tmp_path / "no.db"), "--once")
    assert nowhere.exit_code == 1 and "there is no store at" in nowhere.stderr


def test_a_bundle_and_a_prometheus_server_do_as_well(tmp_path: Path) -> None:
    bundle, rounds = tmp_path / "out.json", Rounds(3)
    bundle.write_text(to_json(tuned(serving(3, takes_table=True)).bundle))
    rounds.decode(500, RATES)
    with shown(lambda: as_prometheus(rounds.page(1.0))) as (url, _):
        result = typed("--prometheus", url, "--match", 'job="x"', "--bundle", str(bundle), "--once", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["generated"] == rounds.tokens


def test_its_own_metrics_are_shown_at_a_port(plan: str) -> None:
    rounds = Rounds(1)
    rounds.decode(10, RATES)

    def page() -> str:
        rounds.decode(300, (0.2, 0.1, 0.1))
        return rounds.page(1.0)

    with shown(page) as (url, _):
        words = ["watch", url, "--plan", plan, "--interval", "1s", "--listen", "0"]
        code = "import sys; from spectune.cli import main; main(sys.argv[1:])"
        process = subprocess.Popen(
            [sys.executable, "-c", code, *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
        )
        try:
            assert process.stderr is not None
            place = re.search(r"http://\S+/metrics", process.stderr.readline())
            assert place is not None
            end, text = time.monotonic() + 30.0, ""
            while "spectune_watch" not in text and time.monotonic() < end:
                time.sleep(0.1)
                text = httpx.get(place[0]).text
            assert httpx.get(place[0].replace("metrics", "other")).status_code == 404
            process.send_signal(signal.SIGINT)
            assert process.wait(30.0) == 130
        finally:
            process.kill()
    assert 'spectune_watch_left_plan{what="acceptance",direction="lower"} 1.0' in text
    assert re.search(r'spectune_watch_acceptance\{position="1"\} 0\.[12]', text)
    assert "# TYPE spectune_watch_events_total counter" in text


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "give URLs of servers, or --prometheus URL"),
        (("http://127.0.0.1:9", "--prometheus", "http://127.0.0.1:9"), 2, "give URLs of servers"),
        (("here:8000", "--once"), 2, "is no URL"),
        (("http://127.0.0.1:9", "--match", "x"), 2, "--match chooses among"),
        (("http://127.0.0.1:9", "--once"), 1, "does not answer"),
        (("http://127.0.0.1:9", "--interval", "soon"), 2, "is no span of time"),
    ],
)
def test_what_cannot_be_watched_is_said(plan: str, words: tuple[str, ...], code: int, said: str) -> None:
    result = typed(*words, "--plan", plan)
    assert result.exit_code == code and said in result.stderr


def test_a_plan_is_needed() -> None:
    result = typed("http://127.0.0.1:9")
    assert result.exit_code == 2 and "give --plan PLAN or --bundle FILE" in result.stderr


def test_a_port_that_is_taken_is_said(plan: str) -> None:
    rounds = Rounds(1)
    rounds.decode(10, RATES)
    with metrics_page("127.0.0.1", 0) as taken, shown(lambda: rounds.page(1.0)) as (url, _):
        result = typed(url, "--plan", plan, "--listen", str(taken.server_port), "--for", "1s")
    assert result.exit_code == 1 and "give another --listen PORT" in result.stderr
