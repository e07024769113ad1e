from __future__ import annotations

import json
from importlib.resources import files

import pytest

from spectune.errors import DeviceError
from spectune.profiler.catalogue import catalogue_names, catalogued

DOCUMENT = json.loads(files("spectune.profiler").joinpath("devices.json").read_text())


def numbers_without_source(node: object, path: str = "") -> list[str]:
    """Name every number that does not stand beside a source of the list."""
    if isinstance(node, dict):
        if node.get("source") in DOCUMENT["sources"]:
            return []
        return [found for key, child in node.items() for found in numbers_without_source(child, f"{path}.{key}")]
    return [path] if isinstance(node, int | float) else []


@pytest.mark.parametrize("entry", DOCUMENT["devices"], ids=lambda entry: entry["name"])
def test_every_number_of_a_device_has_a_source(entry):
    assert numbers_without_source(entry) == []


@pytest.mark.parametrize("source", DOCUMENT["sources"].values(), ids=DOCUMENT["sources"])
def test_every_source_has_a_title_and_an_address(source):
    assert source["title"] and source["url"].startswith("https://")


def test_a_number_without_source_would_be_found():
    assert numbers_without_source({"tflops": {"bfloat16": {"value": 3, "source": "hearsay"}}}) == [
        ".tflops.bfloat16.value"
    ]


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("H200", "NVIDIA H200"),
        ("NVIDIA H200", "NVIDIA H200"),
        ("h100-sxm", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
        ("A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"),
        ("rtx 4090", "NVIDIA GeForce RTX 4090"),
        ("L4", "NVIDIA L4"),
        ("MI300X", "AMD Instinct MI300X"),
        ("EPYC Genoa", "AMD EPYC 9654 96-Core Processor"),
        ("NVIDIA H20", "NVIDIA H20"),
        ("l40", "NVIDIA L40"),
        ("A10", "NVIDIA A10"),
        ("T4", "Tesla T4"),
        ("A100-PCIe-80GB", "NVIDIA A100 80GB PCIe"),
    ],
)
def test_a_device_is_found_by_its_name_and_its_aliases(name, device):
    assert catalogued(name).device.name == device


@pytest.mark.parametrize("name", catalogue_names())
def test_every_device_is_found_by_its_own_name(name):
    assert catalogued(name).device.name == catalogued(name).limits.name == name


@pytest.mark.parametrize("name", ["", "TPU v5"])
def test_an_unknown_device_is_answered_with_the_list(name):
    with pytest.raises(DeviceError, match=r"no device.*NVIDIA H200.*NVIDIA L40S"):
        catalogued(name)


def test_a_name_that_several_devices_share_is_answered_with_those():
    with pytest.raises(DeviceError, match=r"several devices; .*A100-SXM4-40GB, NVIDIA A100-SXM4-80GB$"):
        catalogued("A100")


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("H2", ["NVIDIA H200", "NVIDIA H20"]),
        ("NVIDIA H20-3e", ["NVIDIA H20"]),
        ("L", ["NVIDIA L4", "NVIDIA L40", "NVIDIA L40S"]),
        ("RTX 409", ["NVIDIA GeForce RTX 4090"]),
        ("B20", ["NVIDIA B200"]),
        ("H100", ["NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100 NVL"]),
    ],
)
def test_the_start_of_a_name_is_no_name_and_is_answered_with_candidates(name, candidates):
    with pytest.raises(DeviceError) as refused:
        catalogued(name)
    listed = str(refused.value).rpartition("choose one of: ")[2].split(", ")
    assert set(candidates) <= set(listed) and len(listed) < len(catalogue_names())


@pytest.mark.parametrize(
    ("name", "memory_gib", "bandwidth", "tflops"),
    [
        ("H20", 96, 4.0e12, 148),
        ("L40", 48, 864e9, 181.05),
        ("L40S", 48, 864e9, 362.05),
        ("A10", 24, 600e9, 125),
        ("A10G", 24, 600e9, 70),
        ("A30", 24, 933e9, 165),
        ("A40", 48, 696e9, 149.7),
        ("A6000", 48, 768e9, 154.8),
        ("RTX 6000 Ada", 48, 960e9, 364.2),
        ("H100 NVL", 94, 3.9e12, 835.5),
        ("H100 PCIe", 80, 2.039e12, 756),
        ("A100-PCIe-40", 40, 1.555e12, 312),
        ("A100-PCIe-80", 80, 1.935e12, 312),
        ("RTX 3080", 10, 760e9, 59.5),
        ("RTX 4080", 16, 716.8e9, 97.5),
        ("MI325X", 256, 6.0e12, 1307.4),
    ],
)
def test_devices_have_their_own_memory_bandwidth_and_dense_products(name, memory_gib, bandwidth, tflops):
    limits = catalogued(name).limits
    assert limits.memory_bytes == memory_gib * 2**30
    assert limits.read_ms(limits.cache_bytes + bandwidth) == pytest.approx(1000.0)
    assert limits.compute_ms(tflops * 1e12, "bfloat16") == pytest.approx(1000.0)


def test_a_format_that_a_device_does_not_multiply_is_missing():
    turing = catalogued("T4")
    assert turing.device.native_dtype == catalogued("V100").device.native_dtype == "float16"
    assert "tflops.bfloat16" in turing.missing and turing.limits.compute_ms(65e12, "float16") == pytest.approx(1000.0)


def test_the_speeds_are_the_dense_ones_in_plain_units():
    limits = catalogued("H200").limits
    assert limits.read_ms(60 * 2**20 + 4.8e12) == pytest.approx(1000.0)
    assert limits.compute_ms(989.5e12, "bfloat16") == pytest.approx(1000.0)


def test_figures_nobody_publishes_are_named_and_absent():
    genoa = catalogued("EPYC-9654")
    assert "tflops.bfloat16" in genoa.missing
    assert genoa.limits.flops_per_s == ()


def test_a_catalogued_device_has_its_own_fingerprint():
    fingerprints = {catalogued(name).device.fingerprint for name in catalogue_names()}
    assert len(fingerprints) == len(catalogue_names())
