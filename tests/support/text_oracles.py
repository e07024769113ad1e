"""Drafts from a text by scanning all of it: slow, obvious, and sharing no code with the planner."""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Sequence

from spectune.planner.strategies.cacheback import CachebackPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy

Path = tuple[int, ...]
Tree = list[Path]  # every node by its path, in the order of the tree


def ends_of(text: Sequence[int], piece: Sequence[int]) -> list[int]:
    """Return the places right behind every occurrence of a piece."""
    size = len(piece)
    return [end for end in range(size, len(text) + 1) if list(text[end - size : end]) == list(piece)]


def longest_match(text: Sequence[int]) -> int:
    """Return the tokens of the text's longest end that occurred before."""
    return max((m for m in range(1, len(text)) if len(ends_of(text, text[-m:])) > 1), default=0)


def slow_suffix(text: Sequence[int], policy: SuffixPolicy) -> list[int]:
    """Return what the policy copies."""
    match = longest_match(text)
    if match < policy.min_match or not match:
        return []
    places = ends_of(text, text[-match:])
    start = places[0] if policy.occurrence == "first" else places[-2]
    drafted = list(text)
    for place in range(start, start + min(policy.length, policy.factor * match + policy.offset)):
        drafted.append(drafted[place])
    return drafted[len(text) :]


def slow_suffix_tree(text: Sequence[int], policy: SuffixTreePolicy) -> Tree:
    """Return the tree of the best match, trying every one from the longest down."""
    best, found = 0.0, Tree()
    for match in range(longest_match(text), policy.min_match - 1, -1):
        most = min(policy.nodes - 1, policy.factor * match + policy.offset)
        score, tree = _likeliest(text, tuple(text[-match:]), most, policy.least_chance)
        if score > best:
            best, found = score, tree
    return found if best >= policy.least_score else Tree()


def _likeliest(text: Sequence[int], behind: Path, most: int, least: float) -> tuple[float, Tree]:
    score, tree = 0.0, Tree()
    waiting = _children(text, behind, (), 1.0)
    heapq.heapify(waiting)
    while waiting and len(tree) < most:
        chance, _, _, path = heapq.heappop(waiting)
        if -chance < least:
            break
        score -= chance
        tree.append(path)
        for child in _children(text, (*behind, *path), path, -chance):
            heapq.heappush(waiting, child)
    return score, tree


def _children(text: Sequence[int], behind: Path, path: Path, chance: float) -> list[tuple[float, int, int, Path]]:
    ends = [end for end in ends_of(text, behind) if end < len(text)]
    counts, newest = Counter(text[end] for end in ends), {text[end]: end for end in ends}
    return [
        (-(chance * count / len(ends)), len(path) + 1, -newest[token], (*path, token))
        for token, count in counts.items()
    ]


class SlowTable:
    """Leaders and their followers, both by recency, the newest last."""

    def __init__(self, text: Sequence[int], policy: CachebackPolicy) -> None:
        self.policy = policy
        self.leaders: OrderedDict[Path, OrderedDict[Path, None]] = OrderedDict()
        width = policy.leader_tokens + policy.follower_tokens
        for end in range(width, len(text) + 1):
            window = tuple(text[end - width : end])
            self._touch(window[: policy.leader_tokens], window[policy.leader_tokens :])

    def _touch(self, leader: Path, follower: Path) -> None:
        followers = self.leaders.setdefault(leader, OrderedDict())
        self.leaders.move_to_end(leader)
        followers[follower] = None
        followers.move_to_end(follower)
        if len(followers) > self.policy.followers:
            followers.popitem(last=False)
        if len(self.leaders) > self.policy.leaders:
            self.leaders.popitem(last=False)

    def followers(self, leader: Path) -> list[Path]:
        """Return a leader's followers, the newest first."""
        return list(reversed(self.leaders.get(leader, {})))


def chance_of(policy: CachebackPolicy, hop: int, rank: int, place: int, *, is_frozen: bool = False) -> float:
    """Return how likely a node is that a follower adds."""
    if not policy.chances:
        return 1.0 / (rank + 2.0)
    ranks = len(policy.chances) // (3 * policy.follower_tokens)
    row = min(hop, 2) * ranks + rank + (policy.followers if is_frozen else 0)
    return policy.chances[row * policy.follower_tokens + place]


def frozen_followers(policy: CachebackPolicy, leader: Path) -> list[Path]:
    """Return a leader's followers in the frozen table, looked for from its first entry to its last."""
    if policy.frozen is None:
        return []
    entries = policy.frozen.entries()
    for known, count, followers in zip(*(part.tolist() for part in entries), strict=True):
        if tuple(known) == leader:
            return [tuple(follower) for follower in followers[:count]]
    return []


def slow_cacheback(text: Sequence[int], policy: CachebackPolicy) -> Tree:
    """Return the tree, its nodes popped from a heap one by one."""
    table, tree, order = SlowTable(text, policy), Tree(), 0
    waiting: list[tuple[float, int, int, int, Path, int]] = []  # the last is the next hop where a follower ends

    def put_followers(path: Path, chance: float, hop: int) -> None:
        nonlocal order
        known: dict[Path, float] = {path: chance}
        leader = (*text, *path)[-policy.leader_tokens :]
        own = [(rank, follower, False) for rank, follower in enumerate(table.followers(leader))]
        frozen = [(rank, follower, True) for rank, follower in enumerate(frozen_followers(policy, leader))]
        for rank, follower, is_frozen in own + frozen:
            for place in range(policy.follower_tokens):
                node = (*path, *follower[: place + 1])
                if len(node) <= policy.max_depth and node not in known:
                    known[node] = min(
                        known[node[:-1]], chance * chance_of(policy, hop, rank, place, is_frozen=is_frozen)
                    )
                    if known[node] >= policy.least_chance and known[node] > 0.0:
                        ends = hop + 1 if place == policy.follower_tokens - 1 else 0
                        heapq.heappush(waiting, (-known[node], len(node), len(known) - 2, order, node, ends))
                    order += 1

    if len(text) >= policy.leader_tokens:
        put_followers((), 1.0, 0)
    while waiting and len(tree) < policy.nodes - 1:
        chance, depth, _, _, node, hop = heapq.heappop(waiting)
        tree.append(node)
        if hop and depth < policy.max_depth:
            put_followers(node, -chance, hop)
    return tree
