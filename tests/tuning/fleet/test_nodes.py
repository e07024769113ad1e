"""What Ray says of its nodes, read into kinds; and which stores all of them can mean."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import pytest

from spectune.errors import RequestError
from spectune.profiler.records.device import GIB, Device
from spectune.tuning.fleet.nodes import Node, by_kind, kind_of, nodes_of, require_reachable

HERE = socket.gethostname()
CPU = Device(kind="cpu", name="one", index=0, memory_bytes=24 * GIB, cores=2, threads=2)
SERVER = "postgresql+psycopg://someone:secret@server/spectune"


def entry(name: str, *, host: str = HERE, alive: bool = True, **resources: float) -> dict[str, Any]:
    """Return a node in the form of `ray.nodes()`."""
    marks = {"node:10.0.0.1": 1.0, "memory": 2e9, "object_store_memory": 1e9}
    named = {resource.replace("__", ":"): amount for resource, amount in resources.items()}
    return {
        "NodeID": name,
        "Alive": alive,
        "NodeManagerHostname": host,
        "NodeManagerAddress": f"address of {host}",
        "Resources": marks | named,
    }


def kinds(*entries: dict[str, Any]) -> list[str | None]:
    return [node.kind for node in nodes_of(entries)]


def node(host: str, address: str = "10.0.0.1") -> Node:
    return Node(id=f"id of {host}", host=host, address=address, cpus=4, gpus=0, kind=None)


def test_a_gpu_node_is_of_the_kind_that_ray_calls_its_accelerator() -> None:
    assert kinds(entry("a", CPU=8, GPU=2, accelerator_type__H200=1)) == ["H200"]


def test_a_name_given_by_the_operator_comes_first() -> None:
    assert kinds(entry("a", CPU=8, GPU=2, accelerator_type__H200=1, spectune__capped=1)) == ["capped"]


def test_a_node_without_a_name_or_a_gpu_is_not_guessed_at() -> None:
    assert kinds(entry("a", CPU=8, accelerator_type__TPU=4), entry("b", CPU=8, GPU=1)) == [None, None]


def test_dead_nodes_and_those_that_compute_nothing_are_left_out() -> None:
    assert [node.id for node in nodes_of([entry("a"), entry("b", alive=False, CPU=1), entry("c", CPU=1)])] == ["c"]


def test_the_order_of_nodes_does_not_depend_on_ray_s() -> None:
    entries = [entry("b", CPU=1), entry("c", host="another", CPU=1), entry("a", CPU=1)]
    assert nodes_of(entries) == nodes_of(entries[::-1])


def test_nodes_of_one_kind_stand_together_and_unknown_ones_alone() -> None:
    found = nodes_of(
        [entry("a", CPU=1, spectune__x=1), entry("b", CPU=1), entry("c", CPU=1), entry("d", CPU=1, spectune__x=1)]
    )
    assert [[node.id for node in alike] for alike in by_kind(found).values()] == [["a", "d"], ["b"], ["c"]]


@pytest.mark.parametrize("change", [{"name": "another"}, {"cores": 4}, {"memory_bytes": 64 * GIB}])
def test_another_processor_is_another_kind(change: dict[str, Any]) -> None:
    assert kind_of(replace(CPU, **change)) != kind_of(CPU)


def test_a_file_is_a_store_for_nodes_of_this_machine() -> None:
    assert require_reachable("/there/store.db", [node(HERE), node(HERE)]) == "sqlite:////there/store.db"


@pytest.mark.parametrize(
    "nodes",
    [[node(HERE), node("another")], [node(HERE), node(HERE, "10.0.0.2")], [node("another")]],
    ids=["two hosts", "two addresses", "one host, not this one"],
)
def test_a_file_is_no_store_for_nodes_elsewhere(nodes: list[Node]) -> None:
    with pytest.raises(RequestError, match=r"store\.db is a file on .*; give --store the URL of a database"):
        require_reachable("/there/store.db", nodes)


def test_memory_is_no_store_for_tasks() -> None:
    with pytest.raises(RequestError, match="one process alone"):
        require_reachable(":memory:", [node(HERE)])


def test_a_service_is_a_store_for_nodes_anywhere_and_the_token_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECTUNE_TOKEN", "of/mine")
    reached = require_reachable("https://plans.example/team", [node(HERE), node("another")])
    assert reached == "https://:of%2Fmine@plans.example/team"
    monkeypatch.delenv("SPECTUNE_TOKEN")
    assert require_reachable(reached, [node("another")]) == reached


def test_a_service_of_this_machine_is_no_store_for_nodes_elsewhere() -> None:
    with pytest.raises(RequestError, match=r"is this machine, .* only, .*; give --store the https:// URL"):
        require_reachable("http://localhost:8321", [node(HERE), node("another")])


def test_a_server_is_a_store_for_nodes_anywhere_and_its_password_goes_along() -> None:
    assert require_reachable(SERVER, [node(HERE), node("another")]) == SERVER
