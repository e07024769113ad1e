"""What others publish as their default, as policies for one cell: the rivals a plan is held against.

A default is taken as its authors set it, also where this device asks for another. Conventions differ and are turned
into ours: here the root counts among verified tokens, and a beam of `depth` d runs d + 1 drafter forwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...errors import PlanError
from ..growth.context import quantised_context
from ..pricing.cost import CellCosts
from ..strategies import TreePolicy
from ..strategies.cacheback import CachebackPolicy
from ..strategies.cast import CastPolicy
from ..strategies.chain import ChainPolicy
from ..strategies.confident_chain import ConfidentChainPolicy
from ..strategies.eagle2 import Eagle2Policy
from ..strategies.lookup import LookupPolicy
from ..strategies.opt_tree import OptTreePolicy
from ..strategies.suffix import SuffixPolicy
from ..strategies.suffix_tree import SuffixTreePolicy
from ..strategies.talon import TalonPolicy

EAGLE = Eagle2Policy(verify_tokens=60, depth=7, top_k=10)
EAGLE_OF_TALON = Eagle2Policy(verify_tokens=60, depth=8, top_k=10)  # by their cost identity it runs D + 1 forwards
SGLANG_STANDALONE = ChainPolicy(length=3)  # 3 steps, top 1, 4 tokens: 3 forwards, one of them behind the prompt
SGLANG_LLAMA = Eagle2Policy(verify_tokens=8, depth=4, top_k=4)  # 5 steps: 5 forwards, the deepest node at depth 5
TRANSFORMERS = ConfidentChainPolicy(length=20, confidence=0.4)
TRANSFORMERS_BEFORE = ChainPolicy(length=5)
TRANSFORMERS_LOOKUP = LookupPolicy(length=10, max_ngram=2, min_ngram=1, occurrence="first")
SAM_DECODING = SuffixPolicy(length=40, factor=4, offset=1, min_match=1, occurrence="first")
SUFFIX_DECODING = SuffixTreePolicy(nodes=25, factor=1, offset=0, least_chance=0.1)  # the size is ours
CACHEBACK = CachebackPolicy()  # leaders of 1 token, followers of 3; the sizes are ours
VLLM_DRAFT_MODEL, VLLM_EAGLE = ChainPolicy(length=5), ChainPolicy(length=3)
TALON_CHILDREN = 49  # the paper looks at the whole vocabulary; behind 1 + 10 nodes 49 more fit into 60
OPT_TREE_NODES = 60
EAGLE_SIZES = {40: 1.0, 48: 1.05, 50: 1.07, 56: 1.1, 60: 1.13}  # tokens, and what a verify of them is said to be worth
CAST_THRESHOLDS = (4.0, 3.0, 2.5)  # C_1, C_2, C_3; the paper's order is not printed
CAST_WIDTH, CAST_DEPTH, CAST_SIZE = 10, 8, 60  # the paper names no caps; these are EAGLE's
CAST_RATIOS = 4  # the paper's R is not printed

TALON_PAPER = "Liu et al. 2026, arXiv:2601.07353, defaults of Sec. 4"
CAST_PAPER = "Hong et al. 2025, arXiv:2510.26577"
OPT_TREE_PAPER = "Wang et al. 2024, arXiv:2406.17276, published code"
EAGLE_CODE = "SafeAILab/EAGLE, EaModel.from_pretrained"
SGLANG_CODE = "SGLang, _auto_choose_speculative_params"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published default."""

    name: str  # for people, different for each
    source: str  # where it is published
    policy: TreePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpriceable:
    """A published default that this cell's tables or this trace cannot tell the speed of."""

    name: str
    source: str
    reason: str


def published_defaults(costs: CellCosts, drafter: str | None, children: int) -> tuple[Published, ...]:
    """Return the published defaults that can be priced in a cell.

    A layer of TALON or OPT-Tree may still turn out wider than any forward that was measured: how wide it gets is
    known only in a replay.

    Args:
        costs: of the cell.
        drafter: who drafts; None leaves the defaults that need no model.
        children: best next tokens recorded per node; a beam that needs more is left out, and the paper's TALON and
            OPT-Tree stand beside the same ones over the recorded children.
    """
    return tuple(found for found in _all(costs, drafter, children) if isinstance(found, Published))


def unpriceable_defaults(costs: CellCosts, drafter: str | None, children: int) -> tuple[Unpriceable, ...]:
    """Return the published defaults that cannot be priced in a cell, each with the reason."""
    return tuple(found for found in _all(costs, drafter, children) if isinstance(found, Unpriceable))


def eagle_total_tokens(verify_ms: Sequence[float]) -> int:
    """Return the tree size EAGLE's loader chooses when asked for `total_token=-1`.

    It times forwards of 40, 48, 50, 56 and 60 tokens and takes the least time per hard-coded worth: 1, 1.05, 1.07,
    1.1 and 1.13; of equal ones the smallest. It times one sequence behind no context.

    Args:
        verify_ms: milliseconds of a target forward, index = tokens per sequence.

    Raises:
        PlanError: fewer than 60 tokens were measured.

    Source: SafeAILab/EAGLE, EaModel.from_pretrained.
    """
    if len(verify_ms) <= max(EAGLE_SIZES):
        raise PlanError(
            f"EAGLE's own choice times up to {max(EAGLE_SIZES)} tokens, got {len(verify_ms) - 1}; measure them"
        )
    return min(EAGLE_SIZES, key=lambda tokens: verify_ms[tokens] / EAGLE_SIZES[tokens])


def eagle_auto(costs: CellCosts) -> Eagle2Policy:
    """Return EAGLE's default tree at the size its loader would choose from this cell's own verify times.

    Raises:
        PlanError: fewer than 60 tokens were measured.
    """
    tokens = eagle_total_tokens(costs.verify.row(costs.cell.context).tolist())
    return Eagle2Policy(verify_tokens=tokens, depth=EAGLE.depth, top_k=EAGLE.top_k)


def paper_cast(costs: CellCosts, drafter: str, children: int, *, step: int = 0, longest: int = 0) -> CastPolicy:
    """Return CAST as its paper runs it: its thresholds, and costs of the quantised context.

    Args:
        costs: of the cell.
        drafter: whose forwards are priced.
        children: best next tokens recorded per node; caps the width.
        step: the paper's L, which it does not tell; 0 takes the shortest context the target was measured at.
        longest: the paper's M L; 0 takes the last multiple of the step that was measured.

    Raises:
        PlanError: the target was measured at one token only, the grid of contexts is none, or the drafter does not run
            in the cell.
    """
    verify, draft = costs.verify, costs.drafting(drafter)
    width, size = min(CAST_WIDTH, children, draft.most_tokens), min(CAST_SIZE, verify.most_tokens)
    if size < 2 or width < 1:
        raise PlanError(f"CAST needs a verify of 2 tokens and a child, got {size} and {width}; measure and record more")
    step = step or max(int(verify.contexts[0]), 1)
    context = quantised_context(costs.cell.context, step, longest or int(verify.contexts[-1]) // step * step)
    breadth, depth, rerank = CAST_THRESHOLDS
    return CastPolicy(
        breadth=breadth,
        depth=depth,
        rerank=rerank,
        max_width=width,
        max_depth=CAST_DEPTH,
        max_verify_tokens=size,
        ratio_window=CAST_RATIOS,
        draft_cost_ms=draft.layers(context, width),
        verify_cost_ms=tuple(verify.row(context)[: size + 1].tolist()),
    )


def talon(children: int = TALON_CHILDREN) -> TalonPolicy:
    """Return TALON 60/0.03/10 over so many children of a node."""
    return TalonPolicy(nodes=60, gate=0.03, top_k=10, children=children, max_depth=50)


def opt_tree(children: int = OPT_TREE_NODES) -> OptTreePolicy:
    """Return OPT-Tree 60/0.5/10 over so many children of a node.

    Its published code drafts a 10th layer that never reaches the tree: the tree is 9 deep.
    """
    return OptTreePolicy(nodes=OPT_TREE_NODES, least_gain=0.5, max_depth=9, children=children)


_Maker = Callable[[], TreePolicy]


def _all(costs: CellCosts, drafter: str | None, children: int) -> list[Published | Unpriceable]:
    """Return every default, priceable or not, in a fixed order."""
    rules: list[tuple[str, str, _Maker]] = [
        (
            "transformers' prompt lookup",
            "transformers, PromptLookupCandidateGenerator: 10 tokens, 2-grams, the first match",
            lambda: TRANSFORMERS_LOOKUP,
        ),
        ("SAM decoding 40/4", "arXiv:2411.10666, dynamic automaton; a copy goes on at the end", lambda: SAM_DECODING),
        ("SuffixDecoding 1/0.1", "arXiv:2411.04975, published code, tree of the request", lambda: SUFFIX_DECODING),
        ("Cacheback 1/3", "arXiv:2511.21699, dynamic table; its sizes are ours", lambda: CACHEBACK),
    ]
    if drafter is not None:
        rules += _chains() + _trees(costs, drafter, children)
    return [_judged(name, source, make, costs, drafter, children) for name, source, make in rules]


def _chains() -> list[tuple[str, str, _Maker]]:
    return [
        (
            "transformers' assisted generation",
            "transformers 4.45 to 5.23, GenerationConfig: 20 tokens, constant, threshold 0.4",
            lambda: TRANSFORMERS,
        ),
        (
            "transformers' earlier chain of 5",
            "transformers before 4.45, num_assistant_tokens 5; its heuristic schedule of +2 and -1 is left out",
            lambda: TRANSFORMERS_BEFORE,
        ),
        ("vLLM's chain of 5", "vLLM documentation, speculating with a draft model", lambda: VLLM_DRAFT_MODEL),
        ("vLLM's chain of 3", "speculators documentation, serving an EAGLE-3 head in vLLM", lambda: VLLM_EAGLE),
        ("SGLang 3/1/4", f"{SGLANG_CODE}: a drafter of its own", lambda: SGLANG_STANDALONE),
    ]


def _trees(costs: CellCosts, drafter: str, children: int) -> list[tuple[str, str, _Maker]]:
    rules: list[tuple[str, str, _Maker]] = [
        ("SGLang 5/4/8", f"{SGLANG_CODE}: a head for Llama", lambda: SGLANG_LLAMA),
        ("EAGLE 60/7/10", EAGLE_CODE, lambda: EAGLE),
        ("EAGLE-3 as TALON sets it", f"{TALON_PAPER}: K = 10, D = 8", lambda: EAGLE_OF_TALON),
        ("EAGLE's own choice of size", f"{EAGLE_CODE}, total_token=-1", lambda: eagle_auto(costs)),
        ("TALON 60/0.03/10", TALON_PAPER, talon),
        ("OPT-Tree 60/0.5/10", OPT_TREE_PAPER, opt_tree),
        ("CAST 4/3/2.5", CAST_PAPER, lambda: paper_cast(costs, drafter, children)),
    ]
    if EAGLE.top_k <= children < TALON_CHILDREN:
        rules.append((f"TALON over {children} children", TALON_PAPER, lambda: talon(children)))
    if children < OPT_TREE_NODES:
        rules.append((f"OPT-Tree over {children} children", OPT_TREE_PAPER, lambda: opt_tree(children)))
    return rules


def _judged(
    name: str, source: str, make: _Maker, costs: CellCosts, drafter: str | None, children: int
) -> Published | Unpriceable:
    try:
        policy = make()
        _require_priceable(policy, costs, drafter, children)
    except PlanError as error:
        return Unpriceable(name=name, source=source, reason=str(error))
    return Published(name=name, source=source, policy=policy)


def _require_priceable(policy: TreePolicy, costs: CellCosts, drafter: str | None, children: int) -> None:
    """Raise a PlanError if a policy needs host times, forwards, children or a drafter that are not there."""
    costs.host_of(policy.kind, drafter)
    costs.require_verified(policy, drafter)
    width = policy.sure_width
    if policy.children > children:
        raise PlanError(f"it looks at {policy.children} children of a node and {children} are recorded; record more")
    if drafter is None or not width:
        return
    most = costs.drafting(drafter).most_tokens
    if width > most:
        raise PlanError(
            f"a draft of {width} tokens was not measured for {drafter}, at most {most}; profile larger ones"
        )
