"""The one thing that pyproject.toml cannot say yet: how to build the C extension."""

import sysconfig

from setuptools import Extension, setup

# One binary serves CPython 3.11 and later; free-threaded builds have no stable ABI to build for.
STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")

native = Extension(
    "realrun._native",
    sources=["realrun/_native.c"],
    define_macros=[("Py_LIMITED_API", "0x030B0000")] if STABLE_ABI else [],
    extra_compile_args=["-O2", "-std=c11", "-Wall", "-Wextra"],
    py_limited_api=STABLE_ABI,
    optional=True,  # without a compiler realrun falls back to pure Python
)

setup(
    ext_modules=[native],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE_ABI else {},
)
