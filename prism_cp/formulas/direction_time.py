"""Directions: what the forward and the backward of a layer take, from the sums of their kernels and collectives."""

from __future__ import annotations

from sympy import Integer, Max, Min, Symbol

from prism_cp.formulas.collectives import rational
from prism_cp.formulas.program import Template
from prism_cp.formulas.state_time import jitter_factor
from prism_cp.inputs.instance import Instance


def direction_templates(instance: Instance) -> tuple[Template, Template, Template]:
    """What a layer's direction takes, from its kernel sums.

    The host must launch the kernels: no direction is shorter than `floor`, in which it also waits for what it must know
    of the token exchange (`sync`: how long the devices idle after those waits); and recomputation of a whole layer
    launches a forward more. Fully sharded parameters are gathered before the forward and before the backward, gradients
    that are kept sharded are reduced in every micro-batch (in the last one too, which the step's tail accounts for);
    what the compute does not hide is exposed, and with full sharding one hop per further node always is (PyTorch FSDP;
    the latency from published runs on 128 to 512 H100). Everything carries the jitter factor.
    """
    profile = instance.profile
    names = "kernels other floor sync resync launches hop zero_2 zero_3 gather reduce micro_batches"
    kernels, other, floor, sync, resync, launches, hop, zero_2, zero_3, gather, reduce, count = symbols = tuple(
        Symbol(name) for name in names.split()
    )
    jitter = jitter_factor(instance)
    gather_window = rational(profile.gradient_overlap_window) if profile.overlap_param_gather else Integer(0)
    reduce_window = rational(profile.gradient_overlap_window) if profile.overlap_grad_reduce else Integer(0)

    launched = Max(kernels + sync, floor, evaluate=False)
    exposed = Max(0, gather - gather_window * launched, evaluate=False)
    forward = jitter * (launched + zero_3 * (exposed + hop))
    # `kernels`: input gradients with recomputation; `other`: weight gradients, which run in the same direction
    worked = Max(kernels + sync * resync, floor * launches - other, evaluate=False)
    both = worked + other
    backward_window = gather_window if profile.prefetch_backward else Integer(0)
    gathered = zero_3 * (Max(0, gather - backward_window * both, evaluate=False) + hop)
    reduced = zero_2 * (1 - 1 / count) * Max(0, reduce - reduce_window * both, evaluate=False)
    input_grad = jitter * (worked + gathered + reduced)
    forward_arguments = (kernels, floor, sync, hop, zero_3, gather)
    backward_arguments = (kernels, other, floor, sync, resync, launches, hop, zero_2, zero_3, gather, reduce, count)
    assert set(backward_arguments) == set(symbols)
    return (
        Template("forward", forward_arguments, (forward,)),
        Template("input_grad", backward_arguments, (input_grad,)),
        Template("scaled", (kernels,), (jitter * kernels,)),
    )


def gather_template(instance: Instance) -> Template:
    """Exposed part of the gather of a layer's parameters, once a step, under ZeRO-1 and ZeRO-2.

    With overlap it runs behind the layer's first forward; interleaving runs the forwards of one chunk for a whole group
    of micro-batches before the next chunk is needed (Megatron-LM ``--overlap-param-gather``).
    """
    gather, forward, sharded, pp, vpp = symbols = tuple(
        Symbol(name) for name in ("gather", "forward", "sharded", "pp", "vpp")
    )
    exposed = gather
    if instance.profile.overlap_param_gather:
        window = rational(instance.profile.gradient_overlap_window)
        forwards = 1 + (pp - 1) * Min(1, vpp - 1, evaluate=False)
        exposed = Max(0, gather - window * forwards * forward, evaluate=False)
    return Template("exposed_gather", symbols, (jitter_factor(instance) * sharded * exposed,))
