"""A world as a server that `tune` starts: in virtual time, read by pages of counters in each engine's own way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from spectune.engines.answers import LoadResult, RequestResult
from spectune.engines.counters import counts_of, page_of
from spectune.engines.sentinel import Reading
from spectune.engines.server import Measured
from spectune.engines.server_engine import Source, Start
from spectune.engines.setting import Setting
from spectune.engines.table import COUNTERS
from spectune.errors import PlanError

from .served_worlds import NOISE, TOKENS, World

READ_NOISE = 0.02  # of one prompt's time to be read
DIALECTS = ("llama.cpp", "vllm", "vllm of two engines")


class Scripted:
    """A world's server; a `Serving`."""

    def __init__(
        self, world: World, requests: int, *, dialect: str, longest: int = 8, takes_table: bool = False
    ) -> None:
        self.world, self.requests, self.dialect, self.longest = world, requests, dialect, longest
        self.takes_table = takes_table
        self.version = "scripted"
        self.starts: list[Start] = []
        self.longest_first = False
        self.fails: dict[str, Exception] = {}  # by source
        self.moves = self.wanders = 0.0  # of the machine's pace: between starts, and between loads of one
        self.tells_pace = True
        self.paces: dict[tuple[Start, int], float] = {}  # the true ones, of every load
        self.drawn = np.random.default_rng(0)
        self._pace = 1.0

    def sources(self) -> Sequence[Source]:
        return [
            Source(
                name=name,
                is_model=name == "small",
                setting=Setting(
                    method=name,
                    drafter=None,
                    knobs=(),
                    length=8,
                    by_batch=self.takes_table,
                    longest_first=self.longest_first,
                ),
            )
            for name in self.world.drafters
        ]

    @contextmanager
    def started(self, start: Start) -> Iterator[Scripted]:
        self.starts.append(start)
        self._start = start
        self._pace = 1.0 + self.moves * self.drawn.uniform(-1.0, 1.0)
        if start.source in self.fails:
            raise self.fails[start.source]
        if self.longest_first and start.lengths[0][1] < start.longest:
            raise PlanError("a schedule begins with its longest length")
        yield self

    def prompts_at(self, concurrency: int) -> range:
        first = 0 if concurrency == 1 else self.requests * (1 + int(np.log2(concurrency)))
        return range(first, first + self.requests)

    def measure(self, concurrency: int) -> Measured:
        world, start = self.world, self._start
        length, numbers = start.at(concurrency), self.prompts_at(concurrency)
        slower = world.thrash if start.is_table and length != start.longest else 1.0
        self.paces[start, concurrency] = self._pace
        answers = []
        for number in numbers:
            noise = float(np.exp(NOISE * world.rng.standard_normal()))
            ms = slower * self._pace * world.answer_ms(concurrency, start.source, length, number) * noise
            first_ms = self._pace * world.prefill_ms
            answers.append(RequestResult(prompt=number, ttft_ms=first_ms, e2e_ms=first_ms + ms, tokens=TOKENS))
        wall_s = sum(one.e2e_ms for one in answers) / concurrency / 1000.0
        self._pace *= float(np.exp(self.wanders * self.drawn.standard_normal()))
        page = self.page([world.walk(start.source, length, number) for number in numbers])
        names = COUNTERS[self.dialect.partition(" ")[0]]
        return Measured(
            load=LoadResult(concurrency=concurrency, answers=tuple(answers), wall_s=wall_s, client_share=0.0),
            counts=counts_of(page_of(page), names, "" if self.dialect == "llama.cpp" else "m"),
        )

    def pace(self, place: int, words: int) -> Reading:
        """Read the sentinel: prompts of 20 and of 200 ms, and what a drafter adds; each with noise of its own."""
        drafter = self.world.drafters.get(self._start.source)
        share = 0.0 if drafter is None else drafter.forward_ms / self.world.plain_ms
        if not self.tells_pace:
            return Reading(words=96)
        noise = np.exp(READ_NOISE * self.drawn.standard_normal((2, 3)))
        ms = self._pace * (1.0 + share) * noise * np.array([[200.0], [20.0]])
        return Reading(words=96, long_ms=tuple(map(float, ms[0])), short_ms=tuple(map(float, ms[1])))

    def page(self, walks: Sequence[Sequence[tuple[int, int]]]) -> str:
        """Return the counters of answers, each engine's way: llama.cpp counts no answers, vLLM what is past an end."""
        is_vllm = self.dialect != "llama.cpp"
        prefix, labels = ("vllm:", 'model_name="m",engine="{}"') if is_vllm else ("llamacpp:", "")
        engines = 2 if self.dialect.endswith("engines") else 1
        lines = ["# HELP vllm:spec_decode_num_drafts drafts"]
        for engine in range(engines):
            own = walks[engine::engines]
            rounds = [(drafted, accepted) for walk in own for drafted, accepted in walk]
            if not is_vllm:
                for walk in own:  # cut at the answer's end
                    over = 1 + sum(accepted + 1 for _, accepted in walk) - TOKENS
                    last = rounds.index(walk[-1]) if over else 0
                    rounds[last] = (walk[-1][0], walk[-1][1] - over) if over else rounds[last]
            told = {
                "spec_decode_num_drafts": sum(drafted > 0 for drafted, _ in rounds),
                "spec_decode_num_draft_tokens": sum(drafted for drafted, _ in rounds),
                "spec_decode_num_accepted_tokens": sum(accepted for _, accepted in rounds),
                ("generation_tokens" if is_vllm else "tokens_predicted"): TOKENS * len(own),
                **({"request_success": len(own)} if is_vllm else {}),
            }
            inside = labels.format(engine)
            lines += [f"{prefix}{name}_total{{{inside}}} {value} 1760000000000" for name, value in told.items()]
            lines += [f"{prefix}{name}_created{{{inside}}} 1.7e9" for name in told]
            taken = np.array([accepted for _, accepted in rounds])
            for place in range(max((drafted for drafted, _ in rounds), default=0)):
                count = np.count_nonzero(taken > place)
                position = f'{inside},position="{place}"' if inside else f'position="{place}"'
                lines.append(f"{prefix}spec_decode_num_accepted_tokens_per_pos_total{{{position}}} {count}")
        return "\n".join(lines) + "\n"
