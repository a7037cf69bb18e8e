"""Names: what published texts call models, devices and precisions, in the catalogue's words."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from prism_cp.inputs.catalog import catalog_names
from prism_cp.inputs.reading import parse_yaml
from prism_cp.validation.rows import Skipped

# Text of the `system` column and the cluster family it means; the first that is found counts.
_SYSTEMS = (
    (r"gb300", "gb300"),
    (r"gb200", "gb200"),
    (r"b300", "b300"),
    (r"b200", "b200"),
    (r"h100.*hbm2e|h100.*96 ?gb", "h100-96gb"),
    (r"h100", "h100"),
    (r"h200", "h200"),
    (r"h800", "h800"),
    (r"h20\b", "h20"),
    (r"a100.*40 ?gb", "a100-40gb"),
    (r"a100.*pcie|pcie.*a100", ""),  # no NVLink: another machine
    (r"a100", "a100"),
    (r"mi355x", "mi355x"),
    (r"mi300x", "mi300x"),
    (r"910b1", "910b1"),
    (r"910b2", "910b2"),
    (r"910b3", "910b3"),
    (r"910b4", "910b4"),
    (r"910b|a2\b", "910b"),
    (r"910c|a3\b", "910c"),
)


def model_name(published: str) -> str:
    """Catalogue entry of a published model name.

    Raises
    ------
    Skipped
        No entry is known for the name.
    """
    plain = _plain(published)
    for name, patterns in _patterns().items():
        if any(re.fullmatch(pattern, plain) for pattern in patterns) and name in catalog_names("models"):
            return name
    for name in catalog_names("models"):
        if _plain(name) == plain:
            return name
    raise Skipped(f"model {published!r} is not in the catalogue")


def cluster_family(system: str) -> str:
    """Catalogue cluster family of the text of a `system` column.

    Raises
    ------
    Skipped
        No family is known for it.
    """
    text = system.lower()
    for pattern, family in _SYSTEMS:
        if re.search(pattern, text):
            if family in catalog_names("clusters"):
                return family
            break
    raise Skipped(f"system {system!r} is not in the catalogue")


def num_layers_in_name(published: str) -> int | None:
    """Number of layers that a name states, as in ``llama3-70b (12 layers)``."""
    match = re.search(r"\((\d+)[ -]layers?\)", published)
    return int(match[1]) if match else None


def _plain(text: str) -> str:
    bare = re.sub(r"\([^)]*\)|\[[^\]]*\]|\bproxy\b", "", text.lower())
    return re.sub(r"[^a-z0-9]", "", bare)


@cache
def _patterns() -> dict[str, list[str]]:
    path = resources.files(__package__).joinpath("model_names.yaml")
    mapping = parse_yaml(path.read_text("utf-8"), "model_names.yaml")
    assert isinstance(mapping, dict), "model_names.yaml is no mapping"
    return mapping
