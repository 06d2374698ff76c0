"""How many bytes, and tokens, an image or a video becomes before it is handed to the workers.

Of the Qwen-VL family, whose sizes follow the image. Its processor cuts an image into patches of
``channels x temporal x patch x patch`` float32 numbers (``image_processing_qwen2_vl.py`` of
transformers): 3 channels and 2 frames, the second of which repeats a single image. That is 24 bytes
a pixel, whatever the patch. vllm-project/vllm#51207 reports 23, 96 and 213 MB for Qwen3-VL at
1024, 2048 and 3072 pixels square; this gives 24, 96 and 216 MiB. A checkpoint in bfloat16 may be
cast before it is sent, and is half of that then.
"""

from typing import Final

#: float32 x 3 channels x 2 frames, of an image.
BYTES_PER_PIXEL: Final = 24
#: The same for each frame of a video, where the two frames of a patch differ.
BYTES_PER_FRAME_PIXEL: Final = 12
#: Pixels behind one token of Qwen3-VL: 2 x 2 patches of 16 x 16. Qwen2-VL and 2.5 have 28 x 28.
PIXELS_PER_TOKEN: Final = 32 * 32
#: Sides are rounded to multiples of this.
SIDE: Final = 32
#: Images are scaled down to this, ``MAX_PIXELS`` of qwen-vl-utils.
MOST_PIXELS: Final = 16384 * 28 * 28
#: Frames of a video are scaled down to this, ``VIDEO_MAX_PIXELS`` of qwen-vl-utils.
MOST_FRAME_PIXELS: Final = 768 * 28 * 28
#: Frames taken of each second of a video, ``FPS`` of qwen-vl-utils.
FRAMES_PER_S: Final = 2.0
#: Frames taken of a video at most, ``FPS_MAX_FRAMES`` of qwen-vl-utils.
MOST_FRAMES: Final = 768
#: Pixels of all frames together at most, ``VIDEO_TOTAL_PIXELS``: nine tenths of 128000 tokens.
MOST_VIDEO_PIXELS: Final = 128_000 * 28 * 28 * 9 // 10


def image_bytes(pixels: float) -> int:
    """Bytes of an image of so many pixels, sides a multiple of `SIDE`."""
    return _grid(min(pixels, MOST_PIXELS)) * BYTES_PER_PIXEL


def image_tokens(pixels: float) -> int:
    """Tokens of the same."""
    return _grid(min(pixels, MOST_PIXELS)) // PIXELS_PER_TOKEN


def video_frames(seconds: float) -> int:
    """Frames taken of a video, an even number and at least 4."""
    return max(4, 2 * round(min(seconds * FRAMES_PER_S, MOST_FRAMES) / 2))


def video_bytes(seconds: float, frame_pixels: float) -> int:
    """Bytes of a video, its frames scaled down as far as need be."""
    frames = video_frames(seconds)
    return frames * _frame_pixels(frames, frame_pixels) * BYTES_PER_FRAME_PIXEL


def video_tokens(seconds: float, frame_pixels: float) -> int:
    """Tokens of the same; two frames share theirs."""
    frames = video_frames(seconds)
    return frames // 2 * (_frame_pixels(frames, frame_pixels) // PIXELS_PER_TOKEN)


def _frame_pixels(frames: int, pixels: float) -> int:
    return _grid(min(pixels, MOST_FRAME_PIXELS, MOST_VIDEO_PIXELS / frames))


def _grid(pixels: float) -> int:
    """Pixels after rounding to whole tokens, at least one."""
    return max(round(pixels / PIXELS_PER_TOKEN), 1) * PIXELS_PER_TOKEN
