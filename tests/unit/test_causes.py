"""Of all that a process says, the line that tells why it ended is found."""

import pytest

from realrun.causes import cause_in, in_a_line, reason_in

FRAMES = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\n    ~^^\n'
ADVICE = """\
Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda for more information.
CUDA kernel errors might be asynchronously reported at some other API call.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
CUDA = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
NCCL = """\
torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled cuda error
ncclUnhandledCudaError: Call to CUDA function failed.
Last error:
Cuda failure 2 'out of memory'
"""
NCCL_IN_A_LINE = (
    "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled cuda error; "
    "Last error: Cuda failure 2 'out of memory'"
)


def with_rank(text):
    return "\n".join(f"[rank1]: {line}" if line else "" for line in text.split("\n"))


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (f"a warning: of no use\n{FRAMES}{CUDA}\n{ADVICE}\n", CUDA),
        (f"{FRAMES}KeyboardInterrupt\n", "KeyboardInterrupt"),
        (f"{FRAMES}realrun.cuda.checks.NoGpu: none here\n", "realrun.cuda.checks.NoGpu: none here"),
        (f"{FRAMES}{NCCL}", NCCL_IN_A_LINE),
        (with_rank(f"{FRAMES}{NCCL}"), NCCL_IN_A_LINE),
        (f"{FRAMES}E: first\n\nDuring handling ...:\n\n{FRAMES}F: second\n", "F: second"),
        (f"{FRAMES}{CUDA}\nException ignored in: <f>\n{FRAMES}TypeError: None\n", CUDA),
        (
            f"terminate called after throwing an instance of 'c10::Error'\n"
            f"  what():  CUDA error: an illegal memory access was encountered\n{ADVICE}\n"
            "Exception raised from f at g.cpp:1 (most recent call first):\nframe #0: h + 0x1\n",
            "CUDA error: an illegal memory access was encountered",
        ),
        (f"loading model: 3 s\n{FRAMES}", ""),
        ("worker 0: capturing took more than 240 s; NCCL may hang\n", ""),
        ("", ""),
    ],
)
def test_the_exception_is_quoted_and_not_the_advice_behind_it(said, cause):
    assert cause_in(said) == cause


def test_without_an_exception_the_last_line_is_the_reason():
    assert reason_in("loading\nNCCL may hang\n\n") == "NCCL may hang"
    assert reason_in(f"{FRAMES}{CUDA}\n{ADVICE}") == CUDA
    assert reason_in("\n") == ""


def test_a_message_in_a_line_keeps_what_nccl_calls_its_last_error():
    assert in_a_line(NCCL.splitlines()) == NCCL_IN_A_LINE
    assert in_a_line(["", "a", "Last error: b", "c"]) == "a; Last error: b"
    assert in_a_line(["a", "Last error:", ""]) == "a"
    assert in_a_line([]) == ""
