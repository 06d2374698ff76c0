"""Where a GPU sits in this box: its link, its cores, and who says so.

What is read is text of ``nvidia-smi`` and of the kernel; nothing here needs torch or a GPU.
"""

import re
from pathlib import Path
from typing import Any, Final

from realrun.cores import cores_in

_PCI: Final = Path("/sys/bus/pci/devices")
_ADDRESS: Final = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.I)
#: Transfers per second of one lane times its share of payload bits, in bytes, by speed of a link
#: (PCI Express base specification: 8b/10b up to 5 GT/s, 128b/130b up to 32, then flits of 256 bytes
#: with 236 for transactions).
_LANE_BYTES_PER_S: Final = {
    2.5: 2.5e9 * 8 / 10 / 8,
    5.0: 5e9 * 8 / 10 / 8,
    8.0: 8e9 * 128 / 130 / 8,
    16.0: 16e9 * 128 / 130 / 8,
    32.0: 32e9 * 128 / 130 / 8,
    64.0: 64e9 * 236 / 256 / 8,
}
_SAYS_NOTHING: Final = frozenset({"", "N/A", "[N/A]", "[Not Supported]", "[Unknown Error]"})


def pci_address(said: str) -> str:
    """The kernel's name of a device, from what nvidia-smi calls it.

    nvidia-smi writes ``00000000:1B:00.0``; the folder in ``/sys`` is ``0000:1b:00.0``.

    Raises
    ------
    ValueError
        If that is no address of PCI.
    """
    found = _ADDRESS.fullmatch(said.strip())
    if found is None:
        raise ValueError(f"{said!r} is no PCI address such as 00000000:1B:00.0")
    domain, bus, device, function = found.groups("0000")
    return f"{domain[-4:]}:{bus}:{device}.{function}".lower()


def link_bytes_per_s(speed: str, width: str) -> float | None:
    """Most payload that a link carries in one direction, packet headers not counted.

    Parameters
    ----------
    speed, width
        As the kernel says: ``32.0 GT/s PCIe`` and ``16``.

    Returns
    -------
    float or None
        None where it says nothing of use, as in virtual machines (``Unknown``, width 0).
    """
    try:
        lane = _LANE_BYTES_PER_S.get(float(speed.split()[0]))
        lanes = int(width)
    except (ValueError, IndexError):
        return None
    return lane * lanes if lane and 0 < lanes <= 32 else None


def link_facts(address: str, devices: Path = _PCI) -> dict[str, Any]:
    """What the kernel says about the place of a device.

    Parameters
    ----------
    address
        See `pci_address`.
    devices
        Where the kernel keeps them.

    Returns
    -------
    dict
        NUMA node (None: the machine has but one, or hides them), cores beside it, speed and width
        of its link as they are now, and what they carry; what cannot be read is left out. An idle
        GPU may have its link slowed down.
    """
    folder = devices / address
    facts: dict[str, Any] = {"pci_address": address}
    node = _read(folder / "numa_node")
    if node:
        facts["numa_node"] = int(node) if int(node) >= 0 else None
    cores = _read(folder / "local_cpulist")
    if cores:
        facts["local_cores"] = list(cores_in(cores))
    for name in ("current", "max"):
        speed = _read(folder / f"{name}_link_speed")
        width = _read(folder / f"{name}_link_width")
        if speed:
            facts[f"{name}_link"] = f"{speed} x{width}"
        carries = link_bytes_per_s(speed, width)
        if carries is not None:
            facts[f"{name}_link_bytes_per_s"] = round(carries)
    return facts


def smi_facts(said: dict[str, str]) -> dict[str, str]:
    """What nvidia-smi knows, without what it does not."""
    return {name: value for name, value in said.items() if value.strip() not in _SAYS_NOTHING}


def place_notes(facts: dict[str, Any], affinity: list[int]) -> list[str]:
    """What about the place of a GPU will show in every copy, and what can be done."""
    notes = []
    local = set(facts.get("local_cores", affinity))
    away = sorted(set(affinity) - local)
    if away:
        notes.append(
            f"{len(away)} of {len(affinity)} usable cores are on another socket than the GPU "
            f"(its cores: {_spans(sorted(local))}): words and copies cross between them; "
            f"run under 'taskset -c {_spans(sorted(local & set(affinity)) or sorted(local))}'"
        )
    now, most = (facts.get(f"{when}_link_bytes_per_s") for when in ("current", "max"))
    if now and most and now < most:
        notes.append(
            f"the link of the GPU is {facts['current_link']} and could be {facts['max_link']}; "
            "if it does not rise under load, look at its slot and the firmware's settings"
        )
    return notes


def visible_as(index: int, visible: str | None) -> str:
    """What ``CUDA_VISIBLE_DEVICES`` shall be for a process that uses one GPU.

    Parameters
    ----------
    index
        Which of those that are visible now, from 0.
    visible
        The variable as it is; None if it is not set.

    Raises
    ------
    ValueError
        If so many are not visible.
    """
    if visible is None:
        return str(index)
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if index >= len(names):
        raise ValueError(
            f"GPU {index} is asked for, and CUDA_VISIBLE_DEVICES={visible!r} shows {len(names)}; "
            "name another with --gpu, counted from 0, or change the variable"
        )
    return names[index]


def _spans(cores: list[int]) -> str:
    """The shortest way to write a list of cores."""
    parts: list[list[int]] = []
    for core in cores:
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else f"{p[0]}" for p in parts)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
