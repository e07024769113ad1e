"""A Ray cluster as the jobs see it: nodes, tasks that run on one of them, and their messages.

No other file knows Ray, which is optional (the extra `ray`) and imported when a cluster is joined.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from ...errors import DeviceError
from .fleet import Tell, Word
from .nodes import Node, nodes_of

Task = Any  # Ray's reference of a task; it has no public type


class NodeLostError(DeviceError):
    """A node, or the task's process on it, ended before the task did."""


class Cluster:
    """The Ray cluster that this process is part of."""

    def __init__(self) -> None:
        import ray
        from ray.util.queue import Queue

        self._ray: Any = ray  # typed in part
        here = self._only_on(ray.get_runtime_context().get_node_id())
        self._words = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes that can compute; raise DeviceError where there is none."""
        nodes = nodes_of(self._ray.nodes())
        if not nodes:
            raise DeviceError(
                "no node of the Ray cluster offers a CPU or a GPU; add one: ray start --address=HOST:PORT"
            )
        return nodes

    def start(self, function: Callable[..., Any], *arguments: Any, node: Node, cpus: int, gpus: int) -> Task:
        """Begin to call a function on one node, in its own process, once that much is free there."""
        remote = self._ray.remote(max_retries=0, max_calls=1)(function)
        place = self._only_on(node.id)
        return remote.options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy=place).remote(*arguments)

    def ended(self, tasks: Sequence[Task], timeout_s: float) -> list[Task]:
        """Return a task that has ended, or none if none does in time."""
        ended: list[Task] = self._ray.wait(list(tasks), timeout=timeout_s)[0]
        return ended

    def result(self, task: Task, timeout_s: float | None = None) -> Any:
        """Wait for a task and return its result or raise its exception; NodeLostError where it is lost, or late."""
        from ray.exceptions import RayError, RayTaskError

        try:
            return self._ray.get(task, timeout=timeout_s)
        except RayTaskError as error:
            raise error.cause from error
        except RayError as error:
            raise NodeLostError(first_sentence(error)) from error

    def stop(self, task: Task) -> None:
        """End a task's process; one that has ended is left alone."""
        self._ray.cancel(task, force=True)

    def teller(self) -> Tell:
        """Return what a task calls to say a word; it may be handed over as an argument."""
        put: Tell = self._words.put
        return put

    def heard(self) -> list[Word]:
        """Return the words said since the last call."""
        words: list[Word] = self._words.get_nowait_batch(self._words.qsize())
        return words

    def close(self) -> None:
        """Give up what the cluster holds for this process."""
        self._words.shutdown(force=True)

    @staticmethod
    def _only_on(node_id: str) -> Any:  # Any: Ray's class
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node_id, soft=False)


@contextmanager
def joined(address: str) -> Iterator[Cluster]:
    """Be part of a cluster for one block, also if already so; "auto" is RAY_ADDRESS or the one here. Or DeviceError."""
    is_joined_here = _join(address)
    try:
        with closing(Cluster()) as cluster:
            yield cluster
    finally:
        if is_joined_here:
            import ray

            ray.shutdown()


def first_sentence(error: BaseException) -> str:
    """Return what an error says before its details."""
    return re.split(r"\.\s|\n", str(error).strip())[0].rstrip(".")


def _join(address: str) -> bool:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise DeviceError("a cluster needs the package ray, not found here; run: pip install -e '.[ray]'") from error
    if ray.is_initialized():
        return False
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise DeviceError(
            f"cannot join a Ray cluster at {address!r} ({first_sentence(error)}); "
            "start one with `ray start --head`, or give its address"
        ) from error
    return True
