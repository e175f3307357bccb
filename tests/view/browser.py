"""Chromium, driven through chromedriver by the WebDriver protocol and urllib alone.

Tests that use it carry the marker ``browser``; without STATESPAN_TEST_BROWSER they are not collected.
"""

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

VARIABLE = "STATESPAN_TEST_BROWSER"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of an element, by the protocol


class Browser:
    """A new browser with a profile of its own; a context manager."""

    def __init__(self, width=1280, height=900, dark=False):
        self.folder = Path(tempfile.mkdtemp())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.driver = subprocess.Popen(
            ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.base = f"http://127.0.0.1:{port}"
        wait(lambda: self.call("GET", "/status")["ready"], "chromedriver")
        args = [*FLAGS, f"--user-data-dir={self.folder}", f"--window-size={width},{height}"]
        options = {"goog:chromeOptions": {"args": args}, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self.call("POST", "/session", {"capabilities": {"alwaysMatch": {"browserName": "chrome", **options}}})
        self.base += f"/session/{made['sessionId']}"
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}  # windows have a least width
        self.devtools("Emulation.setDeviceMetricsOverride", size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.devtools("Emulation.setEmulatedMedia", {"features": scheme})

    def __enter__(self):
        return self

    def __exit__(self, *error):
        try:
            self.call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait(10)
            shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method, path, content=None):
        """The value that a command returns."""
        body = None if method != "POST" else json.dumps(content or {}).encode()
        request = urllib.request.Request(self.base + path, body, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.loads(error.read())["value"]["message"]) from None

    def devtools(self, command, parameters):
        """A command of Chromium's own protocol."""
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, url):
        """Load a page."""
        self.call("POST", "/url", {"url": url})

    def run(self, script, *args):
        """What a script returns in the page."""
        return self.call("POST", "/execute/sync", {"script": script, "args": list(args)})

    def until(self, script, what):
        """Wait until a script returns something true, and return it."""
        return wait(lambda: self.run(script), what)

    def find(self, selector):
        """The path of an element's commands."""
        return f"/element/{self.call('POST', '/element', {'using': 'css selector', 'value': selector})[ELEMENT]}"

    def click(self, selector):
        """Click an element as a person does, who scrolls it to the middle of the screen: it has to be in sight."""
        self.run("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", selector.partition(" ")[0])
        self.call("POST", f"{self.find(selector)}/click")

    def type(self, selector, text):
        """Type, or name a file."""
        self.call("POST", f"{self.find(selector)}/value", {"text": text})

    def choose(self, selector, value):
        """Choose an option of a select by its value."""
        self.click(f"{selector} option[value='{value}']")

    def slide(self, selector, presses):
        """Press the right arrow in a slider, or the left one."""
        self.type(selector, ("\ue014" if presses > 0 else "\ue012") * abs(presses))

    def text(self, selector):
        """The text that is shown."""
        return self.call("GET", f"{self.find(selector)}/text")

    def picture(self):
        """A screenshot of the whole page, as PNG."""
        width, height = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        parameters = {"format": "png", "clip": clip, "captureBeyondViewport": True}
        return base64.b64decode(self.devtools("Page.captureScreenshot", parameters)["data"])

    def messages(self):
        """What the page wrote to its console, errors of all kinds included."""
        return [entry["message"] for entry in self.call("POST", "/se/log", {"type": "browser"})]


def wait(ready, what, seconds=20):
    """Call until something true is returned."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if value := ready():
                return value
        except (OSError, AssertionError):
            pass
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s for {what}")
