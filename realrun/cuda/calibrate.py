"""Measures a GPU, part by part: ``python -m realrun.cuda.calibrate SECONDS CORE`` prints lines.

A process of its own, so that whoever asks has no context on the GPU and may start processes of any
kind. Which GPU says ``CUDA_VISIBLE_DEVICES``; `realrun.cuda.parts.Reports` reads the lines, and
`realrun.calibrate_gpu` starts this.
"""

import os
import sys
from typing import Any, Final

import torch

from realrun.cuda.calls import single_calls
from realrun.cuda.checks import check_idle, choose_gpu, clocks, gpu_state
from realrun.cuda.copies import copies
from realrun.cuda.driver import USES_HOST_PAGE_TABLES, driver
from realrun.cuda.facts import link_facts, pci_address, smi_facts
from realrun.cuda.pages import registrations
from realrun.cuda.parts import Measured, Part, Say, run_parts
from realrun.cuda.rests import rests
from realrun.cuda.steps import steps_by_batch, steps_by_room
from realrun.host import prepare_process, settled_heap

# Two lists: a driver that does not know one name of a list answers nothing.
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
    said = smi_facts(gpu_state(index, *_PLACE) | gpu_state(index, *_KIND))
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


#: In the order of what the model needs most; expectations are for one H200, doubled.
PARTS: Final = (
    Part("facts", 2.0, facts),
    Part("copies", 12.0, copies),
    Part("rests", 12.0, rests),
    Part("steps", 40.0, steps_by_batch),
    Part("calls", 2.0, single_calls),
    Part("registrations", 4.0, registrations),
    Part("rooms", 30.0, steps_by_room),
    Part("clocks_after", 1.0, clocks_now),
)


def main() -> None:
    """Measure all parts that there is time for."""
    prepare_process()
    limit_s, core = float(sys.argv[1]), int(sys.argv[2])
    if core >= 0:
        os.sched_setaffinity(0, {core})
    try:
        index = choose_gpu(0, 1, shares=False)
        check_idle(index)
        torch.cuda.set_device(index)
        torch.zeros(1, device="cuda")
    except RuntimeError as error:
        sys.exit(str(error))
    with settled_heap():
        run_parts(PARTS, limit_s, _tell)


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
