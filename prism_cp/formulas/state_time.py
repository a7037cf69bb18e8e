"""Once-per-step work on parameters: optimizer update, parameter gather, gradient reduction, gradient norm."""

from __future__ import annotations

from sympy import Expr, Integer, Max, Min, Symbol

from prism_cp.formulas import symbols as s
from prism_cp.formulas.collectives import CALL_LATENCY_S, Group, doublings, rational
from prism_cp.formulas.layer_parts import ELEMENT_BYTES
from prism_cp.formulas.operators import hbm_rate
from prism_cp.formulas.program import Template
from prism_cp.inputs.cluster import Cluster
from prism_cp.inputs.instance import Instance

# Megatron-LM's distributed-data-parallel bucket grows with the group: max(40e6, 1e6 * group) parameters.
_BUCKET_PARAMETERS_PER_RANK = 10**6

# Adam in fp32 one operation at a time, bytes a parameter: two moments decayed (8 each) and added to (12 each), root
# (8), epsilon (8), bias correction (8), weight decay (8), the step itself (16).
_UNFUSED_ADAM_BYTES = 88


def bucket_parameters(instance: Instance) -> Expr:
    """Parameters of one gradient bucket (Megatron-LM ``distributed_data_parallel_config.py``)."""
    return Max(instance.profile.bucket_parameters, _BUCKET_PARAMETERS_PER_RANK * s.shard, evaluate=False)


def state_template(instance: Instance, groups: dict[str, Group]) -> tuple[Template, tuple[Symbol, ...]]:
    """Once-per-step work of one layer or end, in seconds: optimizer update, whole gather, whole reduction.

    Arguments: dense and expert parameters of one device, then the symbols returned beside the template.

    Optimizer: every pass over gradients and states at HBM rate (MooreThreads/SimuMax ``_compute_optim_time``): zeroing,
    norm and scaling of the gradient buffer; norm, clipping, Adam with its states read and written, and the 16-bit copy
    on the shard. Reduction: all-reduce without sharding, reduce-scatter with it (Rajbhandari et al., arXiv 1910.02054);
    one call per bucket.
    """
    profile = instance.profile
    dense, expert = Symbol("dense"), Symbol("expert")
    update: Expr = Integer(0)
    gather: Expr = Integer(0)
    reduction: Expr = Integer(0)
    for parameters, ranks, name in ((dense, s.shard, "dp_cp"), (expert, s.expert_shard, "edp")):
        group = groups[name]
        states_split = 1 + s.zero_1 * (ranks - 1)
        gradients_split = 1 + s.zero_2 * (ranks - 1)
        buffer = profile.gradient_bytes * (2 + 2 * group.exists)
        adam = 4 + 2 * profile.optimizer_state_bytes if profile.fused_optimizer else _UNFUSED_ADAM_BYTES
        states = 4 + 8 + adam + 6
        update += parameters * (buffer / gradients_split + states / states_split)
        calls = parameters / bucket_parameters(instance)
        gather += _collective(group, parameters * ELEMENT_BYTES, Integer(1), calls)
        reduction += _collective(group, parameters * profile.gradient_reduce_bytes, 2 - s.zero_1, calls)
    expressions = (update / hbm_rate(instance.cluster.device), gather, reduction)
    free = set().union(*(expression.free_symbols for expression in expressions)) - {dense, expert}
    layout = tuple(sorted(free, key=lambda symbol: symbol.name))
    return Template("state", (dense, expert, *layout), expressions), layout


def _collective(group: Group, bytes_: Expr, passes: Expr, calls: Expr) -> Expr:
    """Ring collective in `calls` pieces: latency per piece, bandwidth for all."""
    latency = calls * (group.exists * CALL_LATENCY_S + passes * group.hop_latency_s)
    return latency + passes * bytes_ * group.ring_s_per_byte


def bucket_times(instance: Instance, group: Group, largest: Expr) -> tuple[Expr, Expr]:
    """Gather of the first bucket and reduction of the last one: what overlap cannot hide.

    `largest` bounds the bucket by the parameters there are on a device.
    """
    parameters = Min(bucket_parameters(instance), largest, evaluate=False)
    gather = group.ring_s(parameters * ELEMENT_BYTES)
    reduction = group.ring_s(parameters * instance.profile.gradient_reduce_bytes, passes=2 - s.zero_1)
    return gather, reduction


def norm_time(cluster: Cluster) -> Expr:
    """All-reduce of one number over all devices, as a tree: latency up and down, every level's doublings."""
    latency, inside = CALL_LATENCY_S, 1
    for level in cluster.links:
        size = min(level.domain_size, cluster.num_devices)
        ranks = max(1, -(-size // inside))
        latency += 2 * rational(level.latency_s) * doublings(ranks)
        inside = max(inside, size)
    return latency if cluster.num_devices > 1 else Integer(0)


def jitter_factor(instance: Instance) -> Expr:
    """Slowdown that grows with every doubling of the number of innermost domains; 1 inside one domain."""
    cluster = instance.cluster
    nodes = max(1, -(-cluster.num_devices // cluster.links[0].domain_size))
    return 1 + rational(instance.profile.jitter_per_doubling) * doublings(nodes)
