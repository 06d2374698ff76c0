"""Tables of NVIDIA AIConfigurator (Apache-2.0), as CSV, milliseconds.

Its own files are Parquet; ``pyarrow.csv.write_csv(pyarrow.parquet.read_table(f), g)`` converts one.
"""

from pathlib import Path

from shmsim.inputs.rows import InputError, Loaded, read_csv
from shmsim.inputs.samples import Samples
from shmsim.roofline import BYTES_PER_VALUE
from shmsim.steptime import TableStepTime
from shmsim.units import MS


def read_all_reduce(path: Path, n_gpus: int, backend: str = "vllm_graph") -> Loaded[Samples]:
    """Time of one all-reduce by bytes, from a table of custom all-reduces.

    Parameters
    ----------
    path
        CSV with the columns ``op_name``, ``num_gpus``, ``message_size`` (values, not bytes: the
        program that wrote it looks it up by tokens times hidden size), ``latency``, ``backend``.
    n_gpus
        Which rows count.
    backend
        ``"vllm_graph"`` (inside a CUDA graph) or ``"vllm_eager"``, as the table names them.

    Raises
    ------
    InputError
        If a row is wrong, or none is of so many GPUs and that backend; says which there are.
    """
    n_rows, pairs, there = 0, [], set()
    columns = ["op_name", "allreduce_dtype", "num_gpus", "message_size", "latency", "backend"]
    for row in read_csv(path, columns):
        n_rows += 1
        if row.text("op_name") != "all_reduce":
            raise row.error("op_name", "must be all_reduce")
        if row.text("allreduce_dtype") not in ("bfloat16", "half", "float16"):
            raise row.error("allreduce_dtype", "must be of two bytes: bfloat16, float16 or half")
        key = (row.whole("num_gpus", 2), row.text("backend"))
        there.add(key)
        size = BYTES_PER_VALUE * row.whole("message_size", 1)
        time_ns = MS * row.number("latency")
        if key == (n_gpus, backend):
            pairs.append((size, time_ns))
    if not pairs:
        known = ", ".join(f"{n} GPUs by {name}" for n, name in sorted(there))
        raise InputError(
            f"{path}: no row of {n_gpus} GPUs by {backend}; there is {known or 'none'}"
        )
    left_out = n_rows - len(pairs)
    found = Samples.of(f"all-reduce of {n_gpus} GPUs by bytes in {path}", pairs)
    return Loaded(found, n_rows, {"another num_gpus or backend": left_out} if left_out else {})


def read_estimates(
    path: Path, model: str, system: str, tensor_parallel: int, *, per_prefill_token_ns: int
) -> Loaded[TableStepTime]:
    """Decode steps by batch size, from estimates of whole requests.

    Parameters
    ----------
    path
        CSV with the columns ``model``, ``system``, ``tp``, ``batch``, ``isl``, ``tpot_ms``.
    model, system, tensor_parallel
        Which rows count.
    per_prefill_token_ns
        What a prompt token costs; the estimates do not tell it for a batch that decodes as well.

    Raises
    ------
    InputError
        If a row is wrong, or none matches; says which there are.
    """
    n_rows, pairs, there = 0, [], set()
    for row in read_csv(path, ["model", "system", "tp", "batch", "tpot_ms"]):
        n_rows += 1
        key = (row.text("model"), row.text("system"), row.whole("tp", 1))
        there.add(key)
        batch, time_ns = row.whole("batch", 1), MS * row.number("tpot_ms", 1e-6)
        if key == (model, system, tensor_parallel):
            pairs.append((batch, time_ns))
    if not pairs:
        known = ", ".join(f"{m} on {n} x {s}" for m, s, n in sorted(there))
        raise InputError(
            f"{path}: no row of {model} on {tensor_parallel} x {system}; there is {known or 'none'}"
        )
    found = Samples.of(f"TPOT of {model} by batch size", pairs)
    table = TableStepTime(
        tuple(int(size) for size in found.sizes), (0,), (0,), found.times_ns, per_prefill_token_ns
    )
    left_out = n_rows - len(pairs)
    skipped = {"another model, system or tp": left_out} if left_out else {}
    return Loaded(table, n_rows, skipped, ("context plays no part: it is the mean of a request",))
