"""A notebook that takes far more than a minute on two cores fails, wherever it runs (`make test`).

Counted is CPU time: how long one waits depends on who else uses the machine. The kernel's own
counts in full; of what it starts (a calibration, a sweep) two run at a time.
"""

import os
from pathlib import Path
from typing import Final, NamedTuple

import nbmake.nb_run
import pytest
from nbmake.nb_result import NotebookError, NotebookResult
from nbmake.pytest_items import NotebookFailedException

#: A minute is the aim, with nothing compiled yet, too; a slow machine may take half as long again.
LIMIT_S: Final = 90
N_CORES: Final = 2
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Used(NamedTuple):
    """CPU time of a kernel and of those that it started and that have ended, seconds."""

    own_s: float
    others_s: float

    @classmethod
    def of(cls, pid: int) -> "Used":
        # Behind the name, which may hold anything: fields 14 to 17 of proc(5).
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        user, system, of_children, system_of_children = (int(f) for f in fields[11:15])
        own, others = user + system, of_children + system_of_children
        return cls(own / _TICKS_PER_S, others / _TICKS_PER_S)

    @property
    def takes_s(self) -> float:
        return self.own_s + self.others_s / N_CORES


class _Client(nbmake.nb_run.NotebookClient):
    """Looks at the kernel after each cell: after the last one it has ended."""

    last: Used | None = None

    async def async_execute_cell(self, *args, **kwargs):
        try:
            return await super().async_execute_cell(*args, **kwargs)
        finally:
            type(self).last = Used.of(self.km.provisioner.pid)


def pytest_configure(config):
    nbmake.nb_run.NotebookClient = _Client


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    result = yield
    used = _Client.last
    said = f"{used.own_s:.0f} s of CPU in the kernel, {used.others_s:.0f} s in what it started"
    item.add_report_section("call", "cpu", said)
    item.user_properties.append(("cpu", said))
    if used.takes_s >= LIMIT_S:
        summary = f"{item.name} takes too long: {said}, on {N_CORES} cores more than {LIMIT_S} s"
        raise NotebookFailedException(NotebookResult({}, NotebookError(summary, summary, 0)))
    return result


def pytest_terminal_summary(terminalreporter):
    for report in terminalreporter.getreports("passed"):
        for _, said in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid}: {said}")
