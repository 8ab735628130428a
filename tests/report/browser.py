"""A headless Chromium, driven through the pipe of its DevTools protocol: no network, no driver, no package."""
import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time


def find():
    """The browser's path, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page. Every console message, exception and request is kept in `messages` and `requests`."""

    def __init__(self, executable):
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        self._profile = tempfile.TemporaryDirectory()
        self.messages, self.requests = [], []
        self._pending, self._next = b"", 0

        def descriptors():  # the browser reads commands from 3 and writes answers to 4
            high = [os.dup2(to_browser, 40), os.dup2(from_browser, 41)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [executable, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--no-first-run", "--remote-debugging-pipe", "--host-resolver-rules=MAP * ~NOTFOUND",
             f"--user-data-dir={self._profile.name}", "about:blank"],
            close_fds=False, preexec_fn=descriptors, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def close(self):
        os.close(self._write)  # the browser ends when nobody can command it
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        self._profile.cleanup()

    def _receive(self, seconds):
        """The next message of the browser, or None when none came in time."""
        deadline = time.monotonic() + seconds
        while b"\0" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                return None
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser ended"
            self._pending += piece
        message, self._pending = self._pending.split(b"\0", 1)
        message = json.loads(message)
        name, values = message.get("method"), message.get("params", {})
        if name == "Runtime.consoleAPICalled":
            self.messages.append(" ".join(str(one.get("value", one.get("description"))) for one in values["args"]))
        elif name == "Runtime.exceptionThrown":
            self.messages.append(json.dumps(values["exceptionDetails"])[:600])
        elif name == "Log.entryAdded":
            self.messages.append(values["entry"]["text"])
        elif name == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"][:200])
        return message

    def call(self, method, seconds=120, **values):
        self._next += 1
        command = {"id": self._next, "method": method, "params": values}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while True:
            message = self._receive(seconds)
            assert message is not None, f"{method}: no answer in {seconds} s"
            if message.get("id") == self._next:
                assert "error" not in message, f"{method}: {message.get('error')}"
                return message["result"]

    def run(self, expression):
        """The value of a JavaScript expression; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, f"{expression}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def wait_for(self, expression, seconds=120):
        deadline = time.monotonic() + seconds
        while not self.run(expression):
            assert time.monotonic() < deadline, f"{expression} did not come true in {seconds} s: {self.messages}"
            time.sleep(0.1)

    def open(self, path):
        self.call("Page.navigate", url=pathlib.Path(path).resolve().as_uri())
        self.wait_for("document.readyState === 'complete'")

    def look(self, width=1280, height=900, dark=False, medium=""):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", media=medium,
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def screenshot(self, clip=None, scale=1):
        """PNG bytes of a part of the page ({x, y, width, height} in its pixels), or of the whole of it, `scale` times as large. A picture
        has no more than 16,000 rows."""
        if clip is None:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16000 / scale)}
        # For speed: packing twenty million pixels well takes longer than drawing them.
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, optimizeForSpeed=True, clip={**clip, "scale": scale})
        return base64.b64decode(shot["data"])

    def box_of(self, element_id):
        """Returns an element's box on the page, in the form that screenshot() takes."""
        return self.run(f"(() => {{ const box = document.getElementById({json.dumps(element_id)}).getBoundingClientRect();"
                        "return {x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: box.height}; })()")
