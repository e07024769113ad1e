"""Timing alone: every role, models without weights, and nothing recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spectune.db import Store, open_store
from spectune.errors import MeasurementError, RequestError
from spectune.tuning.latency_profile import LatencyProfile, LatencyRequest, profile_latency
from spectune.tuning.request import Models

from ..support.coarse_design import BUDGET_S, timed_coarsely
from ..support.tiny_family import save_model

__all__ = ["timed_coarsely"]

ROLES = ("verify", "draft", "prefill", "exit:1", "loop:2")


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("family")
    save_model(folder / "target", layers=2, seed=1)
    save_model(folder / "small", layers=1, seed=2)
    return Models(target=folder / "target", drafters={"small": folder / "small"})


def request(models: Models, *, contexts: tuple[int, ...] = (8, 24), roles: tuple[str, ...] = ROLES) -> LatencyRequest:
    return LatencyRequest(
        models=models,
        contexts=contexts,
        roles=roles,
        dtype="float32",
        batches=(1, 2),
        most_tokens=6,
        budget_s=BUDGET_S,
        held_out=4,
    )


def timed(wanted: LatencyRequest, store: Store) -> LatencyProfile:
    return profile_latency(wanted, store, lock_wait_s=60.0, progress=lambda what, share: None)


def stopped(wanted: LatencyRequest, store: Store) -> None:
    """Begin a profile and stop it by hand once something is timed."""

    def stop(what: str, share: float) -> None:
        if what == "timing forwards":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile_latency(wanted, store, lock_wait_s=60.0, progress=stop)


@pytest.fixture(scope="module")
def profile(family: Models, tmp_path_factory: pytest.TempPathFactory) -> LatencyProfile:
    with open_store(str(tmp_path_factory.mktemp("store") / "store.db")) as store:
        found = timed(request(family), store)
        assert {s.role for s in store.surfaces()} == set(ROLES)
    return found


def test_every_role_has_a_surface_of_its_own_model(profile: LatencyProfile) -> None:
    target, small = profile.identities.target.key, profile.identities.drafters["small"].key
    seen = [(surface.model, surface.role) for surface in profile.surfaces]
    assert seen == [(target, "verify"), (target, "prefill"), (target, "exit:1"), (small, "draft"), (small, "loop:2")]


def test_two_names_of_the_same_weights_are_refused(family: Models, tmp_path: Path) -> None:
    twice = Models(target=family.target, drafters={"small": family.drafters["small"], "b": family.drafters["small"]})
    with (
        open_store(str(tmp_path / "store.db")) as store,
        pytest.raises(RequestError, match="the drafters 'small' and 'b' are the same weights"),
    ):
        timed(request(twice), store)


def test_every_surface_answers_inside_its_domain(profile: LatencyProfile) -> None:
    for surface in profile.surfaces:
        context = 0 if surface.role == "prefill" else 16
        assert all(surface.latency(batch, context, 5).ms > 0.0 for batch in (1, 2))


def test_shapes_were_held_out_to_judge_by(profile: LatencyProfile) -> None:
    assert sum(len(surface.held_out()) for surface in profile.surfaces) >= 3


def test_a_configuration_is_timed_without_any_weights(family: Models, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text((family.target / "config.json").read_text())
    with open_store(str(tmp_path / "store.db")) as store:
        found = timed(request(Models(target=config), roles=("verify",)), store)
        assert [model.key for model in store.models()] == [found.identities.target.key]
    assert "random weights" in found.identities.target.name
    assert found.identities.target.parameters > json.loads(config.read_text())["vocab_size"]


def test_a_finished_request_is_timed_anew(family: Models, tmp_path: Path) -> None:
    wanted = request(family, roles=("draft",))
    with open_store(str(tmp_path / "store.db")) as store:
        assert [timed(wanted, store).is_resumed, timed(wanted, store).is_resumed] == [False, False]


def test_a_request_that_was_stopped_goes_on_with_another_budget(family: Models, tmp_path: Path) -> None:
    wanted = request(family, roles=("verify",))
    with open_store(str(tmp_path / "store.db")) as store:
        stopped(LatencyRequest(**(fields_of(wanted) | {"budget_s": 1e-6})), store)
        assert timed(wanted, store).is_resumed


def test_a_budget_too_small_for_the_first_points_times_them_all_the_same(family: Models, tmp_path: Path) -> None:
    wanted = request(family, roles=("verify",))
    with open_store(str(tmp_path / "store.db")) as store:
        (surface,) = timed(LatencyRequest(**(fields_of(wanted) | {"budget_s": 1e-6})), store).surfaces
    assert surface.batches == wanted.batches and surface.contexts(wanted.batches[0]) == wanted.contexts


def test_what_an_earlier_version_timed_is_not_gone_on_with(
    family: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = request(family, roles=("draft",))
    with open_store(str(tmp_path / "store.db")) as store:
        stopped(wanted, store)
        monkeypatch.setattr("spectune.tuning.latency_profile.version", lambda package: f"{package} of tomorrow")
        assert not timed(wanted, store).is_resumed


def test_contexts_beyond_a_model_s_positions_are_refused_and_nothing_is_kept(family: Models, tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        for contexts in ((100_000,), (64, 100_000)):
            with pytest.raises(RequestError, match="no token fits behind a context of 100000"):
                timed(request(family, contexts=contexts, roles=("verify",)), store)
        assert store.surfaces() == []


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"contexts": ()}, "needs --context"),
        ({"roles": ("verify", "verify")}, "distinct roles"),
        ({"roles": ("head",)}, "timed as draft"),
        ({"ranks": 2}, "timed alone, from its weights' folder"),
    ],
)
def test_a_request_that_cannot_be_timed_says_why(family: Models, fault: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        LatencyRequest(**(fields_of(request(family)) | fault))


def test_an_unknown_role_is_refused(family: Models) -> None:
    with pytest.raises(MeasurementError, match="surface role is 'guess'"):
        request(family, roles=("guess",))


def fields_of(wanted: LatencyRequest) -> dict[str, Any]:
    return {name: getattr(wanted, name) for name in LatencyRequest.__dataclass_fields__}
