"""Loading: parts inline, by name and by path; overrides; every wrong input is named with what would be accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from prism_cp.errors import InstanceError, PrismError, UsageError
from prism_cp.inputs.load import instance_digest, instance_from_mapping, load_instance
from prism_cp.inputs.reading import MAX_FILE_BYTES

BASE: dict[str, Any] = {
    "name": "base",
    "model": "llama-3.1-8b",
    "cluster": "64xh100",
    "job": {"gbs": 256, "seq_len": 8192},
}
MOE: dict[str, Any] = {**BASE, "model": "mixtral-8x7b"}
GROUPS: dict[str, Any] = {
    "name": "two-kinds",
    "hidden_size": 64,
    "vocab_size": 100,
    "kinds": [
        {
            "name": "a",
            "attention": {"type": "self_attention", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
            "feed_forward": {"type": "dense", "intermediate_size": 256},
        },
        {"name": "b", "feed_forward": {"type": "moe", "num_experts": 8, "top_k": 2, "intermediate_size": 64}},
    ],
    "layers": [{"kind": "a", "count": 2}, {"kind": "b", "count": 1}],
}


def load(tmp_path: Path, content: object, *overrides: str, name: str = "instance.yaml") -> Any:
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return load_instance(path, overrides)


# ---------------------------------------------------------------- what is accepted


def test_options_alone_equal_the_file(tmp_path: Path) -> None:
    by_file = load(tmp_path, BASE)
    by_options = load_instance(None, model="llama-3.1-8b", cluster="64xh100", gbs=256, seq_len=8192)
    assert by_options.name == "llama-3.1-8b-64xh100"
    assert by_options.model_copy(update={"name": "base"}) == by_file
    assert by_file.profile.name == "megatron"


def test_options_replace_parts_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "i.yaml").write_text(yaml.safe_dump(BASE))
    instance = load_instance(tmp_path / "i.yaml", model="gpt2", cluster="8xa100", gbs=16, seq_len=512, profile="fsdp2")
    assert (instance.model.name, instance.cluster.num_devices, instance.profile.name) == ("gpt2", 8, "fsdp2")
    assert (instance.job.gbs, instance.job.seq_len) == (16, 512)


def test_name_defaults_to_the_file(tmp_path: Path) -> None:
    assert load(tmp_path, {key: BASE[key] for key in ("model", "cluster", "job")}, name="x.yaml").name == "x"


def test_cluster_forms_are_equal(tmp_path: Path) -> None:
    shorthand = load(tmp_path, BASE).cluster
    mapping = load(tmp_path, {**BASE, "cluster": {"name": "h100", "num_devices": 64}}).cluster
    assert shorthand == mapping
    device = load(tmp_path, {**BASE, "cluster": {"name": "h100", "num_devices": 64, "device": "h200"}}).cluster
    assert (device.device.name, device.links) == ("h200", shorthand.links)


def test_paths_are_relative_to_the_instance(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    config = {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 128,
        "vocab_size": 1000,
        "architectures": ["GPT2LMHeadModel"],
    }
    (tmp_path / "parts/config.json").write_text(json.dumps(config))
    (tmp_path / "parts/groups.yaml").write_text(yaml.safe_dump({**GROUPS, "source": "here"}))
    (tmp_path / "parts/cluster.yaml").write_text("name: h100\nnum_devices: 8\n")
    job = {"gbs": 16, "seq_len": 128}
    from_json = load(tmp_path, {"model": "parts/config.json", "cluster": "parts/cluster.yaml", "job": job})
    assert (from_json.model.name, from_json.model.num_layers) == ("config", 2)
    assert from_json.model.source == "config.json"
    from_yaml = load(tmp_path, {"model": "parts/groups.yaml", "cluster": "8xh100", "job": job})
    assert from_yaml.model.chain == ("a", "a", "b")
    inline = load(tmp_path, {"model": {"name": "config", **config}, "cluster": "8xh100", "job": job})
    assert inline.model.kinds == from_json.model.kinds


def test_layout_scalars_lists_and_open_fields(tmp_path: Path) -> None:
    layout = {"tp": 8, "pp": [1, 2, 2], "dp": None, "cp": "any", "sp": True, "recompute": ["none", "layernorm+mlp"]}
    space = load(tmp_path, {**BASE, "layout": layout}).layout
    assert (space.tp, space.pp, space.dp, space.cp, space.sp) == ((8,), (1, 2), None, None, (True,))
    assert space.recompute == ("none", "layernorm+mlp")


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("layout.tp=8", "layout.tp", (8,)),
        ("layout.tp=[4, 8]", "layout.tp", (4, 8)),
        ("layout.tp=4,8", "layout.tp", (4, 8)),
        ("layout.recompute=none,full", "layout.recompute", ("none", "full")),
        ("layout.schedule=1f1b", "layout.schedule", ("1f1b",)),
        ("layout.tp_within_domain=false", "layout.tp_within_domain", False),
        ("cluster.num_devices=1024", "cluster.num_devices", 1024),
        ("cluster=16xh20", "cluster.device.name", "h20"),
        ("cluster.name=b200", "cluster.device.name", "b200"),
        ("cluster.device=h200", "cluster.device.name", "h200"),
        ("cluster.device.memory_bytes=1000", "cluster.device.memory_bytes", 1000),
        ("cluster.links.0.latency_s=5e-7", "cluster.links.0.latency_s", 5e-7),
        ("job.gbs=4096", "job.gbs", 4096),
        ("job.capacity_factor=1.25", "job.capacity_factor", 1.25),
        ("model=qwen3-8b", "model.name", "qwen3-8b"),
        ("model.huggingface.num_hidden_layers=4", "model.num_layers", 4),
        ("profile=fsdp2", "profile.name", "fsdp2"),
        ("profile.tp_overlap=true", "profile.tp_overlap", True),
        ("time_unit_s=1e-7", "time_unit_s", 1e-7),
        ("name=other", "name", "other"),
    ],
)
def test_overrides(tmp_path: Path, override: str, path: str, value: object) -> None:
    found = load(tmp_path, BASE, override)
    for part in path.split("."):
        found = found[int(part)] if part.isdecimal() else getattr(found, part)
    assert found == value


def test_override_of_a_device_clears_nothing_else_and_order_of_choice_does_not_matter(tmp_path: Path) -> None:
    one = load(tmp_path, BASE, "cluster.device.memory_bytes=7", "cluster.name=b200", "cluster.num_devices=8")
    two = load(tmp_path, BASE, "cluster.num_devices=8", "cluster.name=b200", "cluster.device.memory_bytes=7")
    assert one == two
    assert (one.cluster.device.memory_bytes, one.cluster.links[0].name) == (7, "NVLink5")


def test_override_of_explicit_groups(tmp_path: Path) -> None:
    instance = load(tmp_path, {**BASE, "model": GROUPS}, "model.layers.0.count=5")
    assert instance.model.num_layers == 6


def test_profile_follows_the_vendor(tmp_path: Path) -> None:
    assert load(tmp_path, {**BASE, "cluster": "64x910b"}).profile.name == "mindspeed"
    assert load(tmp_path, {**BASE, "cluster": "64x910b"}, "profile.rope_saves_input=false").profile.name == "mindspeed"
    changed = load(tmp_path, {**BASE, "profile": {"like": "megatron", "name": "mine", "tp_overlap": True}}).profile
    assert (changed.name, changed.tp_overlap) == ("mine", True)


def test_digest_depends_on_content_only(tmp_path: Path) -> None:
    reordered = dict(reversed(list(BASE.items())))
    assert instance_digest(load(tmp_path, BASE)) == instance_digest(load(tmp_path, reordered))
    assert instance_digest(load(tmp_path, BASE)) != instance_digest(load(tmp_path, BASE, "job.gbs=512"))
    assert len(instance_digest(load(tmp_path, BASE))) == 64


def test_yaml_1_2_floats(tmp_path: Path) -> None:
    text = yaml.safe_dump(BASE) + "time_unit_s: 5e-7\n"
    assert load(tmp_path, text).time_unit_s == 5e-7


# ---------------------------------------------------------------- what is refused: files


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b"# only a comment\n", "empty"),
        (b"\x00\x01binary", "binary"),
        (b"\xff\xfe\xfd", "not UTF-8"),
        (b"model: [1, 2\njob: {", "line 2"),
        (b"- a\n- b\n", "a list"),
        (b"just words\n", "text"),
        (b"model: a\nmodel: b\n", "twice"),
        (b"? [1, 2]\n: 3\n", "unreadable|broken"),
        (b"1.5: 2\n", "no text"),
        (b"1: 2\n", "1: unknown key"),
        (b"name: !!python/object/apply:os.system [echo]\n", "broken YAML"),
        (b"name: 2020-01-01\n", "date"),
        (b"name: .nan\n", "no number"),
        (b"job: {gbs: 99999999999999999999}\n", "too large"),
        (b"job: {gbs: " + b"9" * 5000 + b"}\n", "unreadable|too large"),
        (b"a: &a [*a]\n", "deep|broken"),
        (b"[" * 900, "nested deeper"),
        (b"[" * 100_000, "nest"),
        (b"{a: " * 60 + b"1" + b"}" * 60, "nested deeper"),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    with pytest.raises(InstanceError, match=problem) as caught:
        load_instance(path)
    assert caught.value.source == str(path)
    assert caught.value.accepted


def test_alias_explosion(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(InstanceError, match="too many"):
        load(tmp_path, "\n".join(lines))


def test_too_large_file(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(InstanceError, match=str(MAX_FILE_BYTES)):
        load_instance(path)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.yaml", "nul\0byte.yaml"):
        with pytest.raises(UsageError, match="accepted"):
            load_instance(path)
    with pytest.raises(UsageError, match=r"does not exist.*accepted"):
        load(tmp_path, {**BASE, "model": "missing.json"})
    (tmp_path / "broken.json").write_text('{"a": 1,,}')
    with pytest.raises(InstanceError, match="line 1") as caught:
        load(tmp_path, {**BASE, "model": "broken.json"})
    assert caught.value.source.endswith("broken.json")


def test_options_that_say_too_little() -> None:
    with pytest.raises(UsageError, match="cluster, seq_len not given"):
        load_instance(None, model="gpt2", gbs=8)


# ---------------------------------------------------------------- what is refused: content

REFUSED: list[tuple[dict[str, Any], list[str], str, str]] = [
    # instance, overrides, key, text in accepted
    ({**BASE, "modle": 1}, [], "modle", "did you mean model"),
    ({key: BASE[key] for key in ("model", "cluster")}, [], "job", "gbs"),
    ({key: BASE[key] for key in ("model", "job")}, [], "cluster", "catalogue"),
    ({key: BASE[key] for key in ("cluster", "job")}, [], "model", "catalogue"),
    ({**BASE, "model": "lama-3.1-8b"}, [], "model", "did you mean llama-3.1-8b"),
    ({**BASE, "model": 5}, [], "model", "path"),
    (
        {**BASE, "model": {"huggingface": {"model_type": "llama"}}},
        [],
        "model.huggingface.num_attention_heads",
        "integer",
    ),
    ({**BASE, "model": {"huggingface": 3}}, [], "model.huggingface", "mapping"),
    ({**BASE, "model": {"huggingface": {}, "surce": ""}}, [], "model.surce", "did you mean source"),
    ({**BASE, "model": {"like": "gpt3-17", "vocab_size": 8}}, [], "model.like", "did you mean gpt3-175b"),
    ({**BASE, "model": {**GROUPS, "hiden_size": 3}}, [], "model.hiden_size", "did you mean hidden_size"),
    ({**BASE, "cluster": "64xh10"}, [], "cluster", "did you mean h100"),
    ({**BASE, "cluster": "h100"}, [], "cluster.num_devices", "64xh100"),
    ({**BASE, "cluster": "0xh100"}, [], "cluster.num_devices", "greater than 0"),
    ({**BASE, "cluster": {"num_devices": 8}}, [], "cluster.links", "catalogue family"),
    ({**BASE, "cluster": {"name": "mine", "num_devices": 8, "device": "h100"}}, [], "cluster.links", "innermost"),
    (
        {**BASE, "cluster": {"name": "h100", "num_devices": 8, "device": "h10"}},
        [],
        "cluster.device",
        "did you mean h100",
    ),
    ({**BASE, "cluster": {"name": "h100", "num_devices": 8, "nodes": 1}}, [], "cluster.nodes", "num_devices"),
    ({**BASE, "profile": "megatorn"}, [], "profile", "did you mean megatron"),
    ({**BASE, "profile": []}, [], "profile", "catalogue"),
    ({**BASE, "job": 3}, [], "job", "gbs"),
    ({**BASE, "job": {"gbs": 8}}, [], "job.seq_len", ""),
    ({**BASE, "job": {"gbs": 8, "seq_len": 8, "sequence": 1}}, [], "job.sequence", "seq_len"),
    ({**BASE, "layout": [1]}, [], "layout", "mapping"),
    ({**BASE, "layout": {"tpp": 1}}, [], "layout.tpp", "did you mean tp"),
    ({**BASE, "layout": {"tp": []}}, [], "layout.tp", "any"),
    ({**BASE, "layout": {"tp": [{"a": 1}]}}, [], "layout.tp.0", "integer"),
    ({**BASE, "layout": {"cp_comm": "ring"}}, [], "layout.cp_comm.0", "all_gather"),
    (BASE, ["job.gbs=-1"], "job.gbs", "greater than 0"),
    (BASE, ["job.gbs=0"], "job.gbs", "greater than 0"),
    (BASE, ["job.gbs=true"], "job.gbs", "integer"),
    (BASE, ["job.gbs=8.5"], "job.gbs", "integer"),
    (BASE, ["job.gbs='8'"], "job.gbs", "integer"),
    (BASE, ["job.gbs=1000000000"], "job.gbs", "at most"),
    (BASE, ["job.precision=int4"], "job.precision", "bf16"),
    (BASE, ["job.expert_load=0.5"], "job.expert_load", "greater than or equal to 1"),
    (BASE, ["job.gsb=8"], "job.gsb", "did you mean gbs"),
    (BASE, ["layot.tp=8"], "layot.tp", "did you mean layout"),
    (BASE, ["layout.tpx=8"], "layout.tpx", "did you mean tp"),
    (BASE, ["layout.tp"], "layout.tp", "path=value"),
    (BASE, ["=8"], "", "path=value"),
    (BASE, ["name.x=8"], "name.x", "name=VALUE"),
    (BASE, ["cluster.links.7.name=a"], "cluster.links.7", "0 … 1"),
    (BASE, ["cluster.device.memory_byts=3"], "cluster.device.memory_byts", "did you mean memory_bytes"),
    (BASE, ["cluster.device.vendor.x=3"], "cluster.device.vendor.x", "shorter path"),
    (BASE, ["cluster.device.memory_bytes=0"], "cluster.device.memory_bytes", "greater than 0"),
    (BASE, ["cluster.device.gemm_efficiency=1.5"], "cluster.device.gemm_efficiency", "less than or equal to 1"),
    (BASE, ["cluster.num_devices=10000000"], "cluster.num_devices", "at most"),
    (BASE, ["cluster.links.1.domain_size=32"], "cluster.links.1.domain_size", "all"),
    (BASE, ["cluster.links.1.domain_size=4"], "cluster.links.1.domain_size", "more than 8"),
    (BASE, ["cluster.links=[]"], "cluster.links", "at least one"),
    (BASE, ["model.huggingface.num_hiden_layers=3"], "model.huggingface.num_hiden_layers", "num_hidden_layers"),
    (BASE, ["model.num_layers=3"], "model.num_layers", "huggingface"),
    (BASE, ["profile.tp_overlp=true"], "profile.tp_overlp", "did you mean tp_overlap"),
    (BASE, ["time_unit_s=0"], "time_unit_s", "greater than 0"),
    (BASE, ["time_unit_s=1e-30"], "time_unit_s", "1e-09 … 1"),
    (BASE, ["time_unit_s=1e30"], "time_unit_s", "1e-09 … 1"),
    (BASE, ["memory_unit_bytes=-1"], "memory_unit_bytes", "greater than 0"),
    (BASE, ["layout.schedule=1f1"], "layout.schedule", "did you mean 1f1b"),
    (BASE, ["layout.recompute=[none, moe_ac]"], "layout.recompute", "did you mean moe_act"),
    (BASE, ["layout.recompute=core_attn"], "layout.recompute", "layernorm"),
    (BASE, ["layout.recompute=none+mlp"], "layout.recompute", "joined by +"),
    (BASE, ["layout.recompute=mlp+mlp"], "layout.recompute", "once"),
    (BASE, ["layout.tp=7"], "layout.tp", "1, 2, 4, 8, 16, 32"),
    (BASE, ["layout.tp=16"], "layout.tp", "at most 8"),
    (BASE, ["layout.tp=0"], "layout.tp.0", "greater than 0"),
    (BASE, ["layout.ep=2"], "layout.ep", "1"),
    (BASE, ["layout.etp=2"], "layout.etp", "1"),
    (MOE, ["layout.ep=3"], "layout.ep", "1, 2, 4, 8"),
    (MOE, ["layout.etp=5"], "layout.etp", "1, 2, 4, 7"),
    (BASE, ["layout.cp=3"], "layout.cp", "seq_len / 2"),
    (BASE, ["layout.dp=3"], "layout.dp", "1, 2, 4, 8"),
    (BASE, ["layout.mbs=3"], "layout.mbs", "1, 2, 4, 8"),
    (BASE, ["layout.mbs=64", "layout.dp=8"], "job.gbs", "multiple of 512"),
    (BASE, ["layout.pp=64"], "layout.pp", "at most 34"),
    (BASE, ["layout.pp=5"], "layout.pp", "1, 2, 4, 8"),
    (BASE, ["layout.vpp=2", "layout.schedule=1f1b"], "layout.vpp", "1"),
    (BASE, ["layout.zero=4"], "layout.zero.0", "less than or equal to 3"),
    (BASE, ["layout.tp=8", "layout.cp=1", "layout.dp=4", "layout.pp=1"], "layout", "product of 64"),
    (BASE, ["layout.tp=8", "layout.pp=16"], "layout", "1, 2, 4, 8"),
    ({**BASE, "cluster": "64xa100"}, ["job.precision=fp8"], "job.precision", "bf16, fp16"),
    ({**BASE, "model": "gpt2"}, [], "job.seq_len", "at most 1024"),
]


@pytest.mark.parametrize(("raw", "overrides", "key", "accepted"), REFUSED, ids=lambda item: str(item)[-40:])
def test_refused(raw: dict[str, Any], overrides: list[str], key: str, accepted: str) -> None:
    with pytest.raises(InstanceError) as caught:
        instance_from_mapping(raw, overrides)
    assert caught.value.key == key
    assert accepted in caught.value.accepted
    assert key in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "key", "accepted"),
    [
        (("layers", 0, "kind"), "c", "model.layers.0.kind", "a, b"),
        (("layers", 0, "count"), 0, "model.layers.0.count", "greater than 0"),
        (("layers", 0, "count"), 20_000, "model.layers", "at most"),
        (("layers",), [], "model.layers", "at least one"),
        (("kinds", 1, "name"), "a", "model.kinds.1.name", "another"),
        (("kinds", 1, "name"), "mtp", "model.kinds.1.name", "another"),
        (("kinds", 1, "feed_forward"), None, "model.kinds.1", "at least one"),
        (("kinds", 1, "feed_forward", "top_k"), 9, "model.kinds.1.feed_forward.top_k", "1 … 8"),
        (("kinds", 1, "feed_forward", "num_groups"), 3, "model.kinds.1.feed_forward.num_groups", "1, 2, 4, 8"),
        (("kinds", 1, "feed_forward", "topk_groups"), 2, "model.kinds.1.feed_forward.topk_groups", "1 … 1"),
        (("kinds", 1, "feed_forward", "type"), "mixture", "model.kinds.1.feed_forward", "'moe'"),
        (("kinds", 1, "feed_forward", "experts"), 2, "model.kinds.1.feed_forward.experts", "num_experts"),
        (("kinds", 0, "attention", "num_key_value_heads"), 3, "model.kinds.0.attention.num_key_value_heads", "1, 2, 4"),
        (("num_mtp_layers",), 1, "model.mtp_kind", "a, b"),
        (("mtp_kind",), "a", "model.mtp_kind", "num_mtp_layers"),
        (("norm",), "batchnorm", "model.norm", "rmsnorm"),
    ],
)
def test_refused_models(path: tuple[str | int, ...], value: object, key: str, accepted: str) -> None:
    model = json.loads(json.dumps(GROUPS))
    target = model
    for part in path[:-1]:
        target = target[part]
    target[path[-1]] = value
    with pytest.raises(InstanceError) as caught:
        instance_from_mapping({**BASE, "model": model})
    assert caught.value.key == key
    assert accepted in caught.value.accepted


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(InstanceError, match=r"instance\.yaml: layout\.tp: 7 does not divide 32 heads"):
        load(tmp_path, BASE, "layout.tp=7")


def test_instances_are_frozen(tmp_path: Path) -> None:
    instance = load(tmp_path, BASE)
    with pytest.raises(ValueError, match="frozen"):
        instance.job.gbs = 3


@pytest.mark.parametrize("value", [None, 3, "text", [BASE], {"model": {"like": 3}, "cluster": {}, "job": {}}])
def test_no_instance_at_all(value: object) -> None:
    with pytest.raises(PrismError):
        instance_from_mapping(value)


def test_mamba_under_a_framework_without_a_fused_scan_is_refused():
    """What an unfused scan saves is not modelled, so no plan is made of it."""
    sizes = {"model": "nemotron-h-8b", "gbs": 64, "seq_len": 4096}
    assert load_instance(None, cluster="64xh100", **sizes).profile.fused_state_space_scan
    with pytest.raises(InstanceError, match=r"profile\.fused_state_space_scan.*Mamba-2.*mindspeed.*accepted: true"):
        load_instance(None, cluster="64x910b", **sizes)
