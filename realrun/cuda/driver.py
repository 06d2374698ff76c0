"""The few calls of NVIDIA's driver that torch does not offer, by ctypes.

A failed call of the runtime (``cudaHostRegister``) leaves an error behind that the next unrelated
torch call raises; a failed call of the driver does not, so these are the driver's. They work in the
current context of the calling thread: torch has made one once it holds a tensor on the device.
"""

import ctypes
from functools import cache
from typing import Any, Final

_LIBRARY: Final = "libcuda.so.1"
_PORTABLE: Final = 1  # CU_MEMHOSTREGISTER_PORTABLE: for every context of this process
_MAPPED: Final = 2  # CU_MEMHOSTREGISTER_DEVICEMAP: the device may write to it
#: Of cuDeviceGetAttribute: registering only populates pages there (Grace).
USES_HOST_PAGE_TABLES: Final = 100
_MEANING: Final = {
    1: "the range is empty, or not on a page",
    2: "the driver found no memory for it, or 'ulimit -l' is too low",
    100: "there is no GPU",
    201: "this thread has no CUDA context yet: make a tensor on the device first",
    712: "it is registered already",
    713: "it was not registered",
    801: "this platform cannot",
}


class DriverError(RuntimeError):
    """A call of the driver that failed; says which, and what its code means.

    Parameters
    ----------
    call
        Name of the function.
    code
        What it returned.
    """

    def __init__(self, call: str, code: int) -> None:
        """Explain the code."""
        super().__init__(f"{call} failed with error {code}: {_MEANING.get(code, 'see cuda.h')}")
        self.code = code


class Driver:
    """Calls of the driver, checked.

    Parameters
    ----------
    library
        What `ctypes.CDLL` gives for the driver.
    """

    def __init__(self, library: Any) -> None:
        """Remember the library."""
        self._library = library

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise DriverError(name, 801) from None
        code = int(function(*arguments))
        if code:
            raise DriverError(name, code)

    def register(self, address: int, n_bytes: int) -> None:
        """Page-lock whole pages of this process, for the device to copy from and write to."""
        self._call(
            "cuMemHostRegister_v2",
            *(ctypes.c_void_p(address), ctypes.c_size_t(n_bytes)),
            ctypes.c_uint(_PORTABLE | _MAPPED),
        )

    def unregister(self, address: int) -> None:
        """Undo `register`; no copy may be on its way."""
        self._call("cuMemHostUnregister", ctypes.c_void_p(address))

    def device_pointer(self, address: int) -> int:
        """Where the device sees a byte of registered memory."""
        found = ctypes.c_uint64()
        self._call(
            "cuMemHostGetDevicePointer_v2",
            *(ctypes.byref(found), ctypes.c_void_p(address), ctypes.c_uint(0)),
        )
        return found.value

    def write_when_reached(self, stream: int, pointer: int, value: int) -> None:
        """Have a stream write 4 bytes once all before it is done, and visible before them.

        Parameters
        ----------
        stream
            Handle, as ``torch.cuda.Stream.cuda_stream``.
        pointer
            On the device, a multiple of 4.
        value
            In [0, 2**32).
        """
        self._call(
            "cuStreamWriteValue32_v2",
            *(ctypes.c_void_p(stream), ctypes.c_uint64(pointer)),
            *(ctypes.c_uint32(value), ctypes.c_uint(0)),
        )

    def attribute(self, number: int, device: int) -> int:
        """A number of ``CUdevice_attribute`` for a device."""
        found = ctypes.c_int()
        self._call(
            "cuDeviceGetAttribute",
            *(ctypes.byref(found), ctypes.c_int(number), ctypes.c_int(device)),
        )
        return found.value


@cache
def driver() -> Driver:
    """The driver of this machine.

    Raises
    ------
    RuntimeError
        If there is none.
    """
    try:
        return Driver(ctypes.CDLL(_LIBRARY))
    except OSError as error:
        raise RuntimeError(
            f"there is no NVIDIA driver here ({error}); install one, or give the container the GPU "
            '(docker run --gpus all), or set device.kind = "cpu"'
        ) from None
