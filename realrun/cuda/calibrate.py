"""Measures a GPU, part by part: ``python -m realrun.cuda.calibrate SECONDS CORE`` prints lines.

A process of its own, so that whoever asks has no context on the GPU and may start processes of any
kind. Which GPU says ``CUDA_VISIBLE_DEVICES``; `realrun.cuda.parts.Reports` reads the lines, and
`realrun.calibrate_gpu` starts this.
"""

import sys
from functools import partial
from typing import Any, Final

import torch

from realrun.cores import core_beside, stay_on
from realrun.cuda.calls import single_calls
from realrun.cuda.checks import LOAD, NoGpu, check_idle, choose_gpu, clocks, gpu_state
from realrun.cuda.copies import copies
from realrun.cuda.driver import USES_HOST_PAGE_TABLES, driver
from realrun.cuda.facts import link_facts, pci_address, smi_facts
from realrun.cuda.memory import shared_memory
from realrun.cuda.pages import registrations
from realrun.cuda.parts import Measured, Part, Say, run_parts
from realrun.cuda.rests import rests
from realrun.cuda.steps import steps_by_batch, steps_by_room
from realrun.host import prepare_process, settled_heap

# Several lists: a driver that does not know one name of a list answers nothing.
_PLACE: Final = (
    "pci.bus_id", "pcie.link.gen.current", "pcie.link.gen.max", "pcie.link.width.current",
    "pcie.link.width.max",
)  # fmt: skip
_KIND: Final = (
    "driver_version", "compute_mode", "persistence_mode", "mig.mode.current", "clocks.max.sm",
    "clocks.max.mem", "power.limit", "ecc.mode.current",
)  # fmt: skip


def facts(_: Say) -> Measured:
    """What the GPU is, and where it sits."""
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    asked = (_PLACE, _KIND, (LOAD,))
    said = smi_facts({k: v for names in asked for k, v in gpu_state(index, *names).items()})
    found: dict[str, Any] = {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "host_page_tables": driver().attribute(USES_HOST_PAGE_TABLES, index),
        "clocks": clocks(index),
        "nvidia_smi": said,
    }
    if "pci.bus_id" in said:
        found |= link_facts(pci_address(said["pci.bus_id"]))
    return Measured([], found)


def clocks_now(_: Say) -> Measured:
    """Clocks, power and temperature once all is measured."""
    return Measured([], {"clocks": clocks(torch.cuda.current_device())})


def parts(beside: int) -> tuple[Part, ...]:
    """What is measured, in the order of what the model needs most.

    Expectations are for one H200, doubled.

    Parameters
    ----------
    beside
        Core of the thread that waits in the driver, as in a run not that of who waits for it;
        `realrun.cores.ANY`: any.
    """
    return (
        Part("facts", 2.0, facts),
        Part("copies", 12.0, copies),
        Part("rests", 12.0, partial(rests, beside)),
        Part("steps", 40.0, partial(steps_by_batch, beside)),
        Part("calls", 2.0, single_calls),
        Part("memory", 2.0, shared_memory),
        Part("registrations", 4.0, registrations),
        Part("rooms", 30.0, partial(steps_by_room, beside)),
        Part("clocks_after", 1.0, clocks_now),
    )


def main() -> None:
    """Measure all parts that there is time for."""
    prepare_process()
    limit_s, core = float(sys.argv[1]), int(sys.argv[2])
    beside = core_beside(core)
    try:
        index = choose_gpu(0, 1, shares=False)
        check_idle(index)
        torch.cuda.set_device(index)
        torch.zeros(1, device="cuda")
    except NoGpu as error:  # any other has its traceback
        sys.exit(str(error))
    stay_on(core)  # the threads of the context, which are there now, would have inherited it
    with settled_heap():
        run_parts(parts(beside), limit_s, _tell)


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
