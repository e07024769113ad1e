"""A store at a real service keeps the contract of every store, and more that only a service can break."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spectune.db import Store, open_store
from spectune.db.jobs.access import Tokens
from spectune.db.remote.remote_store import RemoteStore
from spectune.db.remote.transport import RefusedError
from spectune.db.rows import ENGINE_PLAN, WHAT_IF
from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import TOKEN_VARIABLE, resolve_url, service_url
from spectune.errors import NoPlanError, StoreError
from spectune.planner.plans.document import plan_to_json
from spectune.profiler.records.wire import to_json
from spectune.runtime.plan_choice import Choice, choose_plan
from spectune.service.settings import ServiceSettings

from ...support.faulty_service import FaultyService
from ...support.faulty_service import served as faulty
from ...support.filled_service import validation as filled_validation
from ...support.journal_records import TRACE
from ...support.plan_contract import PlanContract, ShelfContract, SourceContract
from ...support.plans import plan_of
from ...support.postgres_server import PostgresServer, postgres
from ...support.served_store import ServedStore, empty_store, served_store
from ...support.store_contract import IdentityContract, RecordContract, StoreContract
from ...support.whole_plans import WholePlans

__all__ = ["postgres"]

PLAN = plan_of([(1, 100), (4, 100)])


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    monkeypatch.setenv("SPECTUNE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedStore]:
    with served_store(tmp_path) as running:
        yield running


@pytest.fixture
def store(served: ServedStore) -> Iterator[RemoteStore]:
    with RemoteStore(service_url(served.url)) as opened:
        yield opened


def test_a_validation_that_is_refused_for_another_reason_is_told() -> None:
    with (
        faulty(FaultyService(plans={1: "{}"}, unknown=("policy",))) as strict,
        RemoteStore(service_url(strict.url)) as store,
        pytest.raises(StoreError, match="unknown field 'policy'"),
    ):
        store.add_validation(1, to_json(filled_validation(1)))
    assert not strict.outcomes


def add_plan(store: Store, text: str | None = None, *, apart: str = "") -> int:
    return store.add_plan(
        plan_to_json(PLAN) if text is None else text,
        device=f"{apart}{PLAN.device.fingerprint}",
        device_kind=f"{apart}{PLAN.device.kind_key}",
        target=PLAN.target.key,
        workload=PLAN.workload,
        temperature=PLAN.temperature,
    )


def chosen(url: str, dtype: str | None = None) -> Choice:
    return choose_plan(
        "auto", target=PLAN.target, device=PLAN.device, store=url, workload=None, temperature=0.0, dtype=dtype
    )


@pytest.fixture(scope="module")
def on_postgres(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedStore]:
    """Serve one database for all tests: each finds it empty."""
    with served_store(tmp_path_factory.mktemp("served"), url=postgres.new_database()) as running:
        yield running


class TestContract(WholePlans, StoreContract):
    """A service before an SQLite file; every write goes through the service."""

    @pytest.fixture
    def store(self, served: ServedStore) -> Iterator[RemoteStore]:
        with RemoteStore(service_url(served.url)) as opened:
            yield opened


class TestPostgresContract(WholePlans, IdentityContract, RecordContract, PlanContract, SourceContract, ShelfContract):
    """A service before a PostgreSQL: what differs there is how writers take turns and what a snapshot is."""

    @pytest.fixture
    def store(self, on_postgres: ServedStore) -> Iterator[RemoteStore]:
        on_postgres.empty()
        with RemoteStore(service_url(on_postgres.url)) as opened:
            yield opened


class TestPlans:
    def test_a_plan_is_kept_byte_for_byte(self, store: RemoteStore) -> None:
        text = plan_to_json(PLAN).replace(":", " :\t", 1)
        assert store.plan(add_plan(store, text)) == text

    @pytest.mark.parametrize("apart", [WHAT_IF, ENGINE_PLAN])
    def test_plans_that_no_decoder_here_follows_are_filed_apart(self, store: RemoteStore, apart: str) -> None:
        number = add_plan(store, apart=apart)
        assert store.plan_row(number).device == f"{apart}{PLAN.device.fingerprint}"
        with pytest.raises(RefusedError, match="the plan is filed under"):
            add_plan(store, apart="elsewhere:")

    def test_what_is_no_plan_is_refused_with_the_reason(self, store: RemoteStore) -> None:
        with pytest.raises(RefusedError, match="the document is no plan"):
            add_plan(store, "{}")

    def test_a_decoder_finds_its_plan_although_the_service_is_gone(self, tmp_path: Path) -> None:
        with served_store(tmp_path) as served, open_store(served.url) as store:
            add_plan(store)
            first = chosen(served.url)
        again = chosen(served.url)
        assert (first.plan, first.plan_id) == (again.plan, again.plan_id) == (PLAN, 1)
        assert served.url not in first.reason
        assert f"{served.url} does not answer; what it said on 20" in again.reason

    def test_a_decoder_without_any_plan_decodes_plainly_when_the_service_is_gone(self, tmp_path: Path) -> None:
        with served_store(tmp_path) as served:
            pass
        choice = chosen(served.url)
        assert choice.plan is None
        assert "cannot be reached" in choice.reason

    def test_the_service_s_own_verdict_is_what_a_decoder_gets(self, store: RemoteStore) -> None:
        first, second = add_plan(store), add_plan(store)
        assert chosen(store.url).plan_id == second
        store.promote_plan(first, by="ada", reason="it is faster")
        assert (chosen(store.url).plan_id, chosen(store.url).source) == (first, "this device")

    def test_a_wanted_number_format_goes_first_at_the_service_too(self, store: RemoteStore) -> None:
        half = add_plan(store, plan_to_json(replace(PLAN, dtype="bfloat16")))
        newer = add_plan(store)
        assert (chosen(store.url).plan_id, chosen(store.url, "bfloat16").plan_id) == (newer, half)
        assert chosen(store.url, "float16").plan_id == newer

    def test_a_missing_plan_is_told_with_the_service_s_url(self, store: RemoteStore) -> None:
        with pytest.raises(NoPlanError, match=rf"any workload, temperature 0 in {store.url}; run: spectune plan"):
            store.resolve(PLAN.device, PLAN.target.key, None, 0.0)


class TestLargeBodies:
    def test_a_part_of_many_pieces_comes_back_byte_for_byte(self, store: RemoteStore) -> None:
        text = "".join(map(str, range(1_600_000))) + "ü"  # 10 MB
        journal = store.open_profile("key")
        journal.add_part("a/ü name", text)
        assert journal.part("a/ü name") == text

    def test_a_large_write_that_is_refused_says_why(self, store: RemoteStore) -> None:
        journal = store.open_profile("key")
        journal.add_part("name", "first")
        with pytest.raises(StoreError, match=r"part 'name' of profile 1 in .* is already there"):
            journal.add_part("name", "x" * 2**23 + "second")
        assert journal.part("name") == "first"


class TestTokens:
    @pytest.fixture
    def token(self, tmp_path: Path) -> str:
        (tmp_path / "served.db").write_bytes(empty_store())
        with SqlStore(resolve_url(str(tmp_path / "served.db"))) as store:
            return Tokens(store).create("reader", "read")

    @pytest.fixture
    def guarded(self, tmp_path: Path, token: str) -> Iterator[ServedStore]:
        with served_store(tmp_path, ServiceSettings(auth="required", rate_per_s=0.0, workers=0)) as running:
            yield running

    def test_a_store_without_a_token_does_not_open(self, guarded: ServedStore) -> None:
        with pytest.raises(StoreError, match=r"asks for a token, and this client sent none .*; set SPECTUNE_TOKEN"):
            open_store(guarded.url)

    def test_a_token_of_the_variable_opens_it(
        self, guarded: ServedStore, token: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(TOKEN_VARIABLE, token)
        with open_store(guarded.url) as store:
            assert store.plans() == []

    def test_a_reader_may_not_write_and_is_told_so(self, guarded: ServedStore, token: str) -> None:
        with open_store(guarded.url.replace("://", f"://:{token}@")) as store:
            with pytest.raises(StoreError, match=r"the token may not do this at .* wider scope") as refused:
                store.add_trace(TRACE)
            assert token not in str(refused.value) + repr(store) + store.url
        assert guarded.behind.trace_rows() == []
