"""Measurements made elsewhere become records of ours, or an error that names the place."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spectune.db.rows import Records
from spectune.errors import RequestError
from spectune.profiler.identity import identify
from spectune.profiler.records.document import SurfaceDocument, TraceDocument
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.wire import to_json
from spectune.tuning.foreign.csv_table import NEEDED
from spectune.tuning.foreign.importing import read_import
from spectune.tuning.foreign.told import Given

from ...support.synthetic import DEVICE, Language, SkilledDrafter, every_node, model, record, surface, texts
from ...support.tiny_family import save_model

DOCUMENT = (Path(__file__).parents[3] / "docs" / "reference" / "import-files.md").read_text()
NOTHING = Given()
PLAIN = Given(device=DEVICE, model=model("large"), regime_name="bench")
HEADER = "role,dtype,batch,context_tokens,tokens,ms,failure"
LINE = "verify,bfloat16,1,512,8,6.9,"


def example(language: str) -> str:
    """Return the one block of a language in the document."""
    (block,) = re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)
    return str(block)


def read(folder: Path, text: str, suffix: str = ".csv", given: Given = NOTHING) -> Records:
    (folder / f"file{suffix}").write_text(text)
    return read_import(folder / f"file{suffix}", given)


def plain_document(**changes: Any) -> str:
    return json.dumps(json.loads(example("json")) | changes)


def test_the_documented_table_and_document_bring_the_same_records(tmp_path: Path) -> None:
    assert read(tmp_path, example("csv")) == read(tmp_path, example("json"), ".json")


def test_the_documented_table_brings_what_its_lines_say(tmp_path: Path) -> None:
    records = read(tmp_path, example("csv"))
    (found,), (device,), (brought,) = records.surfaces, records.devices, records.models
    assert (found.device, found.model) == (device.fingerprint, brought.key)
    assert (device.name, brought.name, brought.parameters) == ("NVIDIA H100 80GB HBM3", "llama-8b", 8030261248)
    assert (found.role, found.regime, found.dtype, found.attention) == (
        *("verify", "imported:vllm-0.9", "bfloat16"),
        "flash",
    )
    assert found.measurements == (
        Measurement(batch=1, context_tokens=512, tokens=1, repeats_ms=(6.81, 6.79)),
        Measurement(batch=1, context_tokens=512, tokens=8, repeats_ms=(6.94,)),
        Measurement(batch=256, context_tokens=32768, tokens=64, failure="out of memory"),
    )


def test_every_column_that_a_table_needs_is_documented() -> None:
    assert not [name for name in NEEDED if f"`{name}`" not in DOCUMENT]


def test_options_say_what_the_table_does_not(tmp_path: Path) -> None:
    (found,) = read(tmp_path, f"{HEADER}\n{LINE}\n", given=PLAIN).surfaces
    assert (found.device, found.model, found.regime) == (DEVICE.fingerprint, model("large").key, "imported:bench")


def test_the_option_s_regime_wins_over_the_file_s(tmp_path: Path) -> None:
    (found,) = read(tmp_path, example("csv"), given=Given(regime_name="another")).surfaces
    assert found.regime == "imported:another"


def test_lines_of_other_roles_make_other_surfaces(tmp_path: Path) -> None:
    records = read(tmp_path, f"{HEADER}\n{LINE}\n{LINE.replace('verify', 'draft')}\n", given=PLAIN)
    assert [found.role for found in records.surfaces] == ["verify", "draft"]
    assert len(records.models) == 1


def test_columns_may_stand_in_any_order_with_blank_lines_between(tmp_path: Path) -> None:
    lines = ("\ufefftokens, ms ,role,dtype,batch,context_tokens", "", "8,6.9,verify,bfloat16,1,512", ",,,,,\r")
    text = "\n".join((*lines, '"8",7,verify,bfloat16,1,512'))
    (found,) = read(tmp_path, text, given=PLAIN).surfaces
    assert found.measurements == (Measurement(batch=1, context_tokens=512, tokens=8, repeats_ms=(6.9, 7.0)),)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((HEADER,), "line 2: the table holds no measurement"),
        (("",), "line 1: column role is missing"),
        ((HEADER.replace("ms", "msec"), LINE), "line 1: there is no column 'msec'"),
        ((HEADER.replace("batch,", ""), LINE), "line 1: column batch is missing"),
        ((f"{HEADER},role", LINE), "line 1: column role occurs twice"),
        ((HEADER.replace(",", ";"), LINE), "separated by commas"),
        ((HEADER, LINE, f"{LINE},"), "line 3: 8 values for 7 columns"),
        ((HEADER, '"verify,1'), "line 2: unexpected end of data"),
        ((HEADER, LINE.replace("6.9", "fast")), "line 2, column ms: 'fast'; write positive milliseconds"),
        ((HEADER, LINE.replace("6.9", "-1")), "line 2, column ms: '-1'"),
        ((HEADER, LINE.replace("6.9", "nan")), "line 2, column ms: 'nan'"),
        ((HEADER, LINE.replace("6.9", "inf")), "line 2, column ms: 'inf'"),
        ((HEADER, LINE.replace("6.9", "")), "line 2, column ms: nothing there"),
        ((HEADER, LINE.replace("16,1,", "16,0,")), "line 2, column batch: '0'; write a whole number of at least 1"),
        ((HEADER, LINE.replace("16,1,", "16,1.5,")), "line 2, column batch: '1.5'"),
        ((HEADER, LINE.replace("16,1,", f"16,{'9' * 5000},")), "line 2, column batch"),
        ((HEADER, LINE.replace("verify", "verifying")), "line 2, column role: surface role is 'verifying'"),
        ((HEADER, LINE.replace("bfloat16", "")), "line 2, column dtype: nothing there"),
        ((HEADER, f"{LINE}out of memory"), "line 2, column failure: 'out of memory'"),
        ((HEADER, LINE, f"{LINE.replace('6.9', '')}gone"), "line 3, column failure: 'gone'"),
    ],
)
def test_a_faulty_table_is_refused_with_line_and_column(lines: tuple[str, ...], words: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as refusal:
        read(tmp_path, "\n".join(lines), given=PLAIN)
    assert words in str(refusal.value)
    assert str(refusal.value).startswith(str(tmp_path / "file.csv"))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("85899345920", "much", "line 2, column device.memory_bytes: input should be a valid integer"),
        ("85899345920", "", "line 2, column device.memory_bytes: "),
        ("cuda,NVIDIA", "cpu,NVIDIA", "line 2, columns device.*: NVIDIA H100 80GB HBM3: a cpu needs cores and threads"),
        ("5f70bf18", "hash", "line 2, columns model.*: llama-8b: weights_hash must be a sha256"),
        ("8030261248", "0", "line 2, columns model.*: llama-8b: parameters must be at least 1"),
        ("vllm-0.9", "", "line 2, column regime"),
        ("vllm-0.9", "two words", "line 2, column regime: 'two words' is no name of a regime"),
    ],
)
def test_a_faulty_device_model_or_regime_is_refused_with_its_line(
    old: str, new: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=re.escape(words)):
        read(tmp_path, example("csv").replace(old, new))


def test_a_device_told_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"line 2, device: the file names NVIDIA .* and --device Abacus"):
        read(tmp_path, example("csv"), given=Given(device=DEVICE))


def test_a_device_told_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"line 2, device: the file names none; .* --device"):
        read(tmp_path, f"{HEADER}\n{LINE}\n", given=replace(PLAIN, device=None))


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_a_model_folder_is_hashed_from_beside_the_file(suffix: str, tmp_path: Path) -> None:
    save_model(tmp_path / "models" / "tiny", layers=1, seed=1)
    given = replace(PLAIN, model=None)
    if suffix == ".csv":
        text = f"model.folder,{HEADER}\nmodels/tiny,{LINE}\n"
    else:
        (entry,) = json.loads(example("json"))["surfaces"]
        text = json.dumps({"surfaces": [entry | {"model": {"folder": "models/tiny"}}]})
    assert read(tmp_path, text, suffix, given).models == (identify(tmp_path / "models" / "tiny"),)


def test_a_folder_with_other_weights_than_the_file_says_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path / "tiny", layers=1, seed=1)
    other = hashlib.sha256(b"other").hexdigest()
    text = f"model.folder,model.weights_hash,{HEADER}\ntiny,{other},{LINE}\n"
    with pytest.raises(RequestError, match=f"columns model.*: the model in .*tiny has the weights hash .* {other}"):
        read(tmp_path, text, given=replace(PLAIN, model=None))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1, column 1: Expecting value"),
        ('{"surfaces":\n [}', "line 2, column 3"),
        ("[1]", "the document is a list"),
        ("[" * 100_000, "the document cannot be read"),
        (f'{{"surfaces": {"9" * 5000}}}', "the document cannot be read"),
        (example("json").replace("bfloat16", r"\ud800"), "Invalid JSON"),
        (example("json").replace("6.94", "1e999"), "surfaces.0.cells.1.repeats_ms.0: Input should be a finite number"),
        (example("json").replace("6.94", "NaN"), "surfaces.0.cells.1.repeats_ms.0: Input should be a finite number"),
        ("{}", "the document has the keys (none)"),
        ('{"schedule": [], "drafters": []}', "the document has the keys drafters, schedule"),
        (plain_document(surfaces=[]), "surfaces: there are none"),
        (plain_document(extra=1), "extra: Unexpected keyword argument"),
        (plain_document(regime=None), "regime: not there"),
        (plain_document(device=None), "device: the file names none"),
        (
            example("json").replace("[6.94]", '["6.94"]'),
            "surfaces.0.cells.1.repeats_ms.0: Input should be a valid number",
        ),
        (example("json").replace("[6.94]", "[]"), "give repeats_ms or failure"),
        (example("json").replace('"verify"', '"verb"'), "surfaces.0: surface role is 'verb'"),
        (example("json").replace('"tokens": 8', '"tokens": 1'), "surfaces.0: (batch, context, tokens) = (1, 512, 1)"),
        (example("json").replace("5f70bf18", "hash"), "surfaces.0: llama-8b: weights_hash must be a sha256"),
    ],
)
def test_a_faulty_document_is_refused_with_its_place(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as refusal:
        read(tmp_path, text, ".json")
    assert words in str(refusal.value)


def test_a_surface_told_twice_is_refused(tmp_path: Path) -> None:
    (entry,) = json.loads(example("json"))["surfaces"]
    with pytest.raises(RequestError, match=r"surfaces\.1: the same model, role, dtype and attention as surfaces\.0"):
        read(tmp_path, plain_document(surfaces=[entry, entry]), ".json")


def own_surface() -> SurfaceDocument:
    return SurfaceDocument(
        surface=surface("large", "verify", lambda b, c, n: 1 / 3 + b * n), device=DEVICE, model=model("large")
    )


def own_trace() -> TraceDocument:
    pairs = texts(Language(seed=1), 2, lambda i: 6)
    trace = record(SkilledDrafter(Language(seed=1), 0.7), pairs, every_node(2, 2))
    return TraceDocument(trace=trace, target=model("large"), drafter=model("small"))


def test_a_surface_of_spectune_comes_back_with_its_identities(tmp_path: Path) -> None:
    own = own_surface()
    records = read(tmp_path, to_json(own), ".json")
    assert records == Records(devices=(DEVICE,), models=(model("large"),), surfaces=(own.surface,))


def test_a_trace_of_spectune_comes_back_with_its_identities(tmp_path: Path) -> None:
    own = own_trace()
    records = read(tmp_path, to_json(own), ".json")
    assert records == Records(models=(model("large"), model("small")), traces=(own.trace,))


def test_records_without_their_identities_are_read_too(tmp_path: Path) -> None:
    bare_surface, bare_trace = own_surface().surface, own_trace().trace
    assert read(tmp_path, to_json(bare_surface), ".json") == Records(surfaces=(bare_surface,))
    assert read(tmp_path, to_json(bare_trace), ".json") == Records(traces=(bare_trace,))


def test_options_are_refused_beside_a_document_of_spectune(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="leave out --regime-name"):
        read(tmp_path, to_json(own_surface()), ".json", Given(regime_name="mine"))


def test_a_document_with_another_device_than_its_surface_s_is_refused(tmp_path: Path) -> None:
    document = json.loads(to_json(own_surface()))
    document["device"]["name"] = "Calculator"
    with pytest.raises(RequestError, match=f"device .* of a document is not {DEVICE.fingerprint}"):
        read(tmp_path, json.dumps(document), ".json")


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_is_no_text_is_refused(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "file.csv").write_bytes(content)
    with pytest.raises(RequestError, match=r"cannot read .*file\.csv"):
        read_import(tmp_path / "file.csv", PLAIN)


def test_a_suffix_of_no_known_format_is_refused_unless_one_is_given(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="--format"):
        read(tmp_path, example("csv"), ".txt")
    assert read_import(tmp_path / "file.txt", NOTHING, "csv") == read(tmp_path, example("csv"))
