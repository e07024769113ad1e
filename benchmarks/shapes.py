"""A task that needs eyes: pictures of coloured shapes, and captions that name colour, shape and place.

numpy draws a filled square, circle or triangle in one of nine places and six colours, on a dark ground with noise. The
caption's first words are random, so a good model is unsure there and sure of what it sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from spectune.runtime.batch.images import Image

END, PLACEHOLDER = "<end>", "<image>"
ALPHABET = " .:abcdefghijklmnopqrstuvwxyz"
SIDE = 48  # pixels of a picture
HALF = (5.5, 7.2)  # pixels from the middle of a shape to its side, least and most; a place is 16 wide
SHIFT = 1.0  # pixels, most, from the middle of a place to that of its shape
COLOURS = {
    "red": (230, 40, 40),
    "green": (40, 200, 60),
    "blue": (50, 80, 240),
    "yellow": (235, 220, 50),
    "purple": (170, 60, 200),
    "white": (240, 240, 240),
}
SHAPES = ("square", "circle", "triangle")
PLACES = tuple(f"{row} {column}" for row in ("top", "middle", "bottom") for column in ("left", "centre", "right"))
BEGINNINGS = ("a {} at the {}.", "there is a {} at the {}.", "the picture shows a {} at the {}.")
PROMPT = f"{PLACEHOLDER}caption: "
HELD_OUT = 6  # one of so many combinations of colour, shape and place is kept for the test


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One shape of one colour in one of nine places."""

    colour: str
    shape: str
    place: str

    @property
    def is_held_out(self) -> bool:
        """Whether no model was trained on it; of every colour, shape and place most are not held out."""
        colours, shapes = list(COLOURS).index(self.colour), SHAPES.index(self.shape)
        return (colours + 2 * shapes + PLACES.index(self.place)) % HELD_OUT == 0

    def caption(self, rng: np.random.Generator) -> str:
        """Return one of its captions."""
        return BEGINNINGS[rng.integers(len(BEGINNINGS))].format(f"{self.colour} {self.shape}", self.place)

    @property
    def answer(self) -> str:
        """The end of every caption: all that is seen."""
        return f"{self.colour} {self.shape} at the {self.place}."

    def draw(self, rng: np.random.Generator) -> Image:
        """Return one picture of it: size, place and noise vary a little."""
        row, column = divmod(PLACES.index(self.place), 3)
        half = rng.uniform(*HALF)
        y, x = (SIDE * (2 * third + 1) / 6 + rng.uniform(-SHIFT, SHIFT) for third in (row, column))
        below, right = (np.arange(SIDE) + 0.5)[:, None] - y, (np.arange(SIDE) + 0.5)[None, :] - x
        is_inside = {
            "square": (abs(below) <= half) & (abs(right) <= half),
            "circle": below**2 + right**2 <= half**2,
            "triangle": (abs(below) <= half) & (2 * abs(right) <= below + half),
        }[self.shape]
        ground = rng.integers(0, 50, (SIDE, SIDE, 3))
        pixels = np.where(is_inside[:, :, None], np.array(COLOURS[self.colour]) - rng.integers(0, 25), ground)
        return Image(pixels.astype(np.uint8))


def scenes(seed: int, *, is_held_out: bool) -> Iterator[Scene]:
    """Yield scenes without end, of the training part or of the held-out one."""
    rng = np.random.default_rng(seed)
    while True:
        colour, shape, place = (str(rng.choice(list(names))) for names in (COLOURS, SHAPES, PLACES))
        scene = Scene(colour=colour, shape=shape, place=place)
        if scene.is_held_out == is_held_out:
            yield scene


def shapes_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token per character, one for an image and one for the end."""
    letters = {letter: place for place, letter in enumerate(ALPHABET, start=1)}
    vocabulary = {END: 0} | letters | {PLACEHOLDER: 1 + len(ALPHABET)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=END))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(PLACEHOLDER, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
