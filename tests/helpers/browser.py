"""A headless Chromium, spoken to over its debugging pipe: load a page, measure it, take a picture."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from analysis.report.pdf import chromium

_ERRORS = ("Runtime.exceptionThrown", "Network.loadingFailed")
SHAPE = """({
    width: document.documentElement.scrollWidth, view: window.innerWidth,
    images: [...document.images].map(i => [i.complete, i.naturalWidth, i.naturalHeight]),
    wide: [...document.querySelectorAll('main *')].filter(
        e => e.getBoundingClientRect().right > window.innerWidth + 1 && !e.closest('.scroll')).length,
    ground: getComputedStyle(document.body).backgroundColor,
})"""


class Browser:
    """One tab. Messages are JSON, each ended by a zero byte."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = os.fdopen(write, "wb"), os.fdopen(read, "rb")
        self._count, self._rest = 0, b""
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command; events that come first are kept."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._write.write(json.dumps(message).encode() + b"\0")
        self._write.flush()
        while (answer := self._next()).get("id") != self._count:
            self.events.append(answer)
        assert "error" not in answer, answer
        found: dict[str, Any] = answer["result"]
        return found

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            read = self._read.read1(1 << 16)  # type: ignore[attr-defined]
            assert read, "Chromium has ended"
            self._rest += read
        message, self._rest = self._rest.split(b"\0", 1)
        found: dict[str, Any] = json.loads(message)
        return found

    def open(self, page: Path, width: int, dark: bool) -> dict[str, Any]:
        """Loads a page in a window of that width and returns its ``SHAPE``."""
        self.events.clear()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, mobile=width < 600,
            deviceScaleFactor=1,
        )  # fmt: skip
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())
        found = self.call("Runtime.evaluate", expression=SHAPE, returnByValue=True)
        shape: dict[str, Any] = found["result"]["value"]
        return shape

    def errors(self) -> list[dict[str, Any]]:
        """What the page complained of since it was opened."""
        return [
            event
            for event in self.events
            if event.get("method") in _ERRORS
            or (
                event.get("method") == "Log.entryAdded"
                and event["params"]["entry"]["level"] == "error"
            )
            or (
                event.get("method") == "Runtime.consoleAPICalled"
                and event["params"]["type"] in ("error", "assert", "warning")
            )
        ]

    def picture(self, target: Path) -> Path:
        """The whole page as PNG."""
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        target.write_bytes(base64.b64decode(taken["data"]))
        return target


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A Chromium of its own, ended at the end."""
    to_child, from_us = os.pipe()
    to_us, from_child = os.pipe()

    def place_pipes() -> None:
        # Chromium reads from descriptor 3 and writes to 4. High copies first: either may be taken.
        high = [os.dup2(fd, fd + 100) for fd in (to_child, from_child)]
        for place, fd in zip((3, 4), high, strict=True):
            os.dup2(fd, place)

    process = subprocess.Popen(
        [*chromium(str(profile)), "--remote-debugging-pipe"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=False,
        preexec_fn=place_pipes,
    )
    os.close(to_child)
    os.close(from_child)
    try:
        yield Browser(from_us, to_us)
    finally:
        process.terminate()
        process.wait(timeout=30)
