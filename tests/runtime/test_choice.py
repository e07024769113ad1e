"""Which stored plan a device decodes with: the highest rung that holds a sound one, and why it is that one or none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from spectune.db import Store, open_store
from spectune.db.rows import WHAT_IF
from spectune.db.sql.sql_store import SqlStore
from spectune.errors import RequestError
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.plan import Plan
from spectune.planner.pricing.cells import cells_of
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.search import solve
from spectune.profiler.catalogue import catalogued
from spectune.profiler.records.device import GIB, Device
from spectune.runtime.device_match import is_near
from spectune.runtime.plan_choice import Choice, choose_plan

from ..support.faulty_service import FaultyService, served
from ..support.synthetic import DEVICE, TARGET, Language, SkilledDrafter, every_node, inputs, model, record, texts

MADE_UP = "made up"  # workload of the synthetic plans
HERE = replace(DEVICE, libraries=(("torch", "2.13"), ("transformers", "5.1")))


@cache
def solved() -> Plan:
    """Return a made-up plan."""
    language = Language(3)
    trace = record(SkilledDrafter(language, 0.95), texts(language, 4, lambda text: 8), every_node(1, 2))
    return solve(
        inputs(trace),
        cells_of([1], [10]),
        created="2026-01-01T00:00:00Z",
        spectune="0.1",
        options=SearchOptions(trials=0),
    )


def plan_of(device: Device, created: str = "2026-01-01T00:00:00Z") -> Plan:
    plan = solved()
    return replace(plan, device=device, provenance=replace(plan.provenance, created=created))


def keep(store: Store, plan: Plan, **key: object) -> None:
    """Store a plan under its own keys, or under others."""
    keys: dict[str, object] = {"device": plan.device.fingerprint, "device_kind": plan.device.kind_key}
    keys |= {"target": plan.target.key, "workload": plan.workload, "temperature": plan.temperature} | key
    store.add_plan(plan_to_json(plan), **keys)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened


def chosen(
    store: Store | Path,
    plan: str = "auto",
    workload: str | None = MADE_UP,
    device: Device = HERE,
    target: str = "large",
) -> Choice:
    """Return what a device decodes with."""
    place = str(store) if isinstance(store, Path) else store.url.removeprefix("sqlite:///")
    return choose_plan(plan, target=model(target), device=device, store=place, workload=workload, temperature=0.0)


def test_the_newest_plan_of_exactly_this_device_comes_first(store: Store) -> None:
    keep(store, plan_of(HERE, "2026-01-01T00:00:00Z"))
    keep(store, plan_of(HERE, "2026-02-02T00:00:00Z"))
    keep(store, plan_of(replace(HERE, threads=1), "2026-03-03T00:00:00Z"))
    choice = chosen(store)
    assert (choice.source, choice.reason) == ("this device", "plan made on this device")
    assert choice.plan is not None and choice.plan.provenance.created.startswith("2026-02")
    assert choice.match is not None and choice.match.grade == "same"


def test_without_its_own_the_nearest_device_of_the_kind_lends_its_plan(store: Store) -> None:
    near = replace(HERE, libraries=(("torch", "2.12"), ("transformers", "5.1")))
    keep(store, plan_of(near))
    keep(store, plan_of(replace(near, threads=1)))
    choice = chosen(store)
    assert choice.plan is not None and choice.plan.device == near
    assert choice.source == "same kind of device"


def test_what_differs_of_a_borrowed_plan_is_named(store: Store) -> None:
    keep(store, plan_of(replace(HERE, threads=1, libraries=(("torch", "2.12"), ("transformers", "5.1")))))
    reason = chosen(store).reason
    assert "threads 1 instead of 2, torch 2.12 instead of 2.13" in reason
    assert "its prediction may be off" in reason


def test_of_a_borrowed_device_the_newest_plan_counts(store: Store) -> None:
    other = replace(HERE, threads=1)
    keep(store, plan_of(other, "2026-01-01T00:00:00Z"))
    keep(store, plan_of(other, "2026-02-02T00:00:00Z"))
    plan = chosen(store).plan
    assert plan is not None and plan.provenance.created.startswith("2026-02")


def test_a_plan_that_nobody_should_follow_unseen_is_followed_with_a_word(store: Store) -> None:
    made = plan_of(HERE)
    (cell,) = made.cells
    keep(store, replace(made, cells=(replace(cell, context=900, priced_at=10),)))
    for plan in ("auto", "1"):
        assert "; context 900 is priced as 10, the longest that was timed" in chosen(store, plan).reason


def test_a_nearer_device_with_plans_for_other_requests_only_is_passed_over(store: Store) -> None:
    near, far = replace(HERE, libraries=()), replace(HERE, libraries=(), threads=1)
    keep(store, plan_of(near), workload="other")
    keep(store, plan_of(far))
    plan = chosen(store).plan
    assert plan is not None and plan.device == far


def test_another_kind_of_device_means_plain_decoding(store: Store) -> None:
    keep(store, plan_of(replace(HERE, cores=64)))
    choice = chosen(store)
    assert (choice.plan, choice.source, choice.match) == (None, "none", None)
    assert "no plan for" in choice.reason


def test_a_plan_filed_under_the_wrong_kind_means_plain_decoding(store: Store) -> None:
    keep(store, plan_of(replace(HERE, cores=64)), device_kind=HERE.kind_key)
    choice = chosen(store)
    assert choice.plan is None
    assert "cores 64 instead of 2" in choice.reason


def test_a_damaged_plan_means_plain_decoding(store: Store) -> None:
    store.add_plan(
        "{}", device="d", device_kind=HERE.kind_key, target=TARGET.key, workload=solved().workload, temperature=0.0
    )
    assert chosen(store).reason.startswith("plain decoding, the stored plan is of no use")


def test_no_store_means_plain_decoding(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_text("no database")
    assert chosen(tmp_path / "store.db").plan is None


def test_a_store_that_may_only_be_read_gives_its_plan(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(store, plan_of(HERE))
    store.close()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert (chosen(store).source, chosen(store, "1").source) == ("this device", "number")


def test_plain_decoding_can_be_asked_for(store: Store) -> None:
    keep(store, plan_of(HERE))
    assert chosen(store, "none").reason == "plain decoding was asked for"


@pytest.mark.parametrize(
    ("device", "caution"),
    [(HERE, ""), (replace(HERE, threads=1), " with threads 1 instead of 2; its prediction may be off")],
)
def test_a_plan_file_says_what_differs(store: Store, tmp_path: Path, device: Device, caution: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(plan_to_json(plan_of(device)))
    choice = chosen(store, str(file))
    assert (choice.source, choice.reason) == ("file", f"plan from {file}{caution}")


def test_without_a_workload_the_default_one_goes_first_and_is_named(store: Store) -> None:
    keep(store, replace(plan_of(HERE), workload="default"))
    keep(store, replace(plan_of(HERE, "2026-02-02T00:00:00Z"), workload="chat"))
    choice = chosen(store, workload=None)
    assert choice.reason == "plan made on this device for the workload 'default'"


def test_without_a_workload_and_a_default_the_newest_counts(store: Store) -> None:
    for workload in ("chat", "code"):
        keep(store, replace(plan_of(HERE), workload=workload))
    assert chosen(store, workload=None).reason == "plan made on this device for the workload 'code'"


def test_this_device_counts_more_than_the_default_workload(store: Store) -> None:
    keep(store, replace(plan_of(replace(HERE, threads=1)), workload="default"))
    keep(store, replace(plan_of(HERE), workload="chat"))
    assert chosen(store, workload=None).source == "this device"


def test_a_plan_for_another_workload_is_no_plan_where_one_is_named(store: Store) -> None:
    keep(store, replace(plan_of(HERE), workload="chat"))
    assert "no plan for" in chosen(store, workload="default").reason


def test_a_damaged_plan_is_passed_over_for_an_older_one_and_that_is_said(store: Store) -> None:
    keep(store, plan_of(HERE))
    place, kind = HERE.fingerprint, HERE.kind_key
    store.add_plan("{}", device=place, device_kind=kind, target=TARGET.key, workload=MADE_UP, temperature=0.0)
    choice = chosen(store)
    assert (choice.source, choice.plan_id) == ("this device", 1)
    assert "passed over: plan 2: the plan lacks version, device" in choice.reason


def test_the_store_s_number_of_a_plan_is_told(store: Store) -> None:
    keep(store, plan_of(HERE))
    keep(store, plan_of(HERE))
    assert chosen(store).plan_id == 2


def test_a_device_that_differs_in_the_size_of_its_memory_lends_a_guess(store: Store) -> None:
    keep(store, plan_of(replace(HERE, memory_bytes=2**36)))
    choice = chosen(store)
    assert (choice.source, choice.is_guess) == ("nearest device", True)
    assert choice.reason.startswith("a guess: plan made on Abacus")
    assert "memory (GiB) 64 instead of 16" in choice.reason


def gpu(name: str, **more: object) -> Device:
    fields: dict[str, object] = {"kind": "cuda", "name": name, "index": 0, "memory_bytes": 80 * GIB} | more
    return Device(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("here", "there", "dtype", "near"),
    [
        (gpu("NVIDIA H200"), gpu("NVIDIA H200", compute_capability="9.0"), "bfloat16", True),
        (gpu("NVIDIA H200"), gpu("NVIDIA H100 80GB HBM3"), "bfloat16", False),  # 4.8 and 3.35 TB/s
        (gpu("NVIDIA GeForce RTX 3090"), gpu("NVIDIA L40S"), "bfloat16", False),  # alike in bandwidth alone
        (gpu("NVIDIA H200"), gpu("NVIDIA H200", compute_capability="9.0", mig_profile="1g.18gb"), "bfloat16", False),
        (gpu("NVIDIA H200"), gpu("NVIDIA H200", compute_capability="9.0"), "int3", False),  # of unknown speed
        (gpu("Unknown"), gpu("Unknown", compute_capability="9.0"), "bfloat16", False),
        (gpu("NVIDIA H200"), HERE, "bfloat16", False),
    ],
)
def test_devices_are_near_where_bandwidth_and_arithmetic_are_known_to_be_close(
    here: Device, there: Device, dtype: str, near: bool
) -> None:
    assert is_near(here, there, dtype) is near
    assert is_near(there, here, dtype) is near


def test_a_near_device_is_left_only_where_no_number_format_makes_it_near(store: Store) -> None:
    here, there = gpu("NVIDIA L40S"), gpu("NVIDIA GeForce RTX 4090")  # alike in bandwidth and float32 alone
    keep(store, replace(plan_of(there), dtype="float32"))
    keep(store, replace(plan_of(there), dtype="bfloat16"))  # newer, and too far
    choice = chosen(store, device=here)
    assert (choice.source, choice.plan_id) == ("nearest device", 1)


def test_of_a_far_device_one_plan_is_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        keep(store, plan_of(gpu("NVIDIA L4")))
    read, plan_of_store = list[int](), SqlStore.plan

    def counted(opened: SqlStore, plan_id: int) -> str:
        read.append(plan_id)
        return plan_of_store(opened, plan_id)

    monkeypatch.setattr(SqlStore, "plan", counted)
    assert chosen(store).plan is None
    assert read == [3]


def test_a_plan_of_a_far_device_is_named_and_not_used(store: Store) -> None:
    keep(store, plan_of(gpu("NVIDIA L4")))
    choice = chosen(store)
    assert choice.plan is None
    assert "those for NVIDIA L4 (cuda:0, 80 GiB) are too far" in choice.reason


def test_an_estimate_for_this_device_is_followed_as_a_guess_where_nothing_was_measured(store: Store) -> None:
    twin, here = catalogued("H200").device, gpu("NVIDIA H200", driver="570.1", compute_capability="9.0")
    keep(store, plan_of(twin), device=f"what-if:{twin.fingerprint}", device_kind=f"what-if:{twin.kind_key}")
    choice = chosen(store, device=here)
    assert (choice.source, choice.is_guess) == ("estimate", True)
    assert choice.reason.startswith("a guess: plan estimated for NVIDIA H200")
    assert chosen(store).plan is None  # another device


def test_a_measured_plan_goes_before_an_estimate(store: Store) -> None:
    keep(store, plan_of(replace(HERE, threads=1)))
    keep(store, plan_of(HERE), device=f"what-if:{HERE.fingerprint}", device_kind=f"what-if:{HERE.kind_key}")
    assert chosen(store).source == "same kind of device"


def test_a_store_is_named_by_its_url_in_place_of_a_plan(store: Store, tmp_path: Path) -> None:
    keep(store, plan_of(HERE))
    assert chosen(tmp_path / "other.db", plan=store.url).source == "this device"


@pytest.mark.parametrize("url", ["https://plans.example", "no-such-database://x"])
def test_a_store_that_cannot_be_opened_means_plain_decoding(url: str, tmp_path: Path) -> None:
    choice = chosen(tmp_path / "store.db", plan=url)
    assert choice.plan is None and choice.reason.startswith("plain decoding, the stored plan is of no use: ")


def filed(tmp_path: Path, plan: Plan) -> str:
    """Return the file of a plan."""
    (tmp_path / "plan.json").write_text(plan_to_json(plan))
    return str(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"device": replace(HERE, cores=64)}, "it is for another device .* cores 64 instead of 2"),
        ({"target": model("other")}, "it is for the model other, not for large"),
        (
            {"target": replace(model("large"), weights_hash="f" * 64)},
            r"it is for other weights of the same name large: f{16}, and these are [0-9a-f]{16}; profile and plan",
        ),
    ],
)
def test_a_foreign_plan_file_means_plain_decoding(change: dict, why: str, store: Store, tmp_path: Path) -> None:
    choice = chosen(store, filed(tmp_path, replace(plan_of(HERE), **change)))
    assert choice.plan is None and re.search(why, choice.reason)


def test_a_plan_file_of_another_engine_means_plain_decoding(store: Store, tmp_path: Path) -> None:
    plan = plan_of(HERE)
    (first, *others) = plan.provenance.surfaces
    priced = replace(first, role="round:plain", regime="engine:llama.cpp-b1")
    foreign = replace(plan, provenance=replace(plan.provenance, surfaces=(priced, *others)))
    choice = chosen(store, filed(tmp_path, foreign))
    assert choice.plan is None and "for another engine" in choice.reason


def test_a_plan_file_for_another_temperature_says_so(store: Store, tmp_path: Path) -> None:
    plan = replace(plan_of(HERE), temperature=0.7)
    choice = chosen(store, filed(tmp_path, plan))
    assert choice.plan == plan and choice.reason.endswith("plan.json, made for temperature 0.7")


@pytest.mark.parametrize(
    ("seen", "written", "why"),
    [
        ('"version": 2', '"version": 1', "of version 1, spectune reads 2"),
        ('"version": 2', '"version": 99', "of version 99"),
        ('"kind": "', '"kind": "clairvoyant-', "cannot be read"),
        ("{", "", "must be JSON"),
        ("{", "\udcff{", "UnicodeDecodeError"),
        ("{", "[" * 100_000, "RecursionError|must be JSON"),
        ('"batch": 1', '"batch": 1' + "0" * 400, "OverflowError|cannot be read"),
        ('"batch": 1', '"batch": 1' + "0" * 5000, "a plan must be JSON"),
    ],
)
def test_a_plan_file_that_cannot_be_read_means_plain_decoding(
    seen: str, written: str, why: str, store: Store, tmp_path: Path
) -> None:
    text = plan_to_json(plan_of(HERE))
    assert seen in text
    (tmp_path / "plan.json").write_bytes(text.replace(seen, written, 1).encode(errors="surrogateescape"))
    choice = chosen(store, str(tmp_path / "plan.json"))
    assert choice.plan is None and re.search(why, choice.reason), choice.reason
    assert "\n" not in choice.reason


def test_an_estimate_in_a_file_is_a_guess(store: Store, tmp_path: Path) -> None:
    choice = chosen(store, filed(tmp_path, plan_of(catalogued("H200").device)), device=gpu("NVIDIA H200"))
    assert choice.source == "estimate" and choice.reason.startswith("a guess: plan estimated for NVIDIA H200")


def test_a_plan_file_that_is_not_there_is_a_mistake_of_the_caller(store: Store, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot read the plan"):
        chosen(store, str(tmp_path / "absent.json"))


def test_a_plan_of_the_store_is_followed_by_its_number_whatever_is_newer_or_promoted(store: Store) -> None:
    for created in ("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"):
        keep(store, plan_of(HERE, created))
    choice = chosen(store, "1")
    assert choice.plan == plan_of(HERE) and (choice.plan_id, choice.source) == (1, "number")
    assert choice.reason.startswith(f"plan 1 of {store.url}")


def test_a_numbered_plan_of_a_near_device_is_a_guess_still(store: Store) -> None:
    keep(store, plan_of(catalogued("H200").device))
    choice = chosen(store, "1", device=gpu("NVIDIA H200"))
    assert (choice.source, choice.plan_id, choice.is_guess) == ("estimate", 1, True)


def test_a_numbered_plan_that_rests_on_guesses_is_told_as_one(store: Store) -> None:
    keep(store, plan_of(HERE), device=f"{WHAT_IF}{HERE.fingerprint}", device_kind=f"{WHAT_IF}{HERE.kind_key}")
    choice = chosen(store, "1")
    assert (choice.source, choice.is_guess, choice.plan_id) == ("estimate", True, 1)
    assert choice.reason.startswith("a guess: ")


def test_what_a_named_plan_was_made_for_is_told_where_something_else_is_wanted(store: Store) -> None:
    keep(store, plan_of(catalogued("H200").device))
    keep(store, plan_of(HERE))
    for number, device in (("1", gpu("NVIDIA H200")), ("2", HERE)):
        choice = choose_plan(
            number, target=model("large"), device=device, store=store.url, workload="chat", temperature=0.8
        )
        assert choice.plan is not None
        assert f"made for temperature 0, made for the workload {MADE_UP!r}" in choice.reason


@pytest.mark.parametrize(
    ("place", "number"), [("batch", 2**21), ("context", 10**400), ("context", 0), ("run_tokens", [0, 10**9])]
)
def test_a_plan_of_numbers_that_no_decoder_could_use_means_plain_decoding(
    place: str, number: object, store: Store, tmp_path: Path
) -> None:
    document = json.loads(plan_to_json(plan_of(HERE)))
    document["cells"][0][place] = number
    (tmp_path / "plan.json").write_text(json.dumps(document))
    choice = chosen(store, str(tmp_path / "plan.json"))
    assert choice.plan is None and "is of no use" in choice.reason


def test_a_numbered_plan_is_followed_while_its_service_is_away_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECTUNE_CACHE", str(tmp_path))
    asked: dict[str, Any] = {"target": model("large"), "device": HERE, "workload": MADE_UP, "temperature": 0.0}
    with served(FaultyService(plans={1: plan_to_json(plan_of(HERE))})) as service:
        first = choose_plan("1", store=service.url, **asked)
    later = choose_plan("1", store=service.url, **asked)
    assert (first.source, later.source, later.plan) == ("number", "number", first.plan)
    assert later.reason.startswith(f"{first.reason}; {service.url} does not answer; what it said on ")


@pytest.mark.parametrize("number", ["2", "0", "9" * 30])
def test_a_number_that_the_store_has_not_is_a_mistake_of_the_caller(number: str, store: Store) -> None:
    keep(store, plan_of(HERE))
    with pytest.raises(RequestError, match=f"has no plan {number}; spectune list"):
        chosen(store, number)


def test_a_store_that_is_named_twice_is_looked_into(store: Store) -> None:
    keep(store, plan_of(HERE))
    choice = choose_plan(
        store.url, target=model("large"), device=HERE, store=store.url, workload=MADE_UP, temperature=0.0
    )
    assert choice.plan == plan_of(HERE)


def test_a_numbered_plan_for_another_target_means_plain_decoding(store: Store) -> None:
    keep(store, plan_of(HERE))
    choice = chosen(store, "1", target="other")
    assert choice.plan is None and "it is for the model large, not for other" in choice.reason


def test_a_policy_that_is_not_known_here_means_plain_decoding(store: Store, tmp_path: Path) -> None:
    document = json.loads(plan_to_json(plan_of(HERE)))
    document["cells"][0]["policy"]["kind"] = "clairvoyant"
    (tmp_path / "plan.json").write_text(json.dumps(document))
    choice = chosen(store, str(tmp_path / "plan.json"))
    assert choice.plan is None and "clairvoyant" in choice.reason
