"""Pixels as a PNG, for pictures that a slider draws again and again."""

import struct
import zlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_RGBA: Final = (8, 6, 0, 0, 0)  # bits of a channel, colour type, and what has one value only
_UP: Final = 2  # the filter that stores what a row has other than the row above


def as_png(rgba: NDArray[np.uint8]) -> bytes:
    """Write quickly what goes no farther than to a browser.

    Takes half as long as Pillow, which tries all filters on each row. In a diagram most rows are
    like the one above, and what is left is zeros.

    Parameters
    ----------
    rgba
        Shape ``(height, width, 4)``.
    """
    height, width, _ = rgba.shape
    pixels = rgba.reshape(height, 4 * width)
    rows = np.empty((height, 1 + 4 * width), np.uint8)
    rows[:, 0] = _UP
    rows[0, 1:] = pixels[0]
    np.subtract(pixels[1:], pixels[:-1], out=rows[1:, 1:])  # modulo 256, as the filter is
    header = struct.pack(">2I5B", width, height, *_RGBA)
    # The least effort: a smaller picture takes longer than drawing it.
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.data, 1)), (b"IEND", b""))
    return _SIGNATURE + b"".join(_chunk(kind, content) for kind, content in parts)


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)
