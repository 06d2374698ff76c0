"""Which decoder to run: a name of the catalog, a file of one's own, or a tiny one for CPUs."""

import tomllib
from pathlib import Path
from typing import Final

from shmsim.config import DeviceConfig
from shmsim.inputs.catalog import load_model, model_names
from shmsim.nearest import instead
from shmsim.roofline import ModelGeometry

#: A step takes about a millisecond on one CPU core; heads can be shared by two ranks.
TINY: Final = ModelGeometry(
    layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=128, vocab=512, tied=True
)
_TINY_NAME: Final = "tiny"
_DEFAULT_NAMES: Final = {"cpu": _TINY_NAME, "cuda": "llama-3.2-1b"}


def model_of(config: DeviceConfig) -> str:
    """Name of the model that a device computes."""
    return config.model or _DEFAULT_NAMES[config.kind]


def geometry_of(name: str) -> ModelGeometry:
    """Geometry by name, or from a TOML file.

    Parameters
    ----------
    name
        ``"tiny"``, a name of `shmsim.inputs.catalog`, or a path that ends in ``.toml``: one value
        for each field of `ModelGeometry`.

    Raises
    ------
    ValueError
        If there is no such model, or the file does not say what is needed.
    """
    if name == _TINY_NAME:
        return TINY
    if name.endswith(".toml"):
        return _read(Path(name))
    try:
        return load_model(name)
    except ValueError:
        known = instead(name, [_TINY_NAME, *model_names()])
        raise ValueError(
            f"unknown model {name!r}{known}, or name a file that ends in .toml"
        ) from None


def _read(path: Path) -> ModelGeometry:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read the model {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    fields = ModelGeometry._fields
    unknown = sorted(set(table) - set(fields))
    missing = [f for f in fields if f not in table and f not in ModelGeometry._field_defaults]
    if unknown or missing:
        raise ValueError(
            f"{path}: a model has the keys {', '.join(fields)}; "
            + "; ".join(
                f"{what}: {', '.join(names)}"
                for what, names in (("unknown", unknown), ("missing", missing))
                if names
            )
        )
    for field, value in table.items():
        kind = bool if field in ("tied", "qk_norm") else int
        if type(value) is not kind or (kind is int and value < 1):
            wanted = "true or false" if kind is bool else "a whole number of at least 1"
            raise ValueError(f"{path}: {field} must be {wanted}, got {value!r}")
    geometry = ModelGeometry(**table)
    if geometry.heads % geometry.kv_heads or geometry.head_dim % 2:
        raise ValueError(
            f"{path}: heads must be a multiple of kv_heads and head_dim even, got "
            f"{geometry.heads}, {geometry.kv_heads} and {geometry.head_dim}"
        )
    return geometry


def check_shares(geometry: ModelGeometry, n_ranks: int) -> None:
    """Refuse a number of ranks that cannot share every layer evenly.

    Raises
    ------
    ValueError
        Names what does not divide.
    """
    kv_heads = geometry.kv_heads
    divides_kv = kv_heads % n_ranks == 0 or n_ranks % kv_heads == 0
    if geometry.heads % n_ranks or geometry.ffn % n_ranks or not divides_kv:
        raise ValueError(
            f"{n_ranks} ranks cannot share {geometry.heads} heads, {kv_heads} heads of keys and "
            f"values and {geometry.ffn} hidden units evenly; take a number of workers that divides "
            "them, or set engine.devices lower"
        )
