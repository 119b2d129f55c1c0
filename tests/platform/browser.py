"""Chromium without a window: what a page says on its console, how wide it gets, and how it looks."""
import html
import pathlib
import re
import shutil
import subprocess
import tempfile

LEAST = 500
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find():
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def open_page(page, width, height, dark=False, picture=None):
    """The lines of the console, the widths of the page's content and of the window, and how many tables do not fit into their boxes. A script is put into a copy, the page has none."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder, "page.html")
        measure = ("<script>addEventListener('load', () => console.log('width ' + document.documentElement.scrollWidth + ' of ' + innerWidth + "
                   "', cut ' + [...document.querySelectorAll('.wide')].filter(box => box.scrollWidth > box.clientWidth).length))</script>")
        text = pathlib.Path(page).read_text().replace("</body>", f"{measure}</body>")
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
