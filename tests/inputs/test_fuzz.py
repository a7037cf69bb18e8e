"""Whatever the input is, only errors a user can act on come out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prism_cp.errors import PrismError
from prism_cp.inputs.catalog import catalog_entry, catalog_names
from prism_cp.inputs.huggingface import model_from_huggingface, supported_families
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import LayoutSpace
from prism_cp.inputs.load import instance_from_mapping, load_instance
from prism_cp.inputs.model import Model

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=4)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)
BASE: dict[str, Any] = {"model": "mixtral-8x7b", "cluster": "8xh100", "job": {"gbs": 8, "seq_len": 64}}
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def refusal(call: Any, kind: type) -> str | None:
    """What the call says when it raises a `PrismError`; None when it returns a `kind`. Anything else fails the test."""
    try:
        result = call()
    except PrismError as error:
        return str(error)
    assert isinstance(result, kind)
    return None


@quick
@given(
    content=st.binary(max_size=200)
    | st.text(max_size=200).map(str.encode)
    | st.text("{}[]&*!:-? \n'\"a1", max_size=60).map(str.encode)
)
def test_arbitrary_bytes(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "any.yaml"
    path.write_bytes(content)
    with pytest.raises(PrismError):
        load_instance(path)


@quick
@given(mapping=st.dictionaries(st.sampled_from(sorted(Instance.model_fields)), VALUES))
def test_arbitrary_parts(mapping: dict[str, Any]) -> None:
    assert refusal(lambda: instance_from_mapping({**BASE, **mapping}), Instance) != ""


@quick
@given(layout=st.dictionaries(st.sampled_from(sorted(LayoutSpace.model_fields)), VALUES | st.integers(-2, 9)))
def test_arbitrary_layouts(layout: dict[str, Any]) -> None:
    assert refusal(lambda: instance_from_mapping({**BASE, "layout": layout}), Instance) != ""


@quick
@given(
    path=st.lists(
        st.sampled_from(
            [
                "layout",
                "job",
                "cluster",
                "model",
                "profile",
                "huggingface",
                "device",
                "links",
                "0",
                "tp",
                "gbs",
                "name",
                "like",
            ]
        ),
        max_size=4,
    ),
    value=st.text(max_size=10),
)
def test_arbitrary_overrides(path: list[str], value: str) -> None:
    assert refusal(lambda: instance_from_mapping(BASE, [".".join(path) + "=" + value]), Instance) != ""


@quick
@given(text=st.text(max_size=30))
def test_arbitrary_override_text(text: str) -> None:
    assert refusal(lambda: instance_from_mapping(BASE, [text]), Instance) != ""


@quick
@given(name=st.sampled_from(catalog_names("models")), data=st.data())
def test_huggingface_with_one_value_replaced(name: str, data: st.DataObject) -> None:
    config = catalog_entry("models", name).get("huggingface")
    if config is None:
        config = {"model_type": data.draw(st.sampled_from(supported_families()))}
    key = data.draw(st.sampled_from(sorted(config)))
    value = data.draw(VALUES | st.integers(-1, 300))
    assert refusal(lambda: model_from_huggingface({**config, key: value}, name), Model) != ""
