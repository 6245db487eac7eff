"""A headless Chromium that opens pages, presses keys and takes pictures, over the DevTools protocol on two pipes.

with Browser() as browser:
    browser.open(path, width=400, is_dark=True)
    assert browser.value("document.title") == "Tokens"
    assert browser.complaints == []
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium (Debian: apt-get install chromium)")

_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars", "--disable-extensions")


class Browser:
    """One page; `complaints` holds what its console, or a request, said against it since it was opened."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self._number = 0
        self._session: str | None = None

    def __enter__(self) -> Browser:
        assert CHROMIUM is not None
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        reads, self._out = os.pipe()
        back, writes = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4. The smaller shells know no descriptors above 9.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" "$@" 3<&{reads} 4>&{writes}', CHROMIUM, *_FLAGS, "--remote-debugging-pipe",
             f"--user-data-dir={self._folder.name}", "about:blank"],
            pass_fds=(reads, writes), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(reads)
        os.close(writes)
        self._back = os.fdopen(back, "rb", buffering=0)
        self._rest = b""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        os.close(self._out)
        self._back.close()
        self._folder.cleanup()

    def open(self, path: Path, *, width: int = 1200, height: int = 900, is_dark: bool = False) -> None:
        """Load a file."""
        self.complaints.clear()
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}]
        self._ask("Emulation.setEmulatedMedia", features=scheme)
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._events: list[str] = []
        self._ask("Page.navigate", url=path.resolve().as_uri())
        while "Page.loadEventFired" not in self._events:
            self._read()

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript gives."""
        found = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def click(self, selector: str) -> None:
        """Press the mouse in the middle of an element."""
        self.value(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        box = f"(box => [box.x + box.width / 2, box.y + box.height / 2])(document.querySelector({json.dumps(selector)})"
        x, y = self.value(f"{box}.getClientRects()[0])")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self._ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, selector: str) -> None:
        """Move the mouse over an element."""
        box = f"(box => [box.x + box.width / 2, box.y + box.height / 2])(document.querySelector({json.dumps(selector)})"
        x, y = self.value(f"{box}.getClientRects()[0])")
        self._ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        """Press a key: ``Tab``, ``Enter``."""
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self._ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def picture(self, path: Path, *, is_whole: bool = False) -> None:
        """Write what is seen, or the whole page, as PNG."""
        found = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = self._back.read(1 << 20)
            assert data, "chromium has ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        method, parameters = message.get("method", ""), message.get("params", {})
        if method == "Page.loadEventFired":
            self._events.append(method)
        elif method == "Runtime.exceptionThrown" or method == "Network.loadingFailed":
            self.complaints.append(json.dumps(parameters))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not parameters["request"]["url"].startswith(("file:", "data:")):
            self.complaints.append(f"a request to {parameters['request']['url']}")
        return message
