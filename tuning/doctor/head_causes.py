"""Other readings of a head of EAGLE's forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor
from transformers import LlamaConfig

from ...planner.kernels.arrays import Bools
from ...runtime.models.config_file import LAYER_IDS, OWN, published_reads
from ...runtime.models.lean import LeanModel
from ...runtime.models.stored_tensors import read_tensors
from .agreement import first_hits
from .alternative import OtherReading
from .own_text import OwnText
from .pair import Pair
from .positions import rope_theta
from .tried_head import TextStates, TriedHead

BASES = (1e4, 5e5, 1e6)  # of RoPE, that models are published with
OFFSETS = (1, -1, 2, -2)  # of ids
FEW = 3  # texts along which single layers are searched for
NORMS = ("input_layernorm", "hidden_norm")
FINAL = "norm.weight"
EMBEDDING = "embed_tokens.weight"
TRAIN_AGAIN = "train it again with states as they are fed here: spectune train eagle"


class HeadReadings:
    """Other readings of one head beside its target, along texts of that."""

    def __init__(self, pair: Pair, target: LeanModel, texts: Sequence[OwnText]) -> None:
        """Read the head; ModelError where it cannot be loaded."""
        self._pair, self._target, self._texts = pair, target, texts
        self._weights, self._shape, self._states = read_tensors(pair.drafter), pair.head, TextStates(target)
        self._own = self._built(self._weights)

    def likely(self) -> Iterator[OtherReading]:
        """Yield single changes, the likeliest first."""
        yield from self._shifts()
        yield from self._layers()
        yield from self._norms()
        yield from self._order()
        yield from self._bases()
        for offset in OFFSETS:
            yield OtherReading(
                check="vocabulary",
                reading=f"ids of drafted tokens {offset:+d}",
                advice="mend the ids: d2t, or rows of lm_head, lie beside their tokens",
                hits=partial(first_hits, self._own, self._texts, offset),
            )
        if EMBEDDING in self._weights:
            yield OtherReading(
                check="embeddings",
                reading="the target's embeddings in place of its own",
                advice=f"leave the tensor {EMBEDDING} out",
                hits=self._with({}, without=EMBEDDING),
            )

    def searched(self) -> Iterator[OtherReading]:
        """Yield the layers that agree most along few texts, found state by state."""
        few, best = self._texts[:FEW], self._own.reads
        most = int(first_hits(self._own, few).sum())
        for place in range(len(best)):
            for layer in range(self._states.layers + 1):
                reads = (*best[:place], layer, *best[place + 1 :])
                if (count := int(first_hits(self._own.fed(reads=reads), few).sum())) > most:
                    best, most = reads, count
        if best != self._own.reads:
            yield self._reading(best)

    def _built(self, weights: Mapping[str, Tensor], base: float | None = None) -> TriedHead:
        shape = self._shape if base is None else replace(self._shape, config=_with_base(self._shape.config, base))
        return TriedHead(weights, shape, self._target, self._states)

    def _with(
        self, changed: Mapping[str, Tensor], *, without: str = "", base: float | None = None
    ) -> Callable[[], Bools]:
        """Return what compares the head with other tensors, or another base of RoPE."""
        weights = {name: weight for name, weight in {**self._weights, **changed}.items() if name != without}
        return lambda: first_hits(self._built(weights, base), self._texts)

    def _shifts(self) -> Iterator[OtherReading]:
        for lag, whose in ((1, "the token two before"), (-1, "the token itself")):
            yield OtherReading(
                check="shift",
                reading=f"each token with the states of {whose}, not of the one before it",
                advice=TRAIN_AGAIN,
                hits=partial(first_hits, self._own.fed(lag=lag), self._texts),
            )

    def _layers(self) -> Iterator[OtherReading]:
        """Yield lists of layers that differ in one way: all some layers further, another order, as published."""
        own, layers = self._own.reads, self._states.layers
        moved = [tuple(count + step for count in own) for step in (1, -1, 2, -2)]
        published = published_reads(layers)
        for reads in dict.fromkeys([*moved, own[::-1], *([published] if len(own) == len(published) else [])]):
            if reads != own and 0 <= min(reads) <= max(reads) <= layers:
                yield self._reading(reads)

    def _reading(self, reads: Sequence[int]) -> OtherReading:
        return OtherReading(
            check="layers",
            reading=f"states after {', '.join(map(str, reads))} layers",
            advice=f'say in its config.json "{OWN}": {{"reads": {list(reads)}}}, and mend {LAYER_IDS} for servers',
            hits=partial(first_hits, self._own.fed(reads=reads), self._texts),
        )

    def _norms(self) -> Iterator[OtherReading]:
        is_first = self._shape.form == "eagle"
        yield OtherReading(
            check="norm",
            reading=f"states {'without' if is_first else 'after'} the target's final norm",
            advice=TRAIN_AGAIN,
            hits=partial(first_hits, self._own.fed(other_norm=True), self._texts),
        )
        if is_first:
            return
        one, other = (f"{self._shape.begins}{name}.weight" for name in NORMS)
        yield OtherReading(
            check="norm",
            reading=f"{one} and {other} exchanged",
            advice="exchange these two tensors",
            hits=self._with({one: self._weights[other], other: self._weights[one]}),
        )
        yield OtherReading(
            check="norm",
            reading=f"the target's final norm in place of {FINAL}",
            advice=f"save the target's final norm as {FINAL}",
            hits=self._with({FINAL: self._target.anatomy.final_norm.weight}),
        )

    def _order(self) -> Iterator[OtherReading]:
        """Yield the state before the embedding, where both are joined."""
        begins = self._shape.begins
        joins = (
            ["fc.weight"] if self._shape.form == "eagle" else [f"{begins}self_attn.{one}_proj.weight" for one in "qkv"]
        )
        yield OtherReading(
            check="order",
            reading="the state before the embedding, where both are joined",
            advice=f"exchange the halves of the columns of {', '.join(joins)}",
            hits=self._with(
                {name: self._weights[name].roll(self._weights[name].shape[1] // 2, dims=1) for name in joins}
            ),
        )

    def _bases(self) -> Iterator[OtherReading]:
        own, target = rope_theta(self._shape.config), rope_theta(self._pair.target_config)
        for base in dict.fromkeys((*([target] if target else []), *BASES)):
            if base != own:
                yield OtherReading(
                    check="rope",
                    reading=f"RoPE of base {base:,.0f}",
                    advice=f"say rope_theta: {base:.0f} in its config.json",
                    hits=self._with({}, base=base),
                )


def _with_base(config: LlamaConfig, base: float) -> LlamaConfig:
    return LlamaConfig(**{**config.to_dict(), "rope_parameters": {"rope_type": "default", "rope_theta": base}})
