"""The catalogue: every entry loads, validates and says where its values come from."""

from __future__ import annotations

import pytest

from prism_cp.errors import InstanceError
from prism_cp.inputs.catalog import SECTIONS, catalog_entry, catalog_names
from prism_cp.inputs.cluster import Device
from prism_cp.inputs.consistency import check_cluster, check_model
from prism_cp.inputs.parts import build_cluster, build_model, build_profile, expand, expand_cluster
from prism_cp.inputs.pydantic_errors import validated


def test_sizes_of_the_sections() -> None:
    assert len(catalog_names("models")) >= 25
    assert len(catalog_names("devices")) >= 12
    assert {"h100", "h800", "a100", "h20", "h200", "b200", "gb200", "mi300x", "910b", "910c"} <= set(
        catalog_names("clusters")
    )
    assert {"megatron", "megatron-2022", "mindspeed", "fsdp2"} <= set(catalog_names("profiles"))


@pytest.mark.parametrize("name", catalog_names("models"))
def test_model(name: str) -> None:
    model = build_model({"name": name, **catalog_entry("models", name)})
    check_model(model)
    assert model.name == name
    assert model.source


@pytest.mark.parametrize("name", catalog_names("devices"))
def test_device(name: str) -> None:
    device = validated(Device, catalog_entry("devices", name), "device")
    assert device.name == name
    stated = {
        "memory_bytes",
        "hbm_bytes_per_s",
        "peak_flops",
        "num_cores",
        "gemm_efficiency",
        "grouped_gemm_efficiency",
    }
    stated |= {"attention_efficiency", "hbm_efficiency"}
    kernels = ("flash2_attention_efficiency", "triton_attention_efficiency")
    optional = ("fp8_gemm_efficiency", "fp4_gemm_efficiency", *kernels)
    stated |= {name for name in optional if getattr(device, name) is not None}
    stated |= {"host_slowdown"} if device.host_slowdown != 1 else set()
    assert set(device.source) == stated
    assert all(device.source.values())
    # fp8 needs its rate and its efficiency, or neither.
    assert ("fp8" in device.peak_flops) == (device.fp8_gemm_efficiency is not None)
    assert ("fp4" in device.peak_flops) == (device.fp4_gemm_efficiency is not None)


@pytest.mark.parametrize("name", catalog_names("clusters"))
@pytest.mark.parametrize("num_devices", [1, 4, 8, 1024])
def test_cluster(name: str, num_devices: int) -> None:
    cluster = build_cluster(expand_cluster({"name": name, "num_devices": num_devices}, None))  # type: ignore[arg-type]
    check_cluster(cluster)
    assert cluster.num_devices == num_devices
    assert set(cluster.source) == {
        *(link["name"] for link in catalog_entry("clusters", name)["links"]),
        "efficiency",
        "latency",
    }
    inner = catalog_entry("clusters", name)["links"][0]["domain_size"]
    assert len(cluster.links) == (1 if num_devices <= inner else 2)


@pytest.mark.parametrize("name", catalog_names("profiles"))
def test_profile(name: str) -> None:
    profile = build_profile(catalog_entry("profiles", name))
    assert profile.name == name
    assert set(profile.source) == set(catalog_entry("profiles", name)) - {"name", "source"}


def test_entries_are_fresh_copies() -> None:
    catalog_entry("devices", "h100")["memory_bytes"] = 1
    assert catalog_entry("devices", "h100")["memory_bytes"] > 1


def test_like_keeps_the_rest_and_replaces_the_source() -> None:
    base = catalog_entry("devices", "h100")
    device = validated(Device, expand("device", {"like": "h100", "memory_bytes": 1000}, None), "device")  # type: ignore[arg-type]
    assert device.memory_bytes == 1000
    assert device.hbm_bytes_per_s == base["hbm_bytes_per_s"]
    assert device.source["memory_bytes"] != base["source"]["memory_bytes"]
    assert device.source["num_cores"] == base["source"]["num_cores"]


@pytest.mark.parametrize("section", SECTIONS)
def test_unknown_names_are_refused_with_suggestions(section: str) -> None:
    known = catalog_names(section)[0]
    with pytest.raises(InstanceError) as caught:
        catalog_entry(section, known + "x")
    assert "did you mean" in caught.value.accepted
    assert known in caught.value.accepted


def test_unknown_section() -> None:
    with pytest.raises(InstanceError, match="did you mean models"):
        catalog_names("model")
