"""Half a file looks like a result: what a user keeps is written by `shmsim.whole`."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Folder and file whose writes nobody takes for a result, and why.
OTHERWISE = {
    "experiments/02_seed_cells/seed_cells.py": "a trace in a folder that is gone with the call",
    "experiments/08_oversubscription/pair.py": "a setting of the kernel",
    "experiments/08_oversubscription/quota.py": "settings of the kernel",
    "experiments/08_oversubscription/run.py": "what a child is told, in a working folder",
    "experiments/01_calibration/run.py": "into a working folder, of which `carry_out` copies whole",
    "experiments/10_model_against_machine/run.py": "the same",
    "experiments/bench/remote.py": "the log of a child, which grows",
    "paper/build.py": "sources for LaTeX, in build/",
    "realrun/host.py": "a request to the kernel, of no use on disk",
    "realrun/gpu_check/flow.py": "the log of the tests, which grows",
    "realrun/run.py": "logs of children, which grow",
    "realrun/vllm/engine.py": "the log of an engine, which grows",
    "realrun/vllm/generate.py": "a model for vLLM",
    "realrun/vllm/trace.py": "a ring that a live process writes into",
    "shmsim/sweep/store.py": "a lock",
}
#: What a file is called that takes its place later, and memory.
FINE = {"unfinished", "buffer"}


def written(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every place at which something writes a file: the line, and what it writes to."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        modes = [a.value for a in call.args if isinstance(a, ast.Constant)]
        opens = any(isinstance(m, str) and set(m) <= set("wxa+bt") for m in modes if m)
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        copies = ast.unparse(call.func).startswith("shutil.copy")
        by_us = any(keyword.arg == "copy_function" for keyword in call.keywords)
        if isinstance(call.func, ast.Attribute) and (
            name in ("write_text", "write_bytes") or (name == "open" and opens)
        ):
            yield call.lineno, ast.unparse(call.func.value)
        elif (name == "open" and opens) or name == "savefig":
            yield call.lineno, ast.unparse(call.args[0])
        elif name == "write_table" or (copies and not by_us):
            yield call.lineno, ast.unparse(call.args[1])


def writers() -> dict[str, list[int]]:
    """Files of the project that write by themselves, and where."""
    found: dict[str, list[int]] = {}
    for folder in ("shmsim", "realrun", "experiments", "paper"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for line, to in written(ast.parse(path.read_text())):
                if to not in FINE:
                    found.setdefault(path.relative_to(ROOT).as_posix(), []).append(line)
    return found


def test_what_a_user_keeps_is_written_whole():
    found = writers()
    assert {path: lines for path, lines in found.items() if path not in OTHERWISE} == {}
    assert sorted(OTHERWISE) == sorted(found), "who does not write by itself needs no reason"


@pytest.mark.parametrize(
    ("code", "to"),
    [
        ("path.write_text('x')", ["path"]),
        ("(folder / 'a').open('wb')", ["folder / 'a'"]),
        ("open(name, 'a')", ["name"]),
        ("figure.savefig(path, format='pdf')", ["path"]),
        ("pq.write_table(rows, path)", ["path"]),
        ("shutil.copy(one, other)", ["other"]),
        ("path.open()", []),
        ("path.open('rb')", []),
        ("shutil.copytree(one, other)", ["other"]),
        ("shutil.copytree(one, other, copy_function=_copy)", []),
        ("arena.copy(one, other)", []),
        ("unfinished.open('w')", ["unfinished"]),
    ],
)
def test_every_way_to_write_is_seen(code, to):
    assert [target for _, target in written(ast.parse(code))] == to
