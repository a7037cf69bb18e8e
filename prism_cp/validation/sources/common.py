"""What all kinds of rows share: from published facts to a `Configuration`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from prism_cp.estimation.configuration import Configuration, configure
from prism_cp.inputs.cluster import Cluster
from prism_cp.inputs.consistency import MAX_LAYERS
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.job import Job, Profile
from prism_cp.inputs.layout import Layout
from prism_cp.inputs.model import LayerGroup, Model
from prism_cp.inputs.parts import build_cluster, build_model, build_profile, expand, expand_cluster
from prism_cp.validation.rows import Row, Skipped

_HERE = Path()  # catalogue names need no folder
_RECOMPUTATION = {"": "none", "none": "none", "full": "full", "full-uniform-1": "full"}
_SEQUENCE_PARALLEL = {"": None, "0": False, "no": False, "false": False, "1": True, "yes": True, "true": True}
_ONE_CHUNK = ("1f1b", "gpipe", "zero-bubble", "zb-h1")  # schedules that cannot have several chunks a rank
_MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")


@cache
def catalog_model(name: str) -> Model:
    """A model of the catalogue."""
    return build_model(expand("model", name, _HERE))


@cache
def catalog_profile(name: str) -> Profile:
    """A profile of the catalogue."""
    return build_profile(expand("profile", name, _HERE))


@cache
def catalog_cluster(family: str, num_devices: int) -> Cluster:
    """A cluster of a catalogue family."""
    return build_cluster(expand_cluster(f"{num_devices}x{family}", _HERE))


def with_num_layers(model: Model, layers: int) -> Model:
    """The model's first layers only, or more of its last kind: proxies of a published model.

    Raises
    ------
    Skipped
        No model has so many layers.
    """
    if not 1 <= layers <= MAX_LAYERS:
        raise Skipped(f"{layers} layers of {model.name} are out of range (accepted: 1 to {MAX_LAYERS})")
    groups: list[LayerGroup] = []
    left = layers
    for group in model.layers:
        taken = min(left, group.count)
        if taken:
            groups.append(LayerGroup(kind=group.kind, count=taken))
        left -= taken
    if left:
        groups.append(LayerGroup(kind=model.layers[-1].kind, count=left))
    return model.model_copy(update={"layers": tuple(groups)})


def data_parallel_size(row: Row) -> int:
    """Devices over tp·cp·pp; a stated `dp` that contradicts it is not used.

    Raises
    ------
    Skipped
        The sizes do not divide the devices.
    """
    devices = row.required("n_devices")
    model_parallel = row.size("tp") * row.size("cp") * row.size("pp")
    if devices % model_parallel:
        raise Skipped(f"tp·cp·pp={model_parallel} does not divide n_devices={devices}")
    return devices // model_parallel


def num_microbatches(row: Row, dp: int, mbs: int, gbs: int | None = None) -> int:
    """Micro-batches of one pipeline and step.

    A batch size that was derived from printed rates is rounded to the nearest whole number of micro-batches.
    """
    gbs = gbs if gbs is not None else row.required("gbs")
    count = gbs / (mbs * dp)
    if count == int(count):
        return int(count)
    if "gbs DERIVED" in row.text("note") and count > 0.5 and abs(round(count) / count - 1) < 0.02:
        return round(count)
    raise Skipped(f"gbs={gbs} is no multiple of mbs·dp={mbs}·{dp}")


def recomputation(text: str) -> str:
    """Strategy name of a `recompute` column: ``none``, ``full``, or Megatron-LM's modules joined by ``+``.

    Raises
    ------
    Skipped
        The text is not understood.
    """
    plain = text.strip().lower()
    if plain in _RECOMPUTATION:
        return _RECOMPUTATION[plain]
    if plain in ("selective", "selective (attention only)"):
        return "core_attn"
    modules = [part for part in re.split(r"[\s,+]+", plain.removeprefix("selective:")) if part]
    if modules and all(module in _MODULES for module in modules):
        return "+".join(modules)
    raise Skipped(f"recompute={text!r} is not understood")


def zero_stage(text: str, default: int) -> int:
    """Stage of a `zero` column such as ``3 (FSDP2)``; `default` when it is blank."""
    plain = text.strip().lower()
    if not plain:
        return default
    if plain.startswith("fsdp"):
        return 3
    if stage := re.match(r"[0-3](?![\d.])", plain):
        return int(stage[0])
    raise Skipped(f"zero={text!r} is not understood")


def sequence_parallel(row: Row) -> bool | None:
    """The `sp` column; None when it is blank.

    Raises
    ------
    Skipped
        The text is not understood.
    """
    plain = row.text("sp").lower()
    if plain not in _SEQUENCE_PARALLEL:
        raise Skipped(f"sp={plain!r} is not understood (accepted: 0, 1, false, true)")
    return _SEQUENCE_PARALLEL[plain]


def schedule_of(row: Row, vpp: int) -> str:
    """Schedule of a `schedule` column; blank means 1F1B, interleaved where there are several chunks a rank."""
    plain = row.text("schedule").lower()
    if plain in ("", "1f1b", "interleaved 1f1b", "interleaved") or plain.startswith("1f1b-interleaved"):
        return "interleaved" if vpp > 1 else "1f1b"
    known = {"gpipe": "gpipe", "zero-bubble": "zb-h1", "zb-h1": "zb-h1", "zbv-formatted": "zb-v", "zb-v": "zb-v"}
    known |= {"dualpipe": "dualpipe", "dualpipev": "dualpipev"}
    if plain in known:
        return known[plain]
    raise Skipped(f"schedule={plain!r} is unknown")


def virtual_stages(row: Row, stages_in_layout: int | None = None) -> int:
    """Chunks of every rank.

    Raises
    ------
    Skipped
        There are several stages and nothing says how many chunks a rank has.
    """
    pp = row.size("pp")
    if pp == 1:
        return 1  # chunks of one rank that holds everything change nothing
    if stages_in_layout is not None:
        if stages_in_layout % pp:
            raise Skipped(f"pp_layout has {stages_in_layout} stages, no multiple of pp={pp}")
        return stages_in_layout // pp
    if not row.text("vpp") and row.text("schedule").lower() in _ONE_CHUNK:
        return 1
    if not row.text("vpp"):
        raise Skipped("vpp is not published although pp > 1")
    return row.required("vpp")


def megatron_stage_layers(layers: int, pieces: int) -> Sequence[int] | None:
    """Decoder layers of every stage where the framework's rule must have been used and is known.

    Even stages; else embedding and loss count as a layer each (Megatron-LM
    ``--account-for-embedding-in-pipeline-split``, ``--account-for-loss-in-pipeline-split``); else None, as even as
    possible.
    """
    if layers % pieces == 0 or (layers + 2) % pieces:
        return None
    sizes = [(layers + 2) // pieces] * pieces
    sizes[0] -= 1
    sizes[-1] -= 1
    return sizes


def build(
    row: Row,
    *,
    model: Model,
    family: str,
    profile: Profile,
    precision: str,
    seq_len: int | None = None,
    gbs: int | None = None,
    sp: bool | None = None,
    vpp: int | None = None,
    dp: int | None = None,
    zero: int = 1,
    cp_comm: str = "p2p",
    schedule: str | None = None,
    recompute: str | Sequence[str] = "none",
    stage_layers: Sequence[int] | None = None,
    job: dict[str, Any] | None = None,
) -> Configuration:
    """A configuration from a row's sizes and what its source adds.

    Parameters
    ----------
    family
        Cluster family of the catalogue.
    gbs
        Sequences per step; None: as published.
    sp
        Sequence parallelism; None: wherever there is tensor parallelism.
    job
        Further fields of the job.
    """
    tp, pp, mbs = row.size("tp"), row.size("pp"), row.required("mbs")
    dp = dp if dp is not None else data_parallel_size(row)
    count = num_microbatches(row, dp, mbs, gbs)
    vpp = vpp if vpp is not None else virtual_stages(row)
    layout = Layout(
        tp=tp,
        sp=tp > 1 if sp is None else sp,
        cp=row.size("cp"),
        cp_comm=cp_comm,
        ep=row.size("ep"),
        etp=row.size("etp") if row.text("etp") else 1,
        dp=dp,
        pp=pp,
        vpp=vpp,
        mbs=mbs,
        zero=zero,
        schedule=schedule or schedule_of(row, vpp),
        num_microbatches=count,
    )
    _check_layout(layout)
    instance = Instance(
        name=f"{row.text('model')} line {row.number}",
        model=model,
        cluster=catalog_cluster(family, row.required("n_devices")),
        job=Job.model_validate(
            {
                "gbs": count * mbs * dp,
                "seq_len": seq_len if seq_len is not None else row.required("seq"),
                "precision": precision,
                **(job or {}),
            }
        ),
        profile=profile,
    )
    return configure(instance, layout, stage_layers=stage_layers, recompute=recompute)


def _check_layout(layout: Layout) -> None:
    experts = layout.ep * layout.etp
    if layout.tp * layout.cp * layout.dp % experts:
        raise Skipped(f"ep·etp={experts} does not divide tp·cp·dp={layout.tp * layout.cp * layout.dp}")
