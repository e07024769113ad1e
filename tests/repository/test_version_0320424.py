"""What version 0320424 wrote opens, and runs equally: a store and its export, a plan, and what its API sends."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import spectune
from spectune.cli import main
from spectune.db import open_store, wire
from spectune.db.exchange.check import faults_of
from spectune.db.exchange.folder import read_folder, write_folder
from spectune.db.exchange.merge import merge
from spectune.db.exchange.records import Shared, everything
from spectune.db.jobs.jobs import JobTold
from spectune.db.rows import PlanEvent, PlanRow, RecordPlaces, Records, SurfaceRow, TraceRow
from spectune.db.sources import PlanSource
from spectune.db.sql.engines import sqlite_engine
from spectune.db.sql.migrate import HEAD, stored_versions
from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import resolve_url
from spectune.planner.plans.document import plan_from_json, plan_to_json
from spectune.planner.plans.observation import Observation
from spectune.planner.plans.validation import Validation, validation_to_json
from spectune.profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from spectune.profiler.records.device import Device
from spectune.profiler.records.model import ModelIdentity
from spectune.profiler.records.overhead import RoundOverhead
from spectune.profiler.records.surface import LatencySurface
from spectune.profiler.records.visit import Visit
from spectune.profiler.records.wire import from_json, to_json
from spectune.runtime.batch.step_config import always
from spectune.runtime.engine.generator import Generator
from spectune.runtime.fallbacks import alternative_setup
from spectune.runtime.models.loading import load_tokenizer
from spectune.runtime.plan_choice import Choice
from spectune.service.health import Health
from spectune.service.jobs import NewJob
from spectune.service.plans import DriftReport
from spectune.tuning.family import load_family
from spectune.tuning.plan import SolveOptions, make_plan
from spectune.tuning.request import Models, PlanRequest

from ..support.older_store import make_older
from ..support.sent_bodies import REF, Described, described

HERE = Path(__file__).parents[1] / "data" / "v0320424"
FAMILY = Path(__file__).parents[2] / "demo" / "models"
SCHEMA = "0005"  # of the store
DRAFTERS = ("small", "eagle3")
PLAN = 2  # the number of the plan that lies beside the store; plan 1 was validated and decoded with
CELLS: dict[str, Any] = {"batches": (1, 4), "contexts": (40,), "trials": 4, "seed": 3}
PROMPTS = ["def main():", "class Node:\n    def", "import os\n", "for line in", "    return self."]
SHORT = 16  # tokens
LEAST_WAYS = 5  # of drafting by each drafter, among the alternatives of the plan
PLACES = {"created", "spectune", "location"}  # what a plan says of when, by what and from where it was made
TOLERANCE = 1e-9  # processors add up in different orders
KINDS = (
    *(wire.Added, wire.Decision, wire.Document, wire.Finish, wire.NewMeasurements, wire.NewPlan, wire.NewUpload),
    *(wire.OpenedProfile, wire.Problem, wire.ProfileOpening, wire.Resolved, wire.Resolving, wire.Rollback),
    *(wire.ServiceInfo, wire.Surfaces, wire.UploadState, wire.Visits, AcceptanceTrace, Device, DriftReport, Health),
    *(JobTold, LatencySurface, ModelIdentity, NewJob, PairwiseAcceptance, PlanEvent, PlanRow, PlanSource),
    *(RecordPlaces, Records, RoundOverhead, SurfaceRow, TraceRow, Visit),
)
BY_NAME: dict[str, Any] = {kind.__name__: kind for kind in KINDS}


def unpacked(folder: Path) -> Path:
    """Write a copy of the store into a folder."""
    file = folder / "store.db"
    file.write_bytes(gzip.decompress((HERE / "store.db.gz").read_bytes()))
    return file


def schema_of(file: Path) -> tuple[str, ...]:
    engine = sqlite_engine(resolve_url(str(file)))
    with engine.connect() as connection:
        found = stored_versions(connection)
    engine.dispose()
    return found


def as_exported(items: Iterator[Shared]) -> list[str]:
    return sorted(map(to_json, items))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return unpacked(tmp_path)


@pytest.fixture
def store(file: Path) -> Iterator[SqlStore]:
    with SqlStore(resolve_url(str(file))) as opened:
        yield opened


def test_its_store_is_upgraded_and_without_fault(file: Path) -> None:
    assert schema_of(file) == (SCHEMA,)
    with SqlStore(resolve_url(str(file))) as store:
        assert list(faults_of(store)) == []
    assert schema_of(file) == (HEAD,)


def test_its_store_holds_what_it_exported(store: SqlStore) -> None:
    assert as_exported(everything(store)) == as_exported(read_folder(HERE / "exchange"))


def test_its_store_keeps_everything_on_the_way_down_and_up(file: Path) -> None:
    make_older(file)
    with SqlStore(resolve_url(str(file))) as store:
        assert as_exported(everything(store)) == as_exported(read_folder(HERE / "exchange"))


def test_its_export_is_merged_into_a_new_store_and_written_again_byte_for_byte(tmp_path: Path) -> None:
    with SqlStore(resolve_url(str(tmp_path / "new.db"))) as store:
        merge(store, lambda: read_folder(HERE / "exchange"))
        written = {each.path for each in write_folder(everything(store), tmp_path / "out")}
    assert {path.relative_to(tmp_path / "out"): path.read_text() for path in written} == {
        path.relative_to(HERE / "exchange"): path.read_text() for path in (HERE / "exchange").rglob("*.json")
    }


def test_its_plans_are_read_and_written_byte_for_byte(store: SqlStore) -> None:
    texts = [store.plan(row.id) for row in store.plans()]
    assert [plan_to_json(plan_from_json(text)) for text in texts] == texts
    assert texts[PLAN - 1] == (HERE / "plan.json").read_text()


def test_its_command_line_shows_the_plan(file: Path, tmp_path: Path) -> None:
    places = {"SPECTUNE_STORE": str(file), "SPECTUNE_CACHE": str(tmp_path / "cache")}
    open_store(str(file)).close()  # `show` changes no schema
    result = CliRunner(env=places).invoke(main, ["show", "plan", "--id", str(PLAN), "-o", str(tmp_path / "plan.json")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "plan.json").read_bytes() == (HERE / "plan.json").read_bytes()


def test_what_became_of_its_plan_is_read_and_written_byte_for_byte(store: SqlStore) -> None:
    (validation,), (observation,) = store.validations(1), store.observations(1)
    assert validation_to_json(from_json(Validation, validation)) == validation
    assert to_json(from_json(Observation, observation)) == observation


def test_its_plan_is_solved_again(store: SqlStore) -> None:
    """Its own plan priced a lone cell by rounds at all contexts; `solved.json` prices it by those around its own."""
    expected = json.loads((HERE / "solved.json").read_text())
    for model in store.models():  # where they lie says how much memory they take
        store.add_model(replace(model, location=str(FAMILY / model.name)))
    target = store.find_model(plan_from_json((HERE / "plan.json").read_text()).target.key)
    (device,) = store.devices()
    assert target is not None
    request = PlanRequest(target=target, device=device, dtype="float32", **CELLS)
    found = json.loads(plan_to_json(make_plan(request, store, SolveOptions(jobs=1))))
    assert list(differences(found, expected)) == []


def differences(found: Any, expected: Any, place: str = "plan") -> Iterator[str]:
    """Yield where two JSON values differ, other than in the last digits of a number."""
    if isinstance(expected, dict) and isinstance(found, dict) and list(found) == list(expected):
        for name in expected.keys() - PLACES:
            yield from differences(found[name], expected[name], f"{place}.{name}")
    elif isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        for number, pair in enumerate(zip(found, expected, strict=True)):
            yield from differences(*pair, f"{place}[{number}]")
    elif isinstance(expected, float) and isinstance(found, float):
        if not math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            yield f"{place}: {found!r} instead of {expected!r}"
    elif found != expected:
        yield f"{place}: {found!r} instead of {expected!r}"


@pytest.fixture(scope="module")
def plain() -> list[tuple[int, ...]]:
    return tokens_of(spectune.load(FAMILY / "target", device="cpu", plan="none", dtype="float32"))


def tokens_of(generator: Generator) -> list[tuple[int, ...]]:
    alone = generator.generate(PROMPTS[0], max_new_tokens=48)
    together = generator.generate_batch(PROMPTS[1:], slots=4, max_new_tokens=32)
    return [completion.tokens for completion in (alone, *together)]


@pytest.mark.lossless
@pytest.mark.parametrize("source", ["this device", "file"])
def test_its_plan_decodes_the_targets_own_tokens(
    source: str, file: Path, plain: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(str(file)) as opened:  # upgrades it
        (device,) = opened.devices()
    monkeypatch.setattr("spectune.runtime.load.detect", lambda wanted: device)  # as on the machine that it is for
    generator = spectune.load(
        FAMILY / "target",
        store=file,
        plan="auto" if source == "this device" else HERE / "plan.json",
        drafters={name: FAMILY / name for name in DRAFTERS},
    )
    choice = generator.choice
    assert (choice.source, choice.plan_id) == (source, PLAN if source == "this device" else None)
    assert choice.plan == plan_from_json((HERE / "plan.json").read_text())
    assert choice.substitutes == ()
    assert tokens_of(generator) == plain


@pytest.mark.lossless
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_its_plans_alternatives_decode_the_targets_own_tokens_in_fewer_rounds(
    drafter: str, plain: list[tuple[int, ...]]
) -> None:
    plan = plan_from_json((HERE / "plan.json").read_text())
    models = Models(target=FAMILY / "target", drafters={drafter: FAMILY / drafter})
    family, tokenizer = load_family(models, dtype="float32", device="cpu"), load_tokenizer(str(FAMILY / "target"))
    cell, rounds = plan.cells[0], {}
    for other in (other for other in cell.alternatives if other.drafter == drafter):
        setup = alternative_setup(cell, other)
        choice = Choice(plan=plan, source="file", reason="", substitutes=(((cell.batch, cell.context), setup),))
        generator = Generator(family.target, tokenizer, family.drafters, always(setup), choice)
        completion = generator.generate(PROMPTS[0], max_new_tokens=SHORT)
        assert completion.tokens == plain[0][:SHORT], other.label
        rounds[other.label] = completion.rounds
    assert len(rounds) >= LEAST_WAYS and max(rounds.values()) < SHORT


@cache
def openapi() -> Any:
    return json.loads(gzip.decompress((HERE / "openapi.json.gz").read_bytes()))


@cache
def today() -> Described:
    return described()


def kind_of(name: str) -> Any:
    """Return the record of a schema's name."""
    if name.startswith("Page_"):
        item = BY_NAME[name.removeprefix("Page_").removesuffix("_")]
        return wire.Page[item]  # type: ignore[valid-type]
    return BY_NAME[name]


@pytest.mark.parametrize("body", json.loads((HERE / "wire.json").read_text()), ids=lambda body: body["schema"])
def test_what_its_api_sends_is_read_and_written_equally(body: dict[str, Any]) -> None:
    kind, sent = kind_of(body["schema"]), body["example"]
    if kind is wire.Resolved:  # whose plan is a text only in the record
        sent |= {"plan": json.dumps(sent["plan"])}
    assert json.loads(to_json(from_json(kind, json.dumps(sent)), kind)) == sent


def test_its_clients_find_every_operation_and_need_no_more_parameters() -> None:
    for path, operations in openapi()["paths"].items():
        for method, operation in operations.items():
            known, offered = parameters(operation), parameters(today().document["paths"][path][method])
            assert {*known} <= {*offered}, (method, path)
            assert {each for each, is_needed in offered.items() if is_needed} <= {*known}, (method, path)


def parameters(operation: dict[str, Any]) -> dict[tuple[str, str], bool]:
    """Return where each parameter goes and its name, and whether it is needed."""
    return {(each["in"], each["name"]): each["required"] for each in operation.get("parameters", [])}


def test_its_clients_read_what_is_answered_today() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    judge = jsonschema.Draft202012Validator({"components": openapi()["components"]})
    answers = {(place, body["schema"]): json.dumps(body["example"]) for place, body in today().bodies.items()}
    former = {
        (f"{method.upper()} {path} {status}", content["schema"]["$ref"].removeprefix(REF))
        for path, operations in openapi()["paths"].items()
        for method, operation in operations.items()
        for status, answer in operation["responses"].items()
        for content in answer.get("content", {}).values()
        if "$ref" in content["schema"]
    }
    assert former <= answers.keys()
    for name, example in {(name, answers[place, name]) for place, name in former}:
        judge.evolve(schema={**judge.schema, "$ref": f"{REF}{name}"}).validate(json.loads(example))
