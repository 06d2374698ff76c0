"""What nvidia-smi and the kernel say about the place of a GPU, as they write it."""

import pytest

from realrun.cuda.facts import (
    link_bytes_per_s,
    link_facts,
    pci_address,
    place_notes,
    smi_facts,
    visible_as,
)

#: As a machine with two sockets and PCIe 5 says it.
SYSFS = {
    "numa_node": "1\n",
    "local_cpulist": "48-95,144-191\n",
    "current_link_speed": "32.0 GT/s PCIe\n",
    "current_link_width": "16\n",
    "max_link_speed": "32.0 GT/s PCIe\n",
    "max_link_width": "16\n",
}


@pytest.fixture
def devices(tmp_path):
    """A folder such as the kernel keeps; what to write into it."""

    def write(address, **files):
        folder = tmp_path / address
        folder.mkdir()
        for name, text in (SYSFS | files).items():
            if text is not None:
                (folder / name).write_text(text)
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("said", "address"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("00000008:C6:00.0", "0008:c6:00.0"),
        ("0000:01:00.0", "0000:01:00.0"),
        ("3B:00.0", "0000:3b:00.0"),
        (" 00000000:1B:00.0\n", "0000:1b:00.0"),
    ],
)
def test_an_address_is_found_under_the_name_that_the_kernel_has_for_it(said, address):
    assert pci_address(said) == address


@pytest.mark.parametrize("said", ["", "N/A", "1B:00", "00000000:1B:00.9", "GPU-1234"])
def test_what_is_no_address_is_refused(said):
    with pytest.raises(ValueError, match=r"is no PCI address such as 00000000:1B:00\.0"):
        pci_address(said)


@pytest.mark.parametrize(
    ("speed", "width", "gbyte_per_s"),
    [
        ("32.0 GT/s PCIe", "16", 63.0),
        ("16.0 GT/s PCIe", "16", 31.5),
        ("8.0 GT/s PCIe", "8", 7.9),
        ("2.5 GT/s PCIe", "16", 4.0),
    ],
)
def test_a_link_carries_what_its_lanes_do(speed, width, gbyte_per_s):
    assert link_bytes_per_s(speed, width) / 1e9 == pytest.approx(gbyte_per_s, rel=0.01)


@pytest.mark.parametrize(
    ("speed", "width"), [("Unknown", "0"), ("", ""), ("32.0 GT/s PCIe", "0"), ("7 GT/s", "16")]
)
def test_a_link_that_nobody_knows_carries_nothing_that_could_be_told(speed, width):
    assert link_bytes_per_s(speed, width) is None


def test_the_place_of_a_gpu_is_what_the_kernel_says(devices):
    facts = link_facts("0000:1b:00.0", devices("0000:1b:00.0"))
    assert facts["numa_node"] == 1
    assert facts["local_cores"][0] == 48
    assert len(facts["local_cores"]) == 96
    assert facts["current_link"] == facts["max_link"] == "32.0 GT/s PCIe x16"
    assert facts["current_link_bytes_per_s"] == facts["max_link_bytes_per_s"]


def test_a_virtual_machine_hides_the_node_and_the_link(devices):
    hidden = dict.fromkeys(SYSFS) | {
        "numa_node": "-1\n",
        "current_link_speed": "Unknown\n",
        "current_link_width": "0\n",
    }
    facts = link_facts("0000:00:05.0", devices("0000:00:05.0", **hidden))
    assert facts == {
        "pci_address": "0000:00:05.0",
        "numa_node": None,
        "current_link": "Unknown x0",
    }
    assert link_facts("0000:00:06.0", devices("0000:00:07.0")) == {"pci_address": "0000:00:06.0"}


def test_what_nvidia_smi_does_not_know_is_left_out():
    said = {"name": "NVIDIA H200", "mig.mode.current": "[N/A]", "power.limit": "[Not Supported]"}
    assert smi_facts(said) == {"name": "NVIDIA H200"}


def test_cores_of_another_socket_and_a_slow_link_are_noted(devices):
    slow = {"current_link_speed": "2.5 GT/s PCIe\n"}
    facts = link_facts("0000:1b:00.0", devices("0000:1b:00.0", **slow))
    away, link = place_notes(facts, [46, 47, 48, 49, 51])
    assert away.startswith("2 of 5 usable cores are on another socket")
    assert "taskset -c 48-49,51" in away
    assert "is 2.5 GT/s PCIe x16 and could be 32.0 GT/s PCIe x16" in link
    assert place_notes(facts | {"current_link_bytes_per_s": 10**12}, [48, 49]) == []
    assert place_notes({}, [0, 1]) == []


@pytest.mark.parametrize(
    ("index", "visible", "as_"),
    [(0, None, "0"), (3, None, "3"), (1, "2,5", "5"), (0, " GPU-8a1b , 2", "GPU-8a1b")],
)
def test_a_gpu_is_counted_among_those_that_are_visible(index, visible, as_):
    assert visible_as(index, visible) == as_


@pytest.mark.parametrize(("index", "visible"), [(2, "0,1"), (0, "")])
def test_a_gpu_that_is_not_visible_is_refused(index, visible):
    with pytest.raises(ValueError, match=rf"GPU {index} is asked for, and CUDA_VISIBLE_DEVICES="):
        visible_as(index, visible)
