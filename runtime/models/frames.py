"""The trie of all token sequences that frames may predict: frames collapse, so a depth is a place in the text.

Along a path of frames equal neighbours are merged, then blanks deleted. The chance of a prefix is the sum over all
paths whose text begins with it. With y(t) the frames' distributions, t = 1 .. F, and for a prefix p with last token l

    b(t), n(t) = chance that the first t frames say p and end in a blank, in l
    n'(t) = y_c(t) (phi(t - 1) + n'(t - 1)),   b'(t) = y_blank(t) (b'(t - 1) + n'(t - 1))          of p + c
    phi(t) = b(t) + (0 if c = l else n(t)),    P(p + c ...) = sum over t of y_c(t) phi(t - 1)

All are stored given p, so that they neither vanish nor need logarithms.

Source: Graves et al. 2006, Connectionist Temporal Classification, Sec. 3-4; Graves 2012, Alg. 1 (prefix search).
"""

from __future__ import annotations

import torch
from torch import Tensor

from .block import APART

LEAST = 1e-30  # chance below which a token is never said


class Frames:
    """The block of a CTC drafter; past the vocabulary is the chance that nothing more is predicted."""

    def __init__(self, said: Tensor) -> None:
        """Take log-probabilities (rows, frames, vocabulary + 1), the blank's last."""
        chances = said.exp()
        self._tokens, self._blank = chances[..., :-1], chances[..., -1]
        rows, frames = self._blank.shape
        start = torch.ones(rows, 1, dtype=chances.dtype, device=chances.device)
        self._rows = torch.arange(rows, device=chances.device)
        self._last = torch.full_like(self._rows, -1)  # token that each node's prefix ends in
        self._in_blank = torch.cat((start, self._blank.cumprod(dim=1)), dim=1)  # (nodes, frames + 1), b
        self._in_token = torch.zeros_like(self._in_blank)  # n
        self._frames = frames

    def root(self) -> Tensor:
        """Return (rows, vocabulary + 1): logits of every row's first token, and of none."""
        return self._logits(torch.arange(len(self._tokens), device=self._rows.device))

    def below(self, parents: Tensor, tokens: Tensor) -> Tensor:
        """Return (nodes, vocabulary + 1): logits after new nodes."""
        first, rows = len(self._rows), self._rows[parents]
        said = self._tokens[rows, :, tokens]
        starts = self._starts(parents, tokens)
        in_token, in_blank = [torch.zeros_like(said[:, 0])], [torch.zeros_like(said[:, 0])]
        for t in range(self._frames):
            in_token.append(said[:, t] * (starts[:, t] + in_token[t]))
            in_blank.append(self._blank[rows, t] * (in_blank[t] + in_token[t]))
        chance = (said * starts).sum(dim=1, keepdim=True).clamp(min=LEAST)
        self._rows, self._last = torch.cat((self._rows, rows)), torch.cat((self._last, tokens))
        self._in_token = torch.cat((self._in_token, torch.stack(in_token, dim=1) / chance))
        self._in_blank = torch.cat((self._in_blank, torch.stack(in_blank, dim=1) / chance))
        return self._logits(torch.arange(first, len(self._rows), device=rows.device))

    def _starts(self, nodes: Tensor, tokens: Tensor) -> Tensor:
        """Return (nodes, frames): phi(0 .. F - 1) of each node for a token."""
        is_new = (tokens != self._last[nodes]).unsqueeze(1)
        return self._in_blank[nodes, :-1] + self._in_token[nodes, :-1] * is_new

    def _logits(self, nodes: Tensor) -> Tensor:
        """Return (nodes, vocabulary + 1): log-probabilities of every next token given the prefix."""
        rows, last = self._rows[nodes], self._last[nodes]
        starts = self._in_blank[nodes, :-1] + self._in_token[nodes, :-1]
        every = torch.bmm(starts.unsqueeze(1), self._tokens[rows]).squeeze(1)
        again = last.clamp(min=0)  # the last token again needs a blank between
        repeated = (self._starts(nodes, last) * self._tokens[rows, :, again]).sum(dim=1, keepdim=True)
        is_first = (last < 0).unsqueeze(1)
        again = again.unsqueeze(1)
        every = every.scatter(1, again, torch.where(is_first, every.gather(1, again), repeated))
        ended = (self._in_blank[nodes, -1] + self._in_token[nodes, -1]).unsqueeze(1)
        chances = torch.cat((every, ended), dim=1)
        apart = APART * torch.arange(chances.shape[1], dtype=chances.dtype, device=chances.device)
        return torch.where(chances > LEAST, chances.clamp(min=LEAST).log(), torch.full_like(apart, LEAST).log() - apart)
