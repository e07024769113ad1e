"""One profile on every kind of device in a Ray cluster, all into one store.

Every kind has its turn on one of its nodes. Nodes of one machine wait: at the same time they would measure each other.
A lost node's turn goes to another of the kind, if there is one; the store has what was measured.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ...db import open_store
from ...errors import DeviceError, RequestError
from ...profiler.device import detect
from ..request import ProfileRequest
from .cluster import Cluster, NodeLostError, Task, joined
from .fleet import Facts, FleetJob, Outcome, Quarters, Tell, facts_of, fleet_key, noted
from .nodes import Node, by_kind, kind_of, require_reachable

LOOK_S = 0.2  # between two looks at the running tasks
PROBE_S = 60.0  # for a node to say what it computes with
LOCK_WAIT_S = 60.0  # a lost node's own process may live on for some seconds and hold the device


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTurn:
    """One kind of device to be profiled: on its first node, or on the next if that is lost; it has at least one."""

    kind: str
    nodes: tuple[Node, ...]

    @property
    def node(self) -> Node:
        """The node whose turn it is."""
        return self.nodes[0]


def turns_of_cluster(address: str = "auto") -> tuple[DeviceTurn, ...]:
    """Return the turns of `profile_cluster`; DeviceError without Ray, a cluster, or a node that computes."""
    with joined(address) as cluster:
        return _turns(cluster, cluster.nodes())


def profile_cluster(job: FleetJob, tell: Tell, address: str = "auto") -> Iterator[Outcome]:
    """Profile each kind of device in a Ray cluster and yield the outcomes as they end.

    A task takes one GPU of its node, or all of Ray's CPUs where it has no GPU. spectune and the models lie at the same
    paths on every node. The address "auto" is RAY_ADDRESS, or the cluster here. Errors come before any measurement.

    Raises:
        DeviceError: Ray is not installed, or there is no cluster, or no node of it computes.
        RequestError: the request's device is not "auto", or some node cannot reach the store.
        StoreError: the store cannot be opened from here.
    """
    if job.request.device != "auto":
        raise RequestError(f"Ray chooses the devices of a cluster, got --device {job.request.device}; leave it out")
    with joined(address) as cluster:
        nodes = cluster.nodes()
        url = require_reachable(job.store_url, nodes)
        shipped = replace(job, store_url=url, request=_from_anywhere(job.request))
        with open_store(url) as store:  # makes the schema, and fails before any node does
            finished = store.open_profile(fleet_key(shipped.request), job.fresh)
            tasks = _Tasks(cluster, shipped, tell, waiting=list(_turns(cluster, nodes)))
            yield from noted(tasks.outcomes(), finished)


@dataclass(slots=True)
class _Tasks:
    cluster: Cluster
    job: FleetJob
    tell: Tell
    waiting: list[DeviceTurn]
    running: dict[Task, DeviceTurn] = field(default_factory=dict)

    def outcomes(self) -> Iterator[Outcome]:
        try:
            while self.waiting or self.running:
                self._start()
                ended = self.cluster.ended(list(self.running), LOOK_S)
                for word in self.cluster.heard():
                    self.tell(word)
                yield from filter(None, map(self._outcome, ended))
        finally:
            for task in self.running:
                self.cluster.stop(task)

    def _start(self) -> None:
        busy = {turn.node.address for turn in self.running.values()}
        for turn in list(self.waiting):
            if turn.node.address not in busy:
                busy.add(turn.node.address)
                self.waiting.remove(turn)
                self.running[self._task(turn.node)] = turn
                self.tell((turn.node.label, "waiting for the node", 0.0))

    def _task(self, node: Node) -> Task:
        share = {"cpus": min(node.cpus, 1), "gpus": 1} if node.gpus else {"cpus": node.cpus, "gpus": 0}
        return self.cluster.start(_profile_here, self.job, node, self.cluster.teller(), node=node, **share)

    def _outcome(self, task: Task) -> Outcome | None:
        """Return the outcome of a task that has ended; None if another node of its kind takes over."""
        turn = self.running.pop(task)
        where = turn.node.label
        try:
            facts = self.cluster.result(task)
        except NodeLostError as error:
            if len(turn.nodes) == 1:
                return Outcome(where=where, error=_lost(error))
            self.waiting.append(replace(turn, nodes=turn.nodes[1:]))
            self.tell((where, f"lost ({error}); {turn.nodes[1].label} takes over", 0.0))
            return None
        except Exception as error:  # raised by the profile on its node
            return Outcome(where=where, error=error)
        self.tell((where, "done", 1.0))
        return Outcome(where=where, facts=facts)


def _profile_here(job: FleetJob, node: Node, tell: Tell) -> Facts:
    request = replace(job.request, device="cuda:0" if node.gpus else "cpu")
    with open_store(job.store_url) as store:
        finished = store.open_profile(fleet_key(job.request))
        return facts_of(job, request, store, finished, Quarters(node.label, tell), LOCK_WAIT_S)


def _turns(cluster: Cluster, nodes: tuple[Node, ...]) -> tuple[DeviceTurn, ...]:
    """Return one turn per kind; the node itself is queried where neither Ray nor its operator names its kind."""
    asked = {node: cluster.start(_kind_here, node, node=node, cpus=0, gpus=0) for node in nodes if node.kind is None}
    told = {node: _kind_told(cluster, task) for node, task in asked.items()}
    kinds = by_kind([replace(node, kind=told.get(node, node.kind)) for node in nodes])
    return tuple(DeviceTurn(kind=kind, nodes=alike) for kind, alike in kinds.items())


def _kind_told(cluster: Cluster, task: Task) -> str | None:
    try:
        return str(cluster.result(task, PROBE_S))
    except DeviceError:  # lost, or its device cannot be read: its own turn will say so
        return None


def _kind_here(node: Node) -> str:
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # some versions of Ray hide the GPUs from a task that takes none
    return kind_of(detect("cuda:0" if node.gpus else "cpu"))


def _lost(error: NodeLostError) -> NodeLostError:
    return NodeLostError(
        f"the node was lost ({error}); what it had measured is in the store: "
        "once it is back, run the same command again, and it goes on from there"
    )


def _from_anywhere(request: ProfileRequest) -> ProfileRequest:
    models = request.models
    drafters = {name: path.absolute() for name, path in models.drafters.items()}
    prompts = [replace(each, images=tuple(path.absolute() for path in each.images)) for each in request.prompts]
    return replace(request, models=replace(models, target=models.target.absolute(), drafters=drafters), prompts=prompts)
