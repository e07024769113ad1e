"""What a target is asked to write behind: as its decoder would be asked, and apart from what judges a drafter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from spectune.errors import RequestError, TrainingError
from spectune.training.own_text import BLANK, OwnTextSettings, Pieces
from spectune.training.prompts import CHECKED, TALK_TOKENS, Corpus, own_prompts, own_requests, parted, read_corpus

from ..support.tiny_family import beginning_tokenizer, byte_tokenizer
from ..support.tiny_models import tiny_llama

OWN = OwnTextSettings(texts=40, prompt_tokens=4, new_tokens=20)
TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[it]"
TALK = {"messages": [{"role": "me", "content": "hello"}, {"role": "it", "content": "there"}]}


def saved(folder: Path, tokenizer: PreTrainedTokenizerFast, *, ends: int = 7) -> Path:
    """Write the files of a target that are read before it is loaded."""
    model = tiny_llama(layers=1, seed=0, vocabulary=len(tokenizer))
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [ends]}))
    return folder


def write(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_every_text_begins_as_the_target_reads_texts_and_ends_where_it_ends_them(tmp_path: Path) -> None:
    tokenizer = beginning_tokenizer("def main(): return 1")
    target, data = saved(tmp_path, tokenizer), write(tmp_path / "a.jsonl", {"text": "def main(): return 1 " * 20})
    asked = own_prompts(target, [data], OWN)
    for each in (*asked.learned, *asked.judged):
        assert each.prompt[0] == tokenizer.bos_token_id and len(each.prompt) == 4
        assert each.stop == {7, tokenizer.eos_token_id}
    assert asked.begins == (tokenizer.bos_token_id,) and len(asked.judged) == CHECKED


def test_a_target_whose_texts_begin_with_nothing_reads_pieces_as_they_are(tmp_path: Path) -> None:
    target, data = saved(tmp_path, byte_tokenizer("abc")), tmp_path / "a.txt"
    data.write_text("abcdefgh" * 40)
    text = "".join(chr(97 + place % 8) for place in range(330))
    asked, tokenizer = own_prompts(target, [data], OWN), byte_tokenizer("abc")
    assert asked.begins == () and all(str(tokenizer.decode(list(each.prompt))) in text for each in asked.learned)


def test_a_conversation_is_read_in_the_target_s_template_from_its_end(tmp_path: Path) -> None:
    tokenizer = beginning_tokenizer("hello there")
    tokenizer.chat_template = TEMPLATE
    long = {"messages": [{"role": "me", "content": "hello " * 300}]}
    target, data = saved(tmp_path, tokenizer), write(tmp_path / "a.jsonl", *[TALK] * 3, long, TALK)
    asked = own_prompts(target, [data], OWN)
    texts = {tokenizer.decode(list(each.prompt)) for each in asked.learned}
    assert "<end>[me]hello[it]there[it]" in texts and len(texts) == 2
    cut = max((each.prompt for each in asked.learned), key=len)
    assert len(cut) == TALK_TOKENS and cut[0] == tokenizer.bos_token_id
    assert str(tokenizer.decode(list(cut[-7:]))).endswith("hello [it]")


def test_of_a_file_with_too_many_entries_some_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, data = saved(tmp_path, byte_tokenizer("abc")), tmp_path / "a.jsonl"
    write(data, *[{"text": letter * 30} for letter in "abcdefgh"])
    whole = own_prompts(target, [data], OWN)
    monkeypatch.setattr("spectune.training.prompts.MOST_PROMPTS", 8)
    assert own_prompts(target, [data], OWN) == whole
    monkeypatch.setattr("spectune.training.prompts.MOST_PROMPTS", 3)
    some = own_prompts(target, [data], OWN)
    read = {token for each in (*some.learned, *some.judged) for token in each.prompt}
    assert len(read) <= 3 + 1  # each text's letter, and what ends texts


def test_a_conversation_without_a_template_is_text(tmp_path: Path) -> None:
    found = read_corpus(write(tmp_path / "a.jsonl", TALK), byte_tokenizer("hello there"))
    assert not found.conversations
    assert byte_tokenizer("hello there").decode(found.tokens.tolist()) == "hello\n\nthere<end>"


def test_pieces_and_conversations_are_drawn_by_their_tokens() -> None:
    corpus = Corpus(tokens=np.zeros(3004, dtype=np.int64), conversations=((1,) * 256, (2,) * 250))
    asked = own_requests(corpus, replace(OWN, texts=3506))
    counts = np.bincount([each.prompt[-1] for each in asked])
    assert np.allclose(counts, [3000, 256, 250], atol=75) and counts.sum() == 3506


def test_drafts_are_counted_behind_text_that_is_not_learned_from() -> None:
    files = [Corpus(tokens=np.arange(first, first + 100), conversations=((first,),)) for first in (0, 200, 400)]
    learned, judged = parted(files, 0.1)
    assert judged.tokens.tolist() == [*range(90, 100), *range(290, 300), *range(490, 500)]
    assert judged.conversations == ((400,),) and learned.conversations == ((0,), (200,))
    assert not set(learned.tokens) & set(judged.tokens) and len(learned.tokens) == 270


def test_too_little_text_to_be_judged_by_is_refused(tmp_path: Path) -> None:
    target, data = saved(tmp_path, byte_tokenizer("abc")), tmp_path / "a.txt"
    data.write_text("abcdefghi")
    with pytest.raises(TrainingError, match="too few to draw prompts of 4 to learn from, and others"):
        own_prompts(target, [data], OWN)


def test_texts_that_outgrow_the_target_s_positions_are_refused(tmp_path: Path) -> None:
    target, data = saved(tmp_path, byte_tokenizer("abc")), tmp_path / "a.txt"
    data.write_text("abcdefgh" * 40)
    with pytest.raises(RequestError, match="need 513 positions and the model has 512; lower --new-tokens"):
        own_prompts(target, [data], replace(OWN, new_tokens=509))


def test_a_piece_is_a_text_s_beginning_or_stands_behind_what_begins_texts() -> None:
    texts = np.array([[9, *range(10, 20)], [9, 20, 21, *[BLANK] * 8]])
    pieces = Pieces(texts, (9,), 4)
    assert pieces.rows.tolist() == [0, 0, 0, 1] and pieces.columns == 4
    whole = [[9, 10, 11, 12, 13], [9, 14, 15, 16, 17], [9, 16, 17, 18, 19], [9, 20, 21, BLANK, BLANK]]
    assert pieces.ids(torch.arange(4)).tolist() == whole
    assert pieces.ids(torch.tensor([3])).tolist() == [[9, 20, 21]]
