"""What a drafter draws on a CPU: the likeliest children of its nodes, by scores plus their places' noise."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....planner.kernels.arrays import Floats32, Ints
from ....planner.kernels.compiled import compiled
from .few_rows import Numbers, signed
from .host_draws import temper
from .host_masks import mask_line
from .host_noise import ROWS_BLOCK, draw_noise, hash_of, key_of, noise_of
from .host_rows import Bits
from .host_scores import children
from .threads import MOST_ALONE

NEVER = np.float32(-1e30)  # a score of what is never drawn; see `sampling.NEVER`
prange = range  # compiled, it is numba's, which splits a loop among threads


class DraftDraws(NamedTuple):
    """How children are drawn; `places` and `settings` as in `Draws`, empty for the best tokens."""

    places: Ints
    settings: Floats32
    room: Floats32  # (batch * (1 + width) or more, vocabulary), overwritten


@compiled(error_model="numpy")
def draw_block_of(key: np.uint64, ids: Ints, block: Numbers) -> None:
    """Write the noise of some tokens."""
    for place in range(len(block)):
        block[place] = noise_of(hash_of(key, ids[place]))


@compiled(parallel=True)
def shared_noise_of(seeds: Ints, places: Ints, ids: Ints, noise: Numbers) -> None:
    """Do what `draw_noise_of` does, by several threads."""
    blocks = (len(ids) + ROWS_BLOCK - 1) // ROWS_BLOCK
    for part in prange(len(seeds) * blocks):
        row, first = signed(part) // blocks, signed(part) % blocks * ROWS_BLOCK
        last = first + ROWS_BLOCK
        draw_block_of(key_of(seeds[row], places[row]), ids[first:last], noise[row, first:last])


@compiled
def draw_noise_of(seeds: Ints, places: Ints, ids: Ints, noise: Numbers, is_shared: bool) -> None:
    """Do what `draw_noise` does for some tokens alone, (rows, tokens)."""
    if is_shared and noise.size > MOST_ALONE:
        shared_noise_of(seeds, places, ids, noise)
    else:
        for row in range(len(seeds)):
            draw_block_of(key_of(seeds[row], places[row]), ids, noise[row])


@compiled(error_model="numpy")
def score_line(line: Bits, noise: Numbers, top_k: int, settings: Numbers, scores: Numbers) -> None:
    """Write `sampling.draft_scores` of one node's scores, with noise, (vocabulary,); the rest is as in `Draws`."""
    temperature, left_out, min_p = settings[0], settings[1], settings[2]
    is_sampled = temperature > np.float32(0)
    temper(line, temperature if is_sampled else np.float32(1), scores)
    if top_k > 0 or left_out > np.float32(0) or min_p > np.float32(0):
        mask_line(scores.view(np.uint32), scores, top_k, left_out, min_p, np.empty(len(scores), np.int32))
        for place in range(len(scores)):
            scores[place] = NEVER if scores[place] < NEVER else scores[place]
    if is_sampled:
        for place in range(len(scores)):
            scores[place] += noise[place]


@compiled(parallel=True)
def shared_score_lines(lines: Bits, noise: Numbers, places: Ints, settings: Numbers, scores: Numbers) -> None:
    """Do what `score_line` does for every node, by several threads."""
    width = lines.shape[1]
    for node in prange(lines.shape[0] * width):
        row, place = signed(node) // width, signed(node) % width
        score_line(lines[row, place], noise[row], places[row, 2], settings[row], scores[node])


@compiled
def drawn_children(
    lines: Bits, drawing: DraftDraws, ids: Ints, depth: int, tokens: Ints, log_probs: Numbers, is_shared: bool
) -> bool:
    """Write `children` of scores (batch, width, vocabulary) at one depth, plus the noise of the target's draws.

    `ids` (vocabulary,) are the scored tokens; empty for 0, 1, ... Depth 0 is right after the texts.
    """
    places, settings, room = drawing
    batch, width, vocabulary = lines.shape
    noise, scores = room[:batch], room[batch : batch * (1 + width)]
    seeds, at = places[:, 0].copy(), places[:, 1] + depth
    if len(ids):
        draw_noise_of(seeds, at, ids, noise, is_shared)
    else:
        draw_noise(seeds, at, noise, is_shared)
    if is_shared and scores.size > MOST_ALONE and len(scores) > 1:
        shared_score_lines(lines, noise, places, settings, scores)
    else:
        for row in range(batch):
            for node in range(width):
                score_line(lines[row, node], noise[row], places[row, 2], settings[row], scores[row * width + node])
    drawn = scores.view(np.uint32).reshape(batch, width, vocabulary)
    return children(drawn, tokens, log_probs, is_shared and len(scores) > 1)
