"""The C extension of a checkout that nobody installed."""

import importlib.util
import shutil
import sysconfig
from pathlib import Path

import pytest

import realrun.build_native
from realrun.build_native import build_native

SOURCE = Path(realrun.build_native.__file__).parent / "_native.c"


def test_it_is_built_beside_its_source_and_only_once(tmp_path):
    if shutil.which("cc") is None or not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("needs a C compiler and the headers of Python")
    shutil.copy(SOURCE, tmp_path)
    assert build_native(tmp_path) == ""
    (built,) = tmp_path.glob("_native*.so")
    spec = importlib.util.spec_from_file_location("realrun._native", built)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert callable(module.wait)
    (tmp_path / "_native.c").unlink()
    assert build_native(tmp_path) == ""
    assert list(tmp_path.iterdir()) == [built], "nothing else is left"


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    (tmp_path / "_native.c").write_text("int main( {}\n")
    if shutil.which("cc"):
        assert "failed: " in build_native(tmp_path)
        assert "error" in build_native(tmp_path)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: "/nowhere")
    if shutil.which("cc"):
        assert build_native(tmp_path) == "the headers of Python are not in /nowhere"
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert build_native(tmp_path) == "there is no C compiler"
