"""A real browser without a window, spoken to over a pipe in its own protocol; standard library only."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chrome-headless-shell")
PATIENCE_S = 60.0
TALLEST = 8000  # pixels of a picture
# A shell would do, but the plainest knows no descriptor above 9.
BEGIN = """
import os, sys
for n, end in enumerate(map(int, sys.argv[1:3]), 3):
    os.dup2(end, n)
    os.close(end)
os.execv(sys.argv[3], sys.argv[3:])
"""


def found() -> str:
    """The browser of this machine; empty where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), "")


def why_not() -> str:
    """Why no browser starts here; empty where one does. Where it may make no sandbox or shared memory it may not."""
    if not found():
        return "no chromium or chrome on this machine"
    try:
        with page():
            return ""
    except (OSError, EOFError) as error:
        return f"the browser of this machine ends as it starts: {error}"


class Page:
    """One page, and what it complained of."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._left = b""
        self._numbers = itertools.count(1)
        self._session = ""
        self._events: list[dict[str, Any]] = []
        self._size = (1200, 900)
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        said = {"id": number, "method": method, "params": params}
        if self._session:
            said["sessionId"] = self._session
        os.write(self._write, json.dumps(said).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._heard(answer)

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE_S
        while b"\0" not in self._left:
            if not select.select([self._read], [], [], max(0, until - time.monotonic()))[0]:
                raise TimeoutError("the browser did not answer")
            if not (more := os.read(self._read, 1 << 20)):
                raise EOFError("the browser has ended")
            self._left += more
        said, self._left = self._left.split(b"\0", 1)
        return dict(json.loads(said))

    def _heard(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        self._events.append(event)
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(params["args"])[:500])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])

    @property
    def fetched(self) -> list[str]:
        """Every address that the page asked for."""
        sent = [event for event in self._events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def open(self, path: Path) -> float:
        """Show a file; the seconds from the begin to its being drawn."""
        self.call("Page.navigate", url=path.absolute().as_uri())
        until = time.monotonic() + PATIENCE_S
        while self.run("document.readyState") != "complete" or self.run("location.protocol") != "file:":
            if time.monotonic() > until:
                raise TimeoutError(f"{path} did not open")
            time.sleep(0.02)
        painted = "new Promise(done => requestAnimationFrame(() => setTimeout(() => done(performance.now()))))"
        return float(self.run(painted)) / 1000

    def visit(self, address: str, is_there: str) -> None:
        """Show a page of a server, and wait until a script says that it is there."""
        self.call("Page.navigate", url=address)
        self.wait(is_there)

    def wait(self, is_there: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not self.run(is_there):
            if time.monotonic() > until:
                raise TimeoutError(f"never came: {is_there}")
            time.sleep(0.1)

    def run(self, script: str) -> Any:
        said = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in said:
            raise RuntimeError(json.dumps(said["exceptionDetails"])[:500])
        return said["result"].get("value")

    def size(self, width: int, height: int, keep: bool = True) -> None:
        if keep:
            self._size = (width, height)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def look(self, media: str = "screen", scheme: str = "light") -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def press(self, key: str) -> None:
        text = {"Enter": "\r", " ": " "}.get(key, "")
        code = {"Enter": 13, "Tab": 9, "ArrowRight": 39, "ArrowDown": 40, "Escape": 27, " ": 32}[key]
        for kind in ("keyDown", "keyUp"):
            held = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **held)

    def picture(self, path: Path, selector: str = "") -> Path:
        """A screenshot of what is in view, or of one element whole, for which the window is made as high."""
        clip: dict[str, Any] = {}
        if selector:
            found = f"document.querySelector({json.dumps(selector)})"
            frames = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
            for _ in range(2):  # what comes into view is laid out then
                high = self.run(
                    f"{found}.scrollIntoView({{behavior: 'instant'}}); {frames}.then(() => {found}.offsetHeight)"
                )
                self.size(self._size[0], max(self._size[1], min(int(high) + 120, TALLEST)), keep=False)
            box = self.run(
                f"(r => ({{x: r.left + scrollX, y: r.top + scrollY, width: r.width, height: r.height}}))"
                f"({found}.getBoundingClientRect())"
            )
            clip = {"clip": {**box, "scale": 1}}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **clip)["data"]))
        self.size(*self._size)
        return path

    def paper(self, path: Path) -> Path:
        """As it is printed."""
        self.call("Emulation.setEmulatedMedia", media="", features=[])
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"]))
        return path


def _pipe() -> tuple[int, int]:
    """Clear of the descriptors 3 and 4, which are the browser's to read and to write."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]


@contextlib.contextmanager
def page(width: int = 1200, height: int = 900) -> Iterator[Page]:
    """A page in a browser of its own."""
    to_browser, write = _pipe()
    read, from_browser = _pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            found(),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
        ]
        begin = [sys.executable, "-c", BEGIN, str(to_browser), str(from_browser), *command]
        browser = subprocess.Popen(begin, pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        try:
            made = Page(write, read)
            made.size(width, height)
            yield made
        finally:
            browser.terminate()
            try:
                browser.wait(10)
            except subprocess.TimeoutExpired:
                browser.kill()
                browser.wait()
            os.close(write)
            os.close(read)
