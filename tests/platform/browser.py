"""Chromium without a window: the console of a page, its width, its appearance, and its reactions to input."""
import asyncio
import base64
import html
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

LEAST = 500
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find():
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def open_page(page, width, height, dark=False, picture=None):
    """Returns the lines of the console, the widths of the page's content and of the window, and the number of tables
    that exceed their boxes. The script is inserted into a copy, because the page has none."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder, "page.html")
        measure = ("<script>addEventListener('load', () => console.log('width ' + document.documentElement.scrollWidth + ' of ' + innerWidth + "
                   "', cut ' + [...document.querySelectorAll('.wide')].filter(box => box.scrollWidth > box.clientWidth).length))</script>")
        text = pathlib.Path(page).read_text().replace("</body>", f"{measure}</body>").replace("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'")
        if width < LEAST:  # no window is as narrow as a phone, but a frame can be
            text = (f'<!doctype html><meta name="color-scheme" content="light dark"><style>body {{ margin: 0 }} iframe {{ border: 0 }}'
                    f'</style><iframe width="{width}" height="{height}" srcdoc="{html.escape(text, quote=True)}"></iframe>')
        copy.write_text(text)
        words = [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage",
                 f"--user-data-dir={folder}/profile", "--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND",
                 f"--window-size={width},{height}", *(["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else
                                                      ["--blink-settings=preferredColorScheme=1"]),
                 f"--screenshot={picture or folder + '/picture.png'}", copy.as_uri()]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    lines = re.findall(r'CONSOLE[^\]]*\] "(.*?)", source', done.stderr)
    widths = [tuple(map(int, match)) for line in lines for match in re.findall(r"^width (\d+) of (\d+), cut (\d+)$", line)]
    if not widths:
        raise RuntimeError(f"the page was not loaded: {done.stderr[-2000:]}")
    return [line for line in lines if not line.startswith("width ")], widths[-1]


class Page:
    """A page of a server, driven by the protocol of Chromium's developer tools: async with Page(url) as page."""

    def __init__(self, url, width=1400, height=1000, dark=False):
        self._url, self._size, self._dark, self._number = url, (width, height), dark, 0
        self.console = []    # unexpected messages of the page

    async def __aenter__(self):
        import aiohttp  # imported here: most tests need none
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._process = subprocess.Popen([find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage", "--no-first-run",
                                          f"--user-data-dir={self._folder.name}", "--remote-debugging-port=0", "--remote-allow-origins=*",
                                          "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._session = aiohttp.ClientSession()
        port = pathlib.Path(self._folder.name, "DevToolsActivePort")
        for _ in range(600):
            if port.exists() and len(lines := port.read_text().split()) == 2:
                break
            await asyncio.sleep(0.1)
        async with self._session.get(f"http://127.0.0.1:{lines[0]}/json/list") as answer:
            to = next(target["webSocketDebuggerUrl"] for target in await answer.json() if target["type"] == "page")
        self._socket = await self._session.ws_connect(to, max_msg_size=0)
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.resize(*self._size, self._dark)
        await self.call("Page.navigate", url=self._url)
        return self

    async def __aexit__(self, *_):
        await self._session.close()
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    async def call(self, method, **parameters):
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json(timeout=60)
            if message.get("method") == "Runtime.exceptionThrown":
                self.console.append(message["params"]["exceptionDetails"].get("exception", {}).get("description") or message["params"]["exceptionDetails"]["text"])
            elif message.get("method") == "Log.entryAdded":
                entry = message["params"]["entry"]
                self.console.append(f"{entry['text']} {entry.get('url', '')}")
            elif message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(message["error"]["message"])
                return message["result"]

    async def resize(self, width, height, dark=False):
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < LEAST)
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    async def value(self, script):
        """Returns the value of an expression."""
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"]["description"])
        return found["result"].get("value")

    async def until(self, script, seconds=60):
        """Waits until an expression is true."""
        end = time.monotonic() + seconds
        while not (found := await self.value(f"(() => {{ try {{ const found = {script}; return found instanceof Node || found }} catch {{ return null }} }})()")):
            if time.monotonic() > end:
                raise RuntimeError(f"the page never came to {script}; it said {self.console} and shows: {(await self.value('document.body.innerText'))[:3000]}")
            await asyncio.sleep(0.1)
        return found

    async def press(self, key):
        """Presses a key like a user."""
        for kind in ("rawKeyDown", "char", "keyUp") if key == "Enter" else ("rawKeyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode={"Enter": 13, "Tab": 9, "Escape": 27}[key], **({"text": "\r"} if kind == "char" else {}))

    async def picture(self, path, whole=False):
        found = await self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        pathlib.Path(path).write_bytes(base64.b64decode(found["data"]))
