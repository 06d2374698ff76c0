"""Model geometries and GPU datasheets that come with the package, each with its source."""

import tomllib
from importlib.resources import files
from typing import Any

from shmsim.inputs.rows import InputError
from shmsim.nearest import instead
from shmsim.provenance import Source
from shmsim.roofline import GpuSheet, ModelGeometry


def model_names() -> list[str]:
    """Models that are known."""
    return list(_read("models"))


def gpu_names() -> list[str]:
    """GPUs that are known."""
    return list(_read("gpus"))


def load_model(name: str) -> ModelGeometry:
    """Geometry of a model.

    Raises
    ------
    InputError
        If it is not known; names the nearest.
    """
    table = _entry("models", name)
    return ModelGeometry(*(table[field] for field in ModelGeometry._fields))


def load_gpu(name: str) -> GpuSheet:
    """Datasheet of a GPU.

    Raises
    ------
    InputError
        If it is not known; names the nearest.
    """
    table = _entry("gpus", name)
    return GpuSheet(*(table[field] for field in GpuSheet._fields))


def source_of(kind: str, name: str) -> Source:
    """Where an entry comes from; ``kind`` is ``"models"`` or ``"gpus"``."""
    table = _entry(kind, name)
    return Source.of(table["mark"], table["source"])


def _entry(kind: str, name: str) -> dict[str, Any]:
    known = _read(kind)
    if name not in known:
        raise InputError(f"unknown {kind.removesuffix('s')} {name!r}{instead(name, known)}")
    return known[name]


def _read(kind: str) -> dict[str, dict[str, Any]]:
    path = files("shmsim") / "data" / f"{kind}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))
