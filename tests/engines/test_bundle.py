"""A setup's model: whose loads they are, and that it is not seen where none was named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spectune.engines.bundle import Bundle, Setup
from spectune.engines.load import SamplingParams
from spectune.engines.server import ServerTimeouts
from spectune.engines.table import SERVERS
from spectune.profiler.records.wire import from_json, to_json
from spectune.tuning.engines.tuned_server import ServerJob, job_of

from ..support.openai_program import VLLM, texts

SETUP = Setup(
    engine="llama.cpp",
    command=("llama-server", "-m", "\u00e9.gguf"),
    drafters=(("small", "s.gguf"),),
    prompts=(2, "ab"),
    sampling='{"max_tokens":8,"model":""}',
    concurrencies=(1, 4),
    requests=8,
    longest=8,
    files=("a.yaml",),
)
JOB = ServerJob(
    engine=SERVERS["vllm"],
    command=VLLM,
    prompts=texts(2),
    sampling=SamplingParams(),
    concurrencies=(1,),
    requests=2,
    longest=4,
    model="second",
)


def test_a_setup_without_a_model_keeps_its_fingerprint_and_is_read_from_older_bundles() -> None:
    assert SETUP.fingerprint == "b5ba8ef004f1ce9f"  # of the version before
    text = to_json(Bundle(spectune="", setup=SETUP)).replace(',"model":""}', "}")
    assert '"model":""' not in text
    assert from_json(Bundle, text).setup == SETUP


def test_another_model_of_a_server_is_another_setup() -> None:
    fingerprints = {replace(JOB, model=name).setup.fingerprint for name in ("", "first", "second")}
    assert len(fingerprints) == 3


@pytest.mark.parametrize("job", [JOB, replace(JOB, command=(), url="http://127.0.0.1:1")])
def test_the_loads_of_a_bundle_are_sent_to_its_model(job: ServerJob) -> None:
    again = job_of(Bundle(spectune="", setup=job.setup), job.command, job.prompts, "", ServerTimeouts(start_s=7.0))
    assert (again.model, again.url, again.setup) == ("second", job.url, job.setup)
    assert again.limits.start_s == 7.0
    assert job_of(Bundle(spectune="", setup=job.setup), job.command, job.prompts, "").limits == ServerTimeouts()
