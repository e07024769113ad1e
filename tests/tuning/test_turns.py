"""A profile of a Ray cluster: four raylets of two kinds on this machine, two of which are lost in the middle.

The kinds differ in their threads alone, so they have fingerprints of their own without any pretence. The story is told
once; each test reads one fact in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("ray")

from spectune.db import open_store
from spectune.errors import ModelError
from spectune.profiler.device import detect
from spectune.profiler.prompts import Prompt
from spectune.tuning.fleet.cluster import NodeLostError
from spectune.tuning.fleet.fleet import FleetJob, Outcome, Word
from spectune.tuning.fleet.nodes import kind_of
from spectune.tuning.fleet.turns import profile_cluster, turns_of_cluster
from spectune.tuning.request import Models, ProfileRequest

from ..support.local_cluster import LocalCluster, local_cluster
from ..support.tiny_family import save_model

pytestmark = pytest.mark.slow


@dataclass(slots=True)
class Run:
    """One call of `profile_cluster`, during which some nodes are lost while they time forwards."""

    cluster: LocalCluster
    job: FleetJob
    losing: set[str]
    words: list[Word] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def hear(self, word: Word) -> None:
        self.words.append(word)
        where, what, share = word
        for node in [node for node in self.losing if node[:6] in where and what == "timing forwards" and share > 0.2]:
            self.losing.remove(node)
            self.cluster.lose(node)

    def go(self) -> Run:
        for outcome in profile_cluster(self.job, self.hear, self.cluster.address):
            self.outcomes[outcome.where.split()[0]] = outcome
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A node of "one" is lost and another takes over; "two" is lost for good. Then only "two" is back."""

    ones: list[str]
    first: Run
    kept: dict[int, int]  # after the first run: cells by threads of their device
    second: Run
    kept_at_last: dict[int, int]
    third: Run  # of a model that is nowhere


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))  # where the raylets' tasks put locks
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        with local_cluster() as found:
            yield found


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> FleetJob:
    folder = tmp_path_factory.mktemp("family")
    target, small = save_model(folder / "target", layers=2, seed=1), save_model(folder / "small", layers=1, seed=2)
    request = ProfileRequest(
        models=Models(target=target, drafters={"small": small}),
        prompts=[Prompt(text=f"def f{place}(x): return {place}") for place in range(2)],
        dtype="float32",
        batches=(1,),
        max_new_tokens=8,
        max_prompt_tokens=8,
        contexts=(8,),
        budget_s=6.0,
        held_out=2,
        record="quick",
    )
    # a lambda, because a function of this module could not be imported on a node
    return FleetJob(
        request=request,
        facts=lambda done, url: {"threads": done.device.threads, "resumed": done.is_resumed},
        store_url=str(folder / "store.db"),
    )


@pytest.fixture(scope="module")
def story(cluster: LocalCluster, job: FleetJob) -> Story:
    store = str(job.store_url)
    ones = sorted(cluster.add(threads=1, name="one") for _ in range(2))
    two = cluster.add(threads=2, name="two")
    first = Run(cluster, job, losing={ones[0], two}).go()
    kept = cells_by_threads(store)
    cluster.lose(ones[1])
    cluster.add(threads=2, name="two")
    second = Run(cluster, job, losing=set()).go()
    kept_at_last = cells_by_threads(store)
    nowhere = replace(job, request=replace(job.request, models=Models(target=Path("nowhere"))))
    third = Run(cluster, nowhere, losing=set()).go()
    return Story(ones=ones, first=first, kept=kept, second=second, kept_at_last=kept_at_last, third=third)


def cells_by_threads(store_url: str) -> dict[int, int]:
    with open_store(store_url) as store:
        threads = {device.fingerprint: device.threads or 0 for device in store.devices()}
        return {
            count: sum(len(surface.measurements) for surface in store.surfaces(device))
            for device, count in threads.items()
        }


def test_three_nodes_of_two_kinds_have_two_outcomes(story: Story) -> None:
    assert sorted(story.first.outcomes) == ["one", "two"]


def test_a_device_is_known_by_what_its_node_lets_it_use(story: Story) -> None:
    one, two = story.first.outcomes["one"].facts, story.second.outcomes["two"].facts
    assert one is not None and one["threads"] == 1
    assert two is not None and two["threads"] == 2


def test_another_node_of_the_kind_takes_over_from_a_lost_one(story: Story) -> None:
    outcome = story.first.outcomes["one"]
    assert (outcome.failure, story.ones[1][:6] in outcome.where) == (None, True)


def test_a_lost_node_is_reported_with_how_to_go_on(story: Story) -> None:
    outcome = story.first.outcomes["two"]
    assert isinstance(outcome.error, NodeLostError)
    assert "run the same command again" in str(outcome.failure)


def test_a_lost_node_leaves_the_others_their_cells(story: Story) -> None:
    assert story.kept[1] > 0


def test_the_same_command_goes_on_where_the_lost_node_stopped(story: Story) -> None:
    outcome = story.second.outcomes["two"]
    assert outcome.facts == {"threads": 2, "resumed": True}
    assert story.kept_at_last[2] > 0


def test_nodes_of_one_machine_take_turns(story: Story) -> None:
    """From its first word to its last, no node is interrupted by another's."""
    speakers = [where for where, what, _ in story.first.words if what != "waiting for the node"]
    changes = sum(earlier != later for earlier, later in pairwise(speakers))
    assert changes == len(set(speakers)) - 1 == 2


def test_a_node_that_nobody_names_says_what_it_computes_with(story: Story, cluster: LocalCluster) -> None:
    cluster.add(threads=1)
    assert kind_of(detect("cpu")) in {turn.kind for turn in turns_of_cluster(cluster.address)}


def test_a_model_that_a_node_does_not_have_is_that_node_s_failure(story: Story) -> None:
    assert isinstance(story.third.outcomes["two"].error, ModelError)
