"""Which child the target's own path takes at every depth of recorded trees, read from the roots of later positions."""

from __future__ import annotations

from spectune.profiler.records.acceptance import MISS
from spectune.profiler.scored_nodes import path_steps

from ..support.synthetic import Language, SkilledDrafter, every_node, record, texts

DEPTHS = 4  # of the recorded nodes, the root's children the first


def test_recorded_trees_tell_the_same_as_roots_where_the_drafter_reads_only_committed_text() -> None:
    language = Language(3)
    trace = record(SkilledDrafter(language, 0.7), texts(language, 3, lambda text: 15), every_node(DEPTHS - 1, 3))
    for prompt in trace.prompts:
        steps, reached = list(path_steps(prompt)), set(range(prompt.positions))
        assert len(steps) == DEPTHS
        for depth, (positions, ranks) in enumerate(steps):
            assert set(positions.tolist()) == reached
            assert ranks.tolist() == prompt.next_rank[positions + depth].tolist()
            on_path = positions[(ranks != MISS) & (positions + depth + 1 < prompt.positions)]
            reached = set(on_path.tolist())
