"""Profiles and benchmark output in the formats of LLMServingSim (casys-kaist, MIT).

What the columns mean was read from that repository's documentation and data: ``dense.csv`` times
the layers that depend on the tokens of a batch, ``per_sequence.csv`` those that depend on its
sequences, ``attention.csv`` the attention of one layer; microseconds.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from shmsim.inputs.layers import DecodeAttention, Layers
from shmsim.inputs.rows import InputError, Loaded, Row, read_csv
from shmsim.inputs.samples import Samples
from shmsim.roofline import BYTES_PER_VALUE, ModelGeometry
from shmsim.steptime import TableStepTime
from shmsim.units import US, S

#: How often each layer of a file runs: in each of the model's layers, or once.
_EACH: Final = {
    "layernorm": 2, "qkv_proj": 1, "qk_norm": 1, "rotary_emb": 1, "o_proj": 1, "gate_up_proj": 1,
    "act_fn": 1, "down_proj": 1,
}  # fmt: skip
_DENSE: Final = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
_ONCE: Final = ("embedding", "final_layernorm", "lm_head", "sampler")


def read_llmservingsim_table(
    dense: Path,
    per_sequence: Path,
    model: ModelGeometry,
    *,
    max_sequences: int = 64,
    attention: Path | None = None,
    tensor_parallel: int = 1,
    all_reduce: Samples | None = None,
) -> Loaded[TableStepTime]:
    """Build a step-time table.

    Parameters
    ----------
    dense, per_sequence
        The files of one tensor-parallel degree.
    model
        For the number of layers.
    max_sequences
        The table's largest decode batch.
    attention
        ``attention.csv``; without it attention costs nothing, and a note says so.
    tensor_parallel, all_reduce
        Degree of the files, and the time of an all-reduce by bytes, which they do not hold; two
        for each layer are added. Needed with more than one GPU.

    Raises
    ------
    InputError
        If a row is wrong, or a layer is unknown.
    """
    if tensor_parallel > 1 and all_reduce is None:
        raise InputError(
            f"{tensor_parallel} tensor-parallel workers need the time of an all-reduce, which such "
            "profiles do not hold; read one with aiconfigurator.read_all_reduce"
        )
    n_dense, tokens = _summed(dense, "tokens", model, _DENSE)
    n_sequences, sequences = _summed(per_sequence, "sequences", model, ("lm_head",))

    def collectives_ns(n_decode: int, n_prefill: int) -> float:
        if all_reduce is None:
            return 0.0
        message = max(n_decode + n_prefill, 1) * model.hidden * BYTES_PER_VALUE
        return 2 * model.layers * all_reduce.at(message)

    layers = Layers(tokens, sequences, per_step=collectives_ns)
    n_rows, skipped = n_dense + n_sequences, {}
    notes: tuple[str, ...] = ()
    if attention is None:
        notes = ("without attention.csv attention costs nothing",)
    else:
        n_read, n_left_out, decode, prefill = _attention(attention, model)
        n_rows += n_read
        if n_left_out:
            skipped["mixed, or prefill with context, which no axis of a table tells"] = n_left_out
        layers = layers._replace(
            decode_attention=DecodeAttention(decode),
            prefill_attention=Samples.of(f"prefill in {attention}", prefill),
        )
    return Loaded(layers.table(max_sequences), n_rows, skipped, notes)


def _summed(
    path: Path, size: str, model: ModelGeometry, needed: Sequence[str]
) -> tuple[int, Samples]:
    """Rows read, and the time of all layers together by size."""
    by_layer: dict[str, dict[int, float]] = {}
    n_rows = 0
    for row in read_csv(path, ["layer", size, "time_us"]):
        n_rows += 1
        layer = row.text("layer")
        if layer not in _EACH and layer not in _ONCE:
            raise row.error("layer", f"must be one of {', '.join([*_EACH, *_ONCE])}")
        runs = _EACH.get(layer, 0) * model.layers or 1
        at = row.whole(size, 1)
        if at in by_layer.setdefault(layer, {}):
            raise row.error(size, f"must not repeat for {layer}")
        by_layer[layer][at] = US * runs * row.number("time_us")
    lacking = [layer for layer in needed if layer not in by_layer]
    if lacking:
        raise InputError(
            f"{path}: holds no {', '.join(lacking)}; a step cannot do without, and a mixture of "
            "experts is not read"
        )
    anywhere = sorted({at for times in by_layer.values() for at in times})
    for layer, times in by_layer.items():
        absent = [at for at in anywhere if at not in times]
        if absent:
            raise InputError(
                f"{path}: {layer} lacks {size} {absent[0]}, at which other layers were measured; "
                "all must be measured at the same ones"
            )
    pairs = [(at, sum(times[at] for times in by_layer.values())) for at in anywhere]
    return n_rows, Samples.of(f"layers by {size} in {path}", pairs)


def _attention(
    path: Path, model: ModelGeometry
) -> tuple[int, int, list[tuple[int, int, float]], list[tuple[float, float]]]:
    """Rows read, rows left out, decode shapes and prefill chunks."""
    n_rows = n_left_out = 0
    decode: list[tuple[int, int, float]] = []
    prefill: list[tuple[float, float]] = []
    for row in read_csv(path, ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"]):
        n_rows += 1
        chunk, n_decode = row.whole("prefill_chunk"), row.whole("n_decode")
        time_ns = US * model.layers * row.number("time_us")
        context, behind = row.whole("kv_decode"), row.whole("kv_prefill")
        if chunk == 0 and n_decode:
            decode.append((n_decode, context, time_ns))
        elif chunk and n_decode == 0 and behind == 0:
            prefill.append((chunk, time_ns))
        else:
            n_left_out += 1
    return n_rows, n_left_out, decode, prefill


class Tick(NamedTuple):
    """One line of a benchmark's time series.

    Parameters
    ----------
    at_ns
        From the start of the run.
    prompt_tokens_per_s, output_tokens_per_s
        Rates since the last line.
    running, waiting
        Requests.
    kv_cache_percent
        Of the cache in use.
    """

    at_ns: int
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    running: int
    waiting: int
    kv_cache_percent: float


def read_timeseries(path: Path) -> Loaded[tuple[Tick, ...]]:
    """Read a ``timeseries.csv`` of a benchmark.

    Raises
    ------
    InputError
        If a row is wrong, or time goes back.
    """
    ticks: list[Tick] = []
    columns = ["t", "prompt_throughput", "gen_throughput", "running", "waiting", "kv_cache_pct"]
    for row in read_csv(path, columns):
        tick = Tick(
            row.instant_ns("t", S),
            row.number("prompt_throughput"),
            row.number("gen_throughput"),
            row.whole("running"),
            row.whole("waiting"),
            row.number("kv_cache_pct", 0, 100),
        )
        if ticks and tick.at_ns <= ticks[-1].at_ns:
            raise row.error("t", f"must be above that of the row before, {ticks[-1].at_ns / S:g}")
        ticks.append(tick)
    return Loaded(tuple(ticks), len(ticks))


class Comparison(NamedTuple):
    """One line of a benchmark's summary, ns: what vLLM took and what LLMServingSim said."""

    vllm_ns: float
    simulated_ns: float


def read_summary(path: Path) -> Loaded[dict[str, Comparison]]:
    """Read a ``summary.txt``: milliseconds by metric, as ``"TPOT Mean"`` or ``"TTFT P99"``.

    Raises
    ------
    InputError
        If the file cannot be read or a line has another shape.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8: {error}") from None
    found: dict[str, Comparison] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0] == "Metric" or set(line.strip()) == {"-"}:
            continue
        where = f"{path}, line {number}"
        if len(words) != 5:
            raise InputError(
                f"{where}: must be a quantity, a statistic, two times in ms and a difference, got "
                f"{line!r}"
            )
        row = Row(where, {"vLLM": words[2], "Sim": words[3]})
        milliseconds = (row.number("vLLM"), row.number("Sim"))
        found[" ".join(words[:2])] = Comparison(*(1e6 * ms for ms in milliseconds))
    if not found:
        raise InputError(f"{path}: holds no line of a summary")
    return Loaded(found, len(found))
