"""Parameters of a `Model` by part, from the package's formulas, in the form that classes are counted in."""

from __future__ import annotations

from sympy import Integer

from prism_cp.formulas.parameters import embedding_weights, head_weights
from prism_cp.formulas.weights import attention_weights, feed_forward_weights, layer_weights
from prism_cp.inputs.catalog import catalog_entry
from prism_cp.inputs.model import Model
from prism_cp.inputs.parts import build_model


def catalog_model(name: str) -> Model:
    """A model of the catalogue."""
    return build_model({"name": name, **catalog_entry("models", name)})


def formula_parameters(model: Model) -> dict[tuple[int | str, str], int]:
    """Elements by (layer number, part) and (``ends``, ``embedding`` or ``head``); parts without any are left out."""
    found: dict[tuple[int | str, str], int] = {}
    kinds = {}
    for kind in model.kinds:
        attention = sum(w.count for w in attention_weights(kind.attention, model)) if kind.attention else 0
        feed_forward = sum(w.count for w in feed_forward_weights(kind.feed_forward, model)) if kind.feed_forward else 0
        whole = sum(w.count for w in layer_weights(kind, model))
        kinds[kind.name] = {
            "attention": int(attention),
            "feed_forward": int(feed_forward),
            "norms": int(whole - attention - feed_forward),
        }
    names = [group.kind for group in model.layers for _ in range(group.count)]
    for layer, name in enumerate(names):
        found.update({(layer, part): count for part, count in kinds[name].items() if count})
    vocabulary = Integer(model.vocab_size)
    found["ends", "embedding"] = int(sum(w.count for w in embedding_weights(model, vocabulary)))
    copies = Integer(not model.tied_embeddings)
    found["ends", "head"] = int(sum(w.count for w in head_weights(model, vocabulary, copies)))
    return found
