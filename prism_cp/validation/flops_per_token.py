"""FLOPs per token: the model's count against the one that published rates divide by."""

from __future__ import annotations

from fractions import Fraction

from prism_cp.formulas.flops import CORE, chain_item_forward_flops
from prism_cp.inputs.model import GatedDeltaNet, Mamba2, MixtureOfExperts, Model, SelfAttention
from prism_cp.validation.names import model_name
from prism_cp.validation.rows import Row, Skipped
from prism_cp.validation.sources.common import catalog_model

_TERA = 10**12


def predicted_tflop_per_token(row: Row) -> float:
    """Model TFLOP of one token in one training step.

    Full training costs three times the forward; LoRA leaves the weight gradients of frozen matrices out, so matrices
    cost twice the forward, and its published count has no attention scores.

    Raises
    ------
    Skipped
        Unknown model or task, or the published figure is no positive number.
    """
    seq_len, task = row.required("seq"), row.text("task")
    row.measurement("median")
    model = as_counted(catalog_model(model_name(row.text("model"))))
    matrices, scores = _forward(model, seq_len)
    if task == "full":
        flops = 3 * (matrices + scores)
    elif task == "lora":
        flops = 2 * matrices
    else:
        raise Skipped(f"task={task!r} is unknown")
    return float(flops / seq_len / _TERA)


def as_counted(model: Model) -> Model:
    """The model as NVIDIA's published counts see it: a sliding window counts as full attention, linear attention as the
    model's softmax attention, gpt-oss's experts without their gate, DeepSeek-V3 with its one multi-token-prediction
    layer."""
    kinds = []
    softmax = next((kind.attention for kind in model.kinds if isinstance(kind.attention, SelfAttention)), None)
    for kind in model.kinds:
        attention, feed_forward = kind.attention, kind.feed_forward
        if isinstance(attention, GatedDeltaNet | Mamba2) and softmax is not None:
            attention = softmax
        if isinstance(attention, SelfAttention) and attention.window is not None:
            attention = attention.model_copy(update={"window": None})
        if isinstance(feed_forward, MixtureOfExperts) and feed_forward.expert_bias:
            feed_forward = feed_forward.model_copy(update={"gated": False})
        kinds.append(kind.model_copy(update={"attention": attention, "feed_forward": feed_forward}))
    return model.model_copy(update={"kinds": tuple(kinds)})


def _forward(model: Model, seq_len: int) -> tuple[Fraction, Fraction]:
    """Forward FLOPs of one sequence: matrices, and attention scores."""
    matrices = scores = Fraction(0)
    for name in model.chain:
        for modules, amount in chain_item_forward_flops(name, model, seq_len).items():
            if modules == CORE:
                scores += amount
            else:
                matrices += amount
    logits = 2 * seq_len * model.hidden_size * model.vocab_size * (1 + model.num_mtp_layers)
    return matrices + logits, scores
