"""Several nodes of Ray on this machine: raylets with names and thread counts of their own, which can be lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

OBJECT_STORE_BYTES = 80 * 2**20
SOON_DEAD = {  # a lost node is noticed in about two seconds; a slow one is waited for
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 4,
}


class LocalCluster:
    """A head that computes nothing, and nodes beside it.

    All are the same processor. What makes them differ is the threads that each one's operator lets it use: a setting
    of a device, and part of its fingerprint.
    """

    def __init__(self) -> None:
        quiet = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES, "_system_config": SOON_DEAD}
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **quiet})
        self.nodes: dict[str, Any] = {}  # Any: Ray's own class, by the node's id

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, *, threads: int, name: str | None = None) -> str:
        """Start a node and return its id; `OMP_NUM_THREADS=2 ray start --resources=...` does the same."""
        node = self.cluster.add_node(
            num_cpus=1,
            object_store_memory=OBJECT_STORE_BYTES,
            resources={f"spectune:{name}": 1} if name else {},
            env_vars={"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"},  # others need the cores, too
        )
        self.nodes[node.node_id] = node
        return str(node.node_id)

    def lose(self, node_id: str) -> None:
        """Kill a node with every process on it, as if the machine had lost its power."""
        node = self.nodes.pop(node_id)
        raylet = node.all_processes["raylet"][0].process.pid
        for process in (raylet, *children_of(raylet)):
            os.kill(process, signal.SIGKILL)
        self.cluster.remove_node(node, allow_graceful=False)


@contextmanager
def local_cluster() -> Iterator[LocalCluster]:
    """Hold a cluster for one block."""
    found = LocalCluster()
    try:
        yield found
    finally:
        ray.shutdown()
        found.cluster.shutdown()


def children_of(process: int) -> list[int]:
    return [
        int(child)
        for thread in Path(f"/proc/{process}/task").glob("*/children")
        for child in thread.read_text().split()
    ]
