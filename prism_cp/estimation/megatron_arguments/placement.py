"""Layout, layers of every stage and recomputation of every layer, from arguments (megatron/training/arguments.py)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from prism_cp.estimation.megatron_arguments.model import num_layers, removed_layers
from prism_cp.estimation.megatron_arguments.reading import Arguments, UnsupportedArgument
from prism_cp.estimation.megatron_arguments.stage_text import expanded
from prism_cp.estimation.megatron_arguments.swapping import swapped_recomputation
from prism_cp.formulas.strategies import MODULES
from prism_cp.inputs.layout import Layout
from prism_cp.inputs.model import Model

CP_ALGORITHMS = {
    "ulysses_cp_algo": "a2a",
    "megatron_cp_algo": "p2p",
    "mamba_cp_algo": "a2a",
    "p2p": "p2p",
    "a2a": "a2a",
    "allgather": "all_gather",
    "all_gather": "all_gather",
}

FSDP_STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")  # ZeRO 0, 1, 2, 3


def layout_from_arguments(arguments: Arguments, num_devices: int) -> Layout:
    """The parallel layout on a number of devices."""
    tp = arguments.size("tensor-model-parallel-size", 1)
    pp = arguments.size("pipeline-model-parallel-size", 1)
    cp = arguments.size("context-parallel-size", 1)
    if num_devices % (tp * pp * cp):
        raise UnsupportedArgument("tensor-model-parallel-size", str(tp), f"tp x pp x cp does not divide {num_devices}")
    dp = num_devices // (tp * pp * cp)
    mbs = arguments.size("micro-batch-size", 1)
    gbs = arguments.size("global-batch-size", mbs * dp)
    if gbs % (mbs * dp):
        raise UnsupportedArgument("global-batch-size", str(gbs), f"is no multiple of {mbs} x {dp} sequences")
    vpp = virtual_stages(arguments, pp)
    given = arguments.text("context-parallel-algo") or arguments.text("cp-comm-type", "p2p")
    algorithm = given if cp > 1 else "p2p"
    if algorithm not in CP_ALGORITHMS:
        raise UnsupportedArgument("context-parallel-algo", algorithm, "is not modelled", ", ".join(CP_ALGORITHMS))
    return Layout(
        tp=tp,
        sp=arguments.has("sequence-parallel") and tp > 1,
        cp=cp,
        cp_comm=CP_ALGORITHMS[algorithm],
        ep=arguments.size("expert-model-parallel-size", 1),
        etp=arguments.size("expert-tensor-parallel-size", tp) if arguments.has("num-experts") else 1,
        dp=dp,
        pp=pp,
        vpp=vpp,
        mbs=mbs,
        zero=zero_stage(arguments),
        schedule=_schedule(arguments, pp, vpp),
        num_microbatches=gbs // (mbs * dp),
    )


def zero_stage(arguments: Arguments) -> int:
    """What is sharded over data parallelism: Megatron-FSDP's strategies are the stages of ZeRO in order."""
    if not any(arguments.has(flag) for flag in ("use-megatron-fsdp", "use-custom-fsdp")):
        return int(arguments.has("use-distributed-optimizer"))
    arguments.one_of("outer-dp-sharding-strategy", "no_shard", ("no_shard",))
    stage = FSDP_STRATEGIES.index(arguments.one_of("data-parallel-sharding-strategy", "no_shard", FSDP_STRATEGIES))
    if arguments.size("num-distributed-optimizer-instances", 1) > 1:
        given = arguments.text("num-distributed-optimizer-instances")
        reason = "with Megatron-FSDP: groups inside which alone weights are sharded are not modelled"
        raise UnsupportedArgument("num-distributed-optimizer-instances", given, reason, "1")
    return stage


def _schedule(arguments: Arguments, pp: int, vpp: int) -> str:
    if pp > 1 and _is_dualpipev(arguments):
        return "dualpipev"
    return "interleaved" if pp > 1 and vpp > 1 else "1f1b"


def _is_dualpipev(arguments: Arguments) -> bool:
    """MindSpeed's ``--schedules-method``: rank r holds pieces r and 2 pp - 1 - r, with equally many layers each."""
    if not arguments.has("schedules-method"):
        return False
    arguments.one_of("schedules-method", "", ("dualpipev",))
    for flag in ("num-layer-list", "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"):
        if arguments.has(flag):
            raise UnsupportedArgument(flag, arguments.text(flag), "is not modelled with --schedules-method dualpipev")
    return True


def virtual_stages(arguments: Arguments, pp: int) -> int:
    """Chunks of every rank."""
    if pp > 1 and _is_dualpipev(arguments):
        return 2
    if arguments.has("pipeline-model-parallel-layout"):
        pieces = len(_layout_pieces(arguments))
        if pieces % pp:
            text = arguments.text("pipeline-model-parallel-layout")
            raise UnsupportedArgument("pipeline-model-parallel-layout", text, f"{pieces} stages on {pp} ranks")
        return pieces // pp
    if "|" in arguments.text("hybrid-layer-pattern"):
        return (arguments.text("hybrid-layer-pattern").count("|") + 1) // pp
    if arguments.has("num-virtual-stages-per-pipeline-rank"):
        return arguments.size("num-virtual-stages-per-pipeline-rank")
    if not arguments.has("num-layers-per-virtual-pipeline-stage") or pp == 1:
        return 1
    each = arguments.size("num-layers-per-virtual-pipeline-stage")
    layers = _counted_layers(arguments)
    if layers % (pp * each):
        problem = f"{layers} layers are no multiple of {pp} x {each}"
        raise UnsupportedArgument("num-layers-per-virtual-pipeline-stage", str(each), problem)
    return layers // (pp * each)


def _counted_layers(arguments: Arguments) -> int:
    """Layers that are dealt to the stages: an end counts as one where the arguments say so."""
    ends = ("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split")
    return num_layers(arguments) + sum(arguments.has(flag) for flag in ends)


def stage_layers(arguments: Arguments, pp: int, vpp: int) -> list[int]:
    """Layers of every piece in forward order, removed ones not counted."""
    sizes = _sizes_with_removed(arguments, pp, vpp)
    if sum(sizes) != num_layers(arguments):
        problem = f"the stages {sizes} hold {sum(sizes)} of {num_layers(arguments)} layers"
        raise UnsupportedArgument("num-layers", str(num_layers(arguments)), problem)
    removed, start = removed_layers(arguments), 0
    kept = []
    for size in sizes:
        kept.append(sum(layer not in removed for layer in range(start, start + size)))
        start += size
    return kept


def _sizes_with_removed(arguments: Arguments, pp: int, vpp: int) -> list[int]:
    layers, pieces = num_layers(arguments), pp * vpp
    if arguments.has("pipeline-model-parallel-layout"):
        return [piece.count("t") for piece in _layout_pieces(arguments)]
    if "|" in arguments.text("hybrid-layer-pattern"):
        return [len(part) for part in arguments.text("hybrid-layer-pattern").split("|")]
    if arguments.has("num-layer-list"):
        sizes = arguments.integers("num-layer-list")
        if len(sizes) == pieces:
            return sizes
        if len(sizes) == pp:
            return _dealt(sizes, pp, vpp)
        raise UnsupportedArgument("num-layer-list", arguments.text("num-layer-list"), f"{pp} ranks", "one size a rank")
    first = arguments.integer("decoder-first-pipeline-num-layers", 0)
    last = arguments.integer("decoder-last-pipeline-num-layers", 0)
    if first or last:
        middle = pp - bool(first) - bool(last)
        rest = layers - first - last
        if middle <= 0 or rest % middle:
            raise UnsupportedArgument("num-layers", str(layers), f"{rest} layers on {middle} other stages")
        sizes = ([first] if first else []) + [rest // middle] * middle + ([last] if last else [])
        return _dealt(sizes, pp, vpp)
    counted = _counted_layers(arguments)
    if counted % pieces:
        raise UnsupportedArgument("num-layers", str(layers), f"{counted} layers do not divide into {pieces} stages")
    sizes = [counted // pieces] * pieces
    sizes[0] -= arguments.has("account-for-embedding-in-pipeline-split")
    sizes[-1] -= arguments.has("account-for-loss-in-pipeline-split")
    return sizes


def _dealt(sizes: Sequence[int], pp: int, vpp: int) -> list[int]:
    """Layers of every rank, split over its chunks."""
    for size in sizes:
        if size % vpp:
            raise UnsupportedArgument("num-layer-list", str(list(sizes)), f"{size} layers on {vpp} chunks")
    return [size // vpp for _ in range(vpp) for size in sizes]


def _layout_pieces(arguments: Arguments) -> list[str]:
    """Stages of ``--pipeline-model-parallel-layout``, one letter an item: E embedding, t layer, m MTP, L loss."""
    text = arguments.text("pipeline-model-parallel-layout")
    try:
        plain = expanded(text)
    except ValueError as error:
        raise UnsupportedArgument("pipeline-model-parallel-layout", text, str(error)) from error
    if plain.count("(") == plain.count(")"):
        plain = plain.replace("(", "").replace(")", "")
    if not re.fullmatch(r"E[t|]*m*L", plain):
        problem = "is not modelled"
        accepted = "E first, L last, m on the last stage, t between"
        raise UnsupportedArgument("pipeline-model-parallel-layout", text, problem, accepted)
    depths = arguments.integer("mtp-num-layers", 0)
    if plain.count("m") != depths:
        problem = f"places {plain.count('m')} of {depths} multi-token-prediction layers"
        raise UnsupportedArgument(
            "pipeline-model-parallel-layout", text, problem, "m once for each of --mtp-num-layers"
        )
    return plain.split("|")


def recomputation(arguments: Arguments, model: Model, pieces: Sequence[int], pp: int) -> tuple[list[str], int]:
    """Strategy of every chain item, and how many layers full recomputation checkpoints together."""
    chain, layers = model.chain, model.num_layers
    texts, chunk = ["none"] * len(chain), 1
    if arguments.has("swap-attention"):
        texts = swapped_recomputation(arguments, pieces, pp, len(chain))
    granularity = arguments.text("recompute-granularity")
    if arguments.has("recompute-activations"):
        granularity = granularity or "selective"
    if granularity == "selective":
        texts = [_modules(arguments)] * len(chain)
    elif granularity == "full":
        method = arguments.one_of("recompute-method", "uniform", ("uniform", "block"))
        count = arguments.size("recompute-num-layers", 1)
        if method == "uniform":
            texts, chunk = ["full"] * len(chain), count
        else:
            texts = _block(pieces, len(chain), count, arguments.has("enable-recompute-layers-per-pp-rank"), pp)
    elif granularity:
        raise UnsupportedArgument("recompute-granularity", granularity, "is not modelled", "full, selective")
    extra = []
    if arguments.has("recompute-activation-function"):
        extra.append(("activation_func", arguments.integer("recompute-activation-function-num-layers", 0)))
    if arguments.has("recompute-norm"):
        extra.append(("layernorm", arguments.integer("recompute-norm-num-layers", 0)))
    extra += [
        (module, 0)
        for flag, module in (("moe-layer-recompute", "moe"), ("recompute-mla-up-proj", "mla_up_proj"))
        if arguments.has(flag)
    ]
    for module, count in extra:
        chosen = _block(pieces, len(chain), count or layers, False, pp, module)
        texts = [_joined(text, more) for text, more in zip(texts, chosen, strict=True)]
    return texts, chunk


def _joined(text: str, more: str) -> str:
    if text == "full" or more == "none":
        return text
    return more if text == "none" else f"{text}+{more}"


def _block(pieces: Sequence[int], length: int, count: int, over_rank: bool, pp: int, name: str = "full") -> list[str]:
    """The first `count` layers of every piece (or of every rank over its pieces) do it, the others do not."""
    texts: list[str] = []
    left = [count] * (pp if over_rank else len(pieces))
    for piece, size in enumerate(pieces):
        owner = piece % pp if over_rank else piece
        done = min(size, left[owner])
        left[owner] -= done
        texts += [name] * done + ["none"] * (size - done)
    return texts + [texts[-1] if name != "full" else "none"] * (length - len(texts))


def _modules(arguments: Arguments) -> str:
    text = re.sub(r"[\[\]\"',]", " ", arguments.text("recompute-modules", "core_attn"))
    modules = text.split()
    for module in modules:
        if module not in MODULES:
            raise UnsupportedArgument("recompute-modules", module, "is not modelled", ", ".join(MODULES))
    return "+".join(modules)
