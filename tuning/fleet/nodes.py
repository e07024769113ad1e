"""The nodes of a Ray cluster, and which of them compute with the same kind of device."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...db.url import ServiceUrl, is_service, is_sqlite_memory, named_place, resolve_url, service_url, shown
from ...errors import RequestError
from ...profiler.records.device import Device

NAMED = "spectune:"  # the custom resource "spectune:NAME" says that a node is of the kind NAME
ACCELERATOR = "accelerator_type:"  # what Ray itself calls a node's accelerator
SHOWN_DIGITS = 6  # of a node's id; nodes of one machine differ in nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node that can run a task."""

    id: str
    host: str
    address: str
    cpus: int
    gpus: int
    kind: str | None  # nodes of one kind are alike; None where only the node itself can tell

    @property
    def label(self) -> str:
        """Name the node for people."""
        return f"{self.kind or 'a node'} on {self.host} (node {self.id[:SHOWN_DIGITS]})"


def nodes_of(entries: Iterable[Mapping[str, Any]]) -> tuple[Node, ...]:
    """Return the living nodes that offer a CPU or a GPU, in a fixed order, from the entries of `ray.nodes()`.

    A head node with neither, usual in busy clusters, does not compute.
    """
    nodes = [_node(entry) for entry in entries if entry["Alive"]]
    return tuple(sorted((node for node in nodes if node.cpus or node.gpus), key=lambda node: (node.host, node.id)))


def kind_of(device: Device) -> str:
    """Return what a node is called after its device where neither Ray nor the operator names it."""
    cores = f"{device.cores} cores, " if device.kind == "cpu" else ""
    return f"{device.name} ({cores}{device.memory_gib} GiB)"


def by_kind(nodes: Sequence[Node]) -> dict[str, tuple[Node, ...]]:
    """Return the nodes of each kind; one of which nothing is known is a separate kind."""
    kinds: dict[str, tuple[Node, ...]] = {}
    for node in nodes:
        kind = node.kind or node.label
        kinds[kind] = (*kinds.get(kind, ()), node)
    return kinds


def require_reachable(store_url: str | None, nodes: Sequence[Node]) -> str:
    """Return the store's URL in full, and check that every node can mean the same store by it.

    RequestError where it is a file or the memory of one machine, and the cluster has others; StoreError where it is no
    URL.
    """
    place = named_place(store_url)
    if is_service(place):
        return _reachable_service(service_url(place), nodes)
    url = resolve_url(place)
    if is_sqlite_memory(url):
        raise RequestError("a store in memory is seen by one process alone; give --store a path or a database's URL")
    if url.get_backend_name() == "sqlite" and not _are_here(nodes):
        raise RequestError(
            f"the store {shown(url)} is a file on {socket.gethostname()}, and the nodes are on {_places(nodes)}; "
            "give --store the URL of a database that all of them reach, e.g. postgresql+psycopg://user@host/spectune"
        )
    return url.render_as_string(hide_password=False)


def _reachable_service(url: ServiceUrl, nodes: Sequence[Node]) -> str:
    """Return the URL with its token: the nodes do not have this process's SPECTUNE_TOKEN."""
    if url.is_loopback and not _are_here(nodes):
        raise RequestError(
            f"{url.shown} is this machine, {socket.gethostname()}, only, and the nodes are on {_places(nodes)}; "
            "give --store the https:// URL by which all of them reach the service"
        )
    return url.in_full


def _are_here(nodes: Sequence[Node]) -> bool:
    places = {(node.host, node.address) for node in nodes}
    return len(places) == 1 and nodes[0].host == socket.gethostname()


def _places(nodes: Sequence[Node]) -> str:
    return ", ".join(sorted({f"{node.host} ({node.address})" for node in nodes}))


def _node(entry: Mapping[str, Any]) -> Node:
    resources: Mapping[str, float] = entry["Resources"]
    gpus = int(resources.get("GPU", 0))
    return Node(
        id=entry["NodeID"],
        host=entry["NodeManagerHostname"],
        address=entry["NodeManagerAddress"],
        cpus=int(resources.get("CPU", 0)),
        gpus=gpus,
        kind=_named(resources, NAMED) or (_named(resources, ACCELERATOR) if gpus else None),
    )


def _named(resources: Mapping[str, float], prefix: str) -> str | None:
    return "+".join(sorted(name.removeprefix(prefix) for name in resources if name.startswith(prefix))) or None
