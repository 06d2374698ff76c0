"""Profiles in the format of Vidur (microsoft/vidur, ``data/profiling``): CSV, milliseconds.

What the columns mean was read from that repository and its data (MIT): one row for each shape, the
median of some repeats, of one layer on one GPU of a tensor-parallel group.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from shmsim.inputs.layers import DecodeAttention, Layers
from shmsim.inputs.rows import InputError, Loaded, Row, read_csv
from shmsim.inputs.samples import Samples
from shmsim.roofline import BYTES_PER_VALUE, ModelGeometry
from shmsim.steptime import TableStepTime
from shmsim.units import MS

_PER_LAYER: Final = (
    "input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm",
    "mlp_up_proj", "mlp_act", "mlp_down_proj", "add",
)  # fmt: skip
_EMBEDDING: Final = "time_stats.emb.median"
#: Parts of a step of the host, of which the last is what no timer saw.
_HOST_PARTS: Final = (
    "schedule_median", "sampler_e2e_median", "prepare_inputs_e2e_median",
    "process_model_outputs_median", "ray_comm_time_mean",
)  # fmt: skip


def read_vidur_table(
    mlp: Path,
    model: ModelGeometry,
    *,
    tensor_parallel: int = 1,
    max_sequences: int = 64,
    attention: Path | None = None,
    all_reduce: Samples | None = None,
    host: Samples | None = None,
) -> Loaded[TableStepTime]:
    """Build a step-time table.

    Parameters
    ----------
    mlp
        ``mlp.csv``: everything of a layer but attention, by tokens.
    model
        For the number of layers; its other sizes must be those of the profile.
    tensor_parallel
        Which rows of the profile count.
    max_sequences
        The table's largest decode batch; prompt tokens go as far as the profile does beside it.
    attention
        ``attention.csv``; without it attention costs nothing, and a note says so.
    all_reduce
        Time by bytes, from `read_vidur_all_reduce` or
        `shmsim.inputs.aiconfigurator.read_all_reduce`; two for each layer are added. Needed with
        more than one GPU.
    host
        Time by batch size, from `read_vidur_host`. Leave it out where the host is simulated:
        then it would count twice.

    Raises
    ------
    InputError
        If a row is wrong, the profile is of another model, or nothing matches.
    """
    columns = [f"time_stats.{part}.median" for part in _PER_LAYER]
    n_rows, pairs = 0, []
    for row in read_csv(mlp, [*columns, _EMBEDDING, *_SIZES, *_SHAPE]):
        n_rows += 1
        _check_model(row, model)
        time_ms = model.layers * sum(row.number(c) for c in columns) + row.number(_EMBEDDING)
        if row.whole("num_tensor_parallel_workers", 1) == tensor_parallel:
            pairs.append((row.whole("num_tokens", 1), MS * time_ms))
    skipped = {}
    if n_rows > len(pairs):
        skipped["another num_tensor_parallel_workers"] = n_rows - len(pairs)
    per_tokens = Samples.of(f"{mlp} with {tensor_parallel} tensor-parallel workers", pairs)
    notes = ["the output head is not in such profiles"]
    layers = Layers(per_tokens, per_step=_per_step(model, tensor_parallel, all_reduce, host))
    if attention is None:
        notes.append("without attention.csv attention costs nothing")
    else:
        n_read, left_out, decode, prefill = _attention(attention, model, tensor_parallel)
        n_rows += n_read
        skipped.update(left_out)
        layers = layers._replace(
            decode_attention=DecodeAttention(decode),
            prefill_attention=Samples.of(f"prefill in {attention}", prefill),
        )
    return Loaded(layers.table(max_sequences), n_rows, skipped, tuple(notes))


def read_vidur_all_reduce(path: Path, n_gpus: int) -> Loaded[Samples]:
    """Time of one all-reduce by bytes, from an ``all_reduce.csv``.

    Rows of the ranks of one collective count like repeats.

    Raises
    ------
    InputError
        If a row is wrong, or none is of so many GPUs.
    """
    n_rows, pairs = 0, []
    column = "time_stats.all_reduce.median"
    for row in read_csv(path, [column, "num_workers", "size", "collective"]):
        n_rows += 1
        if row.text("collective") != "all_reduce":
            raise row.error("collective", "must be all_reduce")
        size, time_ns = row.whole("size", 1), MS * row.number(column)
        if row.whole("num_workers", 1) == n_gpus:
            pairs.append((size, time_ns))
    found = Samples.of(f"all-reduce of {n_gpus} GPUs by bytes in {path}", pairs)
    left_out = n_rows - len(pairs)
    return Loaded(found, n_rows, {"another num_workers": left_out} if left_out else {})


def read_vidur_host(path: Path, model_name: str, tensor_parallel: int) -> Loaded[Samples]:
    """Host time of a step by batch size, from a ``cpu_overheads.csv``.

    The sum of scheduling, sampling, preparing inputs, processing outputs and ``ray_comm_time``,
    which in these files is no measurement but what no other timer saw.

    Raises
    ------
    InputError
        If a row is wrong, or none is of that model and degree; says which there are.
    """
    n_rows, pairs, there = 0, [], set()
    keys = ["model_name", "batch_size", "tensor_parallel_degree"]
    for row in read_csv(path, [*_HOST_PARTS, *keys]):
        n_rows += 1
        key = (row.text("model_name"), row.whole("tensor_parallel_degree", 1))
        there.add(key)
        time_ns = MS * sum(row.number(part) for part in _HOST_PARTS)
        size = row.whole("batch_size", 1)
        if key == (model_name, tensor_parallel):
            pairs.append((size, time_ns))
    if not pairs:
        known = ", ".join(f"{name} on {degree}" for name, degree in sorted(there))
        raise InputError(
            f"{path}: no row of {model_name} on {tensor_parallel} GPUs; there is {known or 'none'}"
        )
    left_out = n_rows - len(pairs)
    found = Samples.of(f"host time of {model_name} by batch size in {path}", pairs)
    return Loaded(found, n_rows, {"another model or degree": left_out} if left_out else {})


_SIZES: Final = {"n_head": "heads", "n_kv_head": "kv_heads", "n_embd": "hidden",
                 "n_expanded_embd": "ffn"}  # fmt: skip
_SHAPE: Final = ("num_tokens", "num_tensor_parallel_workers")


def _check_model(row: Row, model: ModelGeometry) -> None:
    for column, field in _SIZES.items():
        expected: int = getattr(model, field)
        if row.whole(column, 1) != expected:
            raise row.error(column, f"must be {expected}, the model's {field}")


def _per_step(
    model: ModelGeometry, tensor_parallel: int, all_reduce: Samples | None, host: Samples | None
) -> Callable[[int, int], float]:
    """Collectives and host work of a step, by its decode sequences and prompt tokens."""
    if tensor_parallel > 1 and all_reduce is None:
        raise InputError(
            f"{tensor_parallel} tensor-parallel workers need the time of an all-reduce; read one "
            "with read_vidur_all_reduce or aiconfigurator.read_all_reduce"
        )

    def per_step(n_decode: int, n_prefill: int) -> float:
        step_ns = 0.0
        if tensor_parallel > 1 and all_reduce is not None:
            message = max(n_decode + n_prefill, 1) * model.hidden * BYTES_PER_VALUE
            step_ns += 2 * model.layers * all_reduce.at(message)
        if host is not None:
            step_ns += host.at(max(n_decode, 1))
        return step_ns

    return per_step


def _attention(
    path: Path, model: ModelGeometry, tensor_parallel: int
) -> tuple[int, dict[str, int], list[tuple[int, int, float]], list[tuple[float, float]]]:
    """Rows read, rows left out by reason, decode shapes and prefill chunks."""
    decode: list[tuple[int, int, float]] = []
    prefill: list[tuple[float, float]] = []
    skipped: dict[str, int] = {}
    n_rows = 0
    times = ["time_stats.attn_decode.median", "time_stats.attn_prefill.median"]
    for row in read_csv(path, [*times, *_ATTENTION]):
        n_rows += 1
        if row.whole("num_tensor_parallel_workers", 1) != tensor_parallel:
            reason = "attention of another num_tensor_parallel_workers"
            skipped[reason] = skipped.get(reason, 0) + 1
            continue
        flag = row.text("is_prefill")
        if flag not in ("True", "False"):
            raise row.error("is_prefill", "must be True or False")
        saving = "time_stats.attn_kv_cache_save.median"
        saved_ns = MS * model.layers * (row.number(saving) if saving in row else 0.0)
        context = row.whole("kv_cache_size")
        if flag == "False":
            time_ns = MS * model.layers * row.number(times[0])
            decode.append((row.whole("batch_size", 1), context, time_ns + saved_ns))
        elif context or row.whole("batch_size", 1) > 1:
            reason = "prefill with context or of several chunks, which no axis of a table tells"
            skipped[reason] = skipped.get(reason, 0) + 1
        else:
            time_ns = MS * model.layers * row.number(times[1])
            prefill.append((row.whole("prefill_chunk_size", 1), time_ns + saved_ns))
    return n_rows, skipped, decode, prefill


_ATTENTION: Final = (
    "batch_size", "prefill_chunk_size", "kv_cache_size", "is_prefill",
    "num_tensor_parallel_workers",
)  # fmt: skip
