"""Runs in vLLM's environment: starts an engine, generates on command, answers what it took.

``python -m realrun.vllm.generate FD ENGINE`` reads commands from its input, one JSON object a
line, and writes an answer for each to the descriptor FD; vLLM's log goes where it goes. ENGINE
holds the arguments of ``vllm.LLM`` as JSON.
"""

import json
import math
import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

#: A Llama of 2 million random weights: its steps are as short as they get, so waiting shows most.
TINY_MODEL: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_PROMPT_TOKENS: Final = 16
_STALL_S: Final = 0.1
_LATE_S: Final = 1.0  # a first token that takes this long has waited for somebody's recheck


def write_tiny_model(folder: Path) -> None:
    """Write the ``config.json`` of `TINY_MODEL`; weights come from ``load_format=dummy``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TINY_MODEL))


def engine_arguments(model: Path, workers: int, *, asynchronous: bool) -> dict[str, Any]:
    """Arguments of ``vllm.LLM`` for the tiny model."""
    return {
        "model": str(model),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "distributed_executor_backend": "mp",
        "tensor_parallel_size": workers,
        "async_scheduling": asynchronous,
        "max_model_len": 8192,
        "max_num_seqs": 16,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
        "seed": 1,
    }


def main(fd: int, engine: dict[str, Any]) -> None:
    """Serve commands until the input ends."""
    os.set_inheritable(fd, False)
    from vllm import LLM

    llm = LLM(**engine)
    with os.fdopen(fd, "w", buffering=1) as answers:
        # What is in force, not what was asked for: the CPU build schedules synchronously anyhow.
        asynchronous = bool(llm.llm_engine.vllm_config.scheduler_config.async_scheduling)
        print(json.dumps({"asynchronous": asynchronous}), file=answers)
        for line in sys.stdin:
            command = json.loads(line)
            time.sleep(command["idle_s"])
            answer = _generate(llm, command["streams"], command["tokens"], command["within_s"])
            print(json.dumps(answer), file=answers)


def _generate(llm: Any, n_streams: int, n_tokens: int, within_s: float | None) -> dict[str, Any]:
    """Generate in all streams at once, greedily, to a fixed length; time every token's arrival.

    When `within_s` is over the requests are aborted; what they waited for then counts as a gap.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    parameters = SamplingParams(
        temperature=0.0,
        max_tokens=n_tokens,
        min_tokens=n_tokens,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    engine = llm.llm_engine
    names = [f"{time.monotonic_ns()}-{stream}" for stream in range(n_streams)]
    tokens: dict[str, list[int]] = {name: [] for name in names}
    arrived: dict[str, list[float]] = {name: [] for name in names}
    metrics = {}
    started = time.monotonic()
    until = math.inf if within_s is None else started + within_s
    for stream, name in enumerate(names):
        prompt = [(7 * stream + 3 * i) % 1000 + 5 for i in range(_PROMPT_TOKENS)]
        engine.add_request(name, {"prompt_token_ids": prompt}, parameters)
    while engine.has_unfinished_requests() and time.monotonic() < until:
        for output in engine.step():
            now = time.monotonic()
            # Newer versions make the id unique by a suffix.
            name = next(n for n in names if output.request_id.startswith(n))
            new = output.outputs[0].token_ids
            tokens[name] += new
            arrived[name] += [now] * len(new)
            if output.finished:
                metrics[name] = output.metrics
    if engine.has_unfinished_requests():
        engine.abort_request(names)
        for name in names:
            if name not in metrics:
                arrived[name].append(time.monotonic())  # so that what it waited for is a gap
    ttft_s = [arrived[name][0] - started for name in names]
    gaps_s = [b - a for n in names for a, b in pairwise(arrived[n])]
    return {
        "wall_s": time.monotonic() - started,
        "ttft_s": ttft_s,
        "tpot_s": [(m.last_token_ts - m.first_token_ts) / (n_tokens - 1) for m in metrics.values()],
        "longest_gap_s": max(ttft_s + gaps_s),
        "stalls": sum(s > _STALL_S for s in gaps_s) + sum(s > _LATE_S for s in ttft_s),
        "tokens": list(tokens.values()),
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
