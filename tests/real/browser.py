"""A headless Chromium, spoken to over two pipes: the DevTools protocol without a library for it."""

import json
import os
import shutil
import subprocess
from itertools import count
from select import select

import pytest

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium: apt-get install chromium-headless-shell"
)
_PATIENCE_S = 30.0  # a watchdog, no measure


class Browser:
    """One page of a Chromium of its own."""

    def __init__(self, profile_folder):
        to_browser, self._write_fd = os.pipe()
        self._read_fd, from_browser = os.pipe()
        arguments = [
            CHROMIUM,
            "--headless",
            "--remote-debugging-pipe",  # it reads commands from 3 and answers on 4
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            f"--user-data-dir={profile_folder}",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),  # it refuses a sandbox as root
        ]
        self._process = subprocess.Popen(
            # Not sh: that of Debian knows no descriptor of two digits.
            ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash", *arguments],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._numbers = count(1)
        self._unread = b""
        self._session = None
        self.events = []
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        """End it and whatever it started."""
        os.close(self._write_fd)  # a browser whose pipe is gone ends itself, with its children
        try:
            self._process.wait(_PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._read_fd)

    def call(self, method, **parameters):
        """Run a command and give its result; events that come meanwhile are kept."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write_fd, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def open(self, path, width, height=900, *, dark=False):
        """Show a page at a size, and forget what was said about the one before."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def evaluate(self, expression):
        """What an expression of JavaScript is worth in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key):
        """Press and let go of a key: ``"Tab"`` or ``"Enter"``."""
        code, text = {"Tab": (9, ""), "Enter": (13, "\r")}[key]
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                **({"text": text} if kind == "keyDown" else {}),
            )  # fmt: skip

    @property
    def complaints(self):
        """What was written to the console, thrown or logged since the page was opened."""
        kinds = {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}
        return [event for event in self.events if event.get("method") in kinds]

    @property
    def loaded(self):
        """What the page asked for since it was opened, itself first."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def _next(self):
        while b"\0" not in self._unread:
            ready, _, _ = select([self._read_fd], [], [], _PATIENCE_S)
            assert ready, f"the browser said nothing for {_PATIENCE_S:g} s"
            got = os.read(self._read_fd, 1 << 20)
            assert got, "the browser has ended"
            self._unread += got
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)
