"""`make lab`, by its own recipe: it serves the seven notebooks, and Ctrl-C ends all of it."""

import contextlib
import json
import os
import pty
import re
import socket
import subprocess
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.real.browser import Browser, needs_chromium

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
PATIENCE_S = 50.0  # a watchdog, no measure

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not (ROOT / ".venv/bin/jupyter").exists(), reason="no .venv with notebooks"),
]


def recipe(arguments):
    """What `make lab` runs once `.venv` is there."""
    stamp = ".venv/.stamp-dev"
    said = subprocess.run(
        ["make", "-n", "-o", stamp, "lab", f"LAB_ARGS={arguments}"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return said.stdout[said.stdout.index("IPYTHONDIR=") :]


class Lab:
    """JupyterLab on a terminal of its own, as somebody starts it."""

    def __init__(self, folder):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        places = {f"JUPYTER_{name}_DIR": str(folder) for name in ("CONFIG", "DATA", "RUNTIME")}
        self._terminal, inner = pty.openpty()
        self._process = subprocess.Popen(
            [
                "setsid", "--ctty", "sh", "-c",
                "exec env " + recipe(
                    f"--no-browser --allow-root --ServerApp.port={self.port} "
                    f"--ServerApp.port_retries=0 --FileCheckpoints.checkpoint_dir={folder}"
                ),
            ],
            cwd=ROOT, env={**os.environ, **places}, stdin=inner, stdout=inner, stderr=inner,
        )  # fmt: skip
        os.close(inner)
        os.set_blocking(self._terminal, False)
        self.said = ""

    def url(self, page):
        return f"http://127.0.0.1:{self.port}/{page}?token={self.token}"

    def wait_until(self, is_so):
        end = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < end, self.said
            time.sleep(0.1)
            self._read()

    def start(self):
        self.wait_until(lambda: re.search(r"token=\w+\s", self.said) and self.answers())
        self.token = re.search(r"token=(\w+)", self.said)[1]

    def answers(self):
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", self.port)).close()
            return True
        return False

    def interrupt(self):
        """Ctrl-C, and yes."""
        os.write(self._terminal, b"\x03")
        self.wait_until(lambda: "(y/[n])" in self.said)
        os.write(self._terminal, b"y\n")
        self.wait_until(lambda: self._process.poll() is not None)
        return self._process.returncode

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def _read(self):
        with contextlib.suppress(OSError):  # nothing new, or its other end is closed
            self.said += os.read(self._terminal, 1 << 16).decode(errors="replace")


@pytest.fixture
def lab(tmp_path):
    running = Lab(tmp_path)
    try:
        running.start()
        yield running
    finally:
        running.close()


def test_it_lists_the_notebooks_and_ends_by_ctrl_c(lab):
    with urlopen(lab.url("api/contents/notebooks")) as answer:
        listed = {entry["name"] for entry in json.load(answer)["content"]}
    assert listed >= set(NOTEBOOKS)
    assert lab.interrupt() == 0
    assert not lab.answers()


@needs_chromium
def test_a_browser_shows_a_notebook_ready_to_run(lab, tmp_path):
    name = "03_write_a_policy.ipynb"
    cells = len(json.loads((ROOT / "notebooks" / name).read_text())["cells"])
    browser = Browser(tmp_path / "browser")
    try:
        browser.call(
            "Emulation.setDeviceMetricsOverride",
            width=1300, height=1000, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        browser.call("Page.navigate", url=lab.url(f"lab/tree/notebooks/{name}"))
        # What is not in sight is drawn later; the prompt of the first cell is.
        shown = "document.querySelectorAll('.jp-Notebook .jp-Cell').length"
        lab.wait_until(lambda: browser.evaluate(shown) > 0)
        # While a kernel starts, the server does not answer Ctrl-C.
        status = "(document.querySelector('#jp-main-statusbar') || {}).innerText"
        lab.wait_until(lambda: "| Idle" in (browser.evaluate(status) or ""))
        assert browser.evaluate(shown) <= cells
        assert not browser.evaluate("document.querySelectorAll('.jp-Dialog').length")
        thrown = [e for e in browser.events if e.get("method") == "Runtime.exceptionThrown"]
        assert thrown == []
    finally:
        browser.close()
    assert lab.interrupt() == 0
