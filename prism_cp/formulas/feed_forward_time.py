"""Feed-forward blocks: dense, or routed and shared experts with their token exchange, as parts of a layer."""

from __future__ import annotations

from sympy import Expr, Integer

from prism_cp.formulas import symbols as s
from prism_cp.formulas.collectives import deduplicated_exchange_template, rational
from prism_cp.formulas.expert_load import expert_load
from prism_cp.formulas.flops import DENSE, MOE, SHARED, feed_forward_linears
from prism_cp.formulas.layer_parts import ELEMENT_BYTES, LinearTimes, Part, PartBuilder, Times
from prism_cp.inputs.model import DenseFeedForward, FeedForward, MixtureOfExperts

_MOE_ACTIVATION = frozenset({"moe", "moe_act"})
_ROUTER_BYTES = 12  # per token and expert: fp32 score written, read by top-k, probability written


def feed_forward_parts(feed_forward: FeedForward, builder: PartBuilder) -> list[Part]:
    """Parts of one feed-forward block, norms left out."""
    if isinstance(feed_forward, MixtureOfExperts):
        return _expert_parts(feed_forward, builder)
    return _dense_parts(feed_forward, builder)


def _dense_parts(feed_forward: DenseFeedForward, builder: PartBuilder) -> list[Part]:
    fc1, fc2 = (builder.linear(linear) for linear in feed_forward_linears(feed_forward, builder.model.hidden_size))
    width = Integer(feed_forward.intermediate_size) / s.tp
    times = fc1.times + builder.activation(builder.tokens, width, feed_forward.gated)
    if feed_forward.bias:
        times += builder.eager_gradients(width * (2 if feed_forward.gated else 1) + builder.model.hidden_size)
    return [
        Part(times + builder.tensor_parallel_exchange(fc1, fc2), DENSE),
        Part(fc2.times, DENSE, final=True),
        Part(builder.residual(), final=True),
    ]


def _expert_parts(feed_forward: MixtureOfExperts, builder: PartBuilder) -> list[Part]:
    """Router, permutation, exchange, grouped products, and the shared experts.

    Every expert-parallel rank works on ``k * (tokens of a rank) * etp`` token copies. The shared experts are a dense
    block over tensor parallelism. Sources: Megatron-LM ``core/transformer/moe``; grouped products and permutation
    rates as in MooreThreads/SimuMax.

    Where the framework overlaps expert communication (Megatron-LM ``--overlap-moe-expert-parallel-comm``) and the
    schedule pairs micro-batches, a share of the exchange is hidden, fitted on NVIDIA-NeMo/Megatron-Bridge performance
    tables. It is taken off every forward and backward, those of warm-up and cool-down too, which run alone: with few
    micro-batches per pipeline rank the time is too short by what these would still expose.
    """
    linears = {linear.name: linear for linear in feed_forward_linears(feed_forward, builder.model.hidden_size)}
    hidden, width = builder.model.hidden_size, feed_forward.intermediate_size
    load = expert_load(feed_forward.expert_load, builder.instance.job)
    sent = load * feed_forward.top_k * builder.split_tokens  # token copies a rank sends and receives
    rows = sent * s.etp
    local_experts = Integer(feed_forward.num_experts) / s.ep
    up, down = linears["expert_fc1"], linears["expert_fc2"]

    def experts(k: Expr, n: Expr) -> LinearTimes:
        return builder.product(rows / local_experts, k, n, local_experts, template=builder.templates.grouped)

    fc1 = experts(Integer(up.in_features), Integer(up.out_features) / s.etp)
    fc2 = experts(Integer(down.in_features) / s.etp, Integer(down.out_features))
    router = builder.linear(linears["router"], plain=True).times
    scores = builder.pointwise(_ROUTER_BYTES * feed_forward.num_experts * builder.split_tokens)
    permutation = 2 * builder.pointwise(2 * ELEMENT_BYTES * hidden * sent, gather=True)  # permute and unpermute
    exchange = _exchange(feed_forward, builder, load)
    if builder.profile.expert_overlap:
        exchange = (1 - s.pairs_microbatches * rational(builder.profile.expert_overlap_share)) * exchange
    parts = [
        Part(router + Times(scores, scores), MOE),
        Part(Times(permutation + exchange, permutation + exchange), MOE),
        Part(fc1.times + fc2.times, MOE),
        Part(builder.activation(rows, Integer(width) / s.etp, feed_forward.gated), _MOE_ACTIVATION),
        Part(builder.residual()),
    ]
    if feed_forward.shared_intermediate_size:
        shared1, shared2 = builder.linear(linears["shared_fc1"]), builder.linear(linears["shared_fc2"])
        shared_width = Integer(feed_forward.shared_intermediate_size) / s.tp
        shared = shared1.times + shared2.times
        shared += builder.activation(builder.tokens, shared_width, feed_forward.gated)
        if feed_forward.shared_gate:
            gate = builder.pointwise(2 * builder.hidden_bytes)
            shared += Times(gate, 2 * gate)
        parts.append(Part(shared + builder.tensor_parallel_exchange(shared1, shared2), SHARED))
    return parts


def _exchange(feed_forward: MixtureOfExperts, builder: PartBuilder, load: Expr) -> Expr:
    """Dispatch and combine of one direction, expert-tensor collectives included, all exposed.

    ``alltoall`` sends every copy; ``allgather`` gathers all tokens of the expert-parallel group and reduce-scatters
    the results; ``deepep`` and ``hybridep`` send a token once per destination rank and node (all peers at once: one hop
    of latency), never more nodes than the router's group limit allows.
    """
    sent = load * feed_forward.top_k * builder.split_tokens
    group, etp_group = builder.groups["ep"], builder.groups["etp"]
    hidden_bytes = ELEMENT_BYTES * builder.model.hidden_size
    dispatcher = builder.profile.dispatcher
    etp = 2 * etp_group.ring_s(sent * s.etp * hidden_bytes)
    if dispatcher == "alltoall":
        return 2 * group.exchange_s(sent * hidden_bytes) + etp
    if dispatcher == "allgather":
        return 2 * group.ring_s(builder.split_tokens * hidden_bytes * s.ep) + etp
    limit = feed_forward.topk_groups if feed_forward.num_groups > 1 else None
    links = builder.instance.cluster.links
    template = deduplicated_exchange_template(links, feed_forward.num_experts, feed_forward.top_k, limit)
    rate = builder.program.call(template, *group.members)
    deduplicated = load * builder.split_tokens * hidden_bytes * rate
    return 2 * (group.neighbour_s(Integer(0)) + deduplicated) + etp
