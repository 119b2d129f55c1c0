"""The dashboard's page, used as a person does: by Chromium without a window (MUSTER_TEST_PICTURES names a folder for what it looked like)."""
import asyncio
import json
import os
import pathlib
import unittest

import browser
from dashboard import Served

PICTURES = os.environ.get("MUSTER_TEST_PICTURES")


@unittest.skipUnless(browser.find(), "SKIPPED: no chromium is installed")
class Used(Served):
    def use(self, steps, **how):
        """Runs `steps(page)`; nothing may be on the page's console afterwards."""
        async def run():
            async with browser.Page(self.url + "/", **how) as page:
                await steps(page)
                self.assertEqual(page.console, [])
        asyncio.run(run())

    async def picture(self, page, name):
        """Of both widths, and in the dark; nothing is wider than the window."""
        for width, dark in ((1400, False), (1400, True), (390, False), (390, True)):
            await page.resize(width, 1000, dark)
            self.assertLessEqual(await page.value("document.documentElement.scrollWidth"), width, name)
            if PICTURES:
                await asyncio.sleep(0.3)
                await page.picture(pathlib.Path(PICTURES, f"{name}-{width}{'-dark' if dark else ''}.png"))
        await page.resize(1400, 1000)

    async def start(self, page, name, epochs, seconds):
        """By the keyboard: the button has the focus, Enter presses it, the form is filled in, Enter sends it."""
        await page.value("document.querySelector('[data-do=open-start]').focus()")
        await page.press("Enter")
        await page.until("document.querySelector('#start').open && document.querySelector('#what').options.length > 1")
        fields = {"command": f"python3 {self.training} {epochs} {seconds} tracker.json", "name": name, "ranks": "1", "metric": "accuracy", "value": "0.7"}
        await page.value(f"Object.entries({json.dumps(fields)}).forEach(([name, value]) => {{ document.querySelector(`#start [name=${{name}}]`).value = value; }})")
        await page.value("document.querySelector('#start [name=value]').focus()")
        await page.press("Enter")
        await page.until(f"!document.querySelector('#start').open && document.querySelector('main h1')?.textContent === {json.dumps(name)}")

    def test_from_the_start_to_a_comparison(self):
        self.serve()

        async def steps(page):
            await page.until("document.querySelector('main h1')?.textContent === 'No runs yet'")
            await self.start(page, "first <i>one</i>", 2000, 0.1)
            await page.until("document.querySelector('#curves svg path') && document.querySelector('#workers svg path')")
            drawn = await page.value("document.querySelector('#curves svg path').getAttribute('d')")
            await page.until(f"document.querySelector('#curves svg path').getAttribute('d') !== {json.dumps(drawn)}")    # it is live
            await page.until("document.querySelector('#tiles').innerText.includes('To accuracy 0.7') && document.querySelector('#log').textContent.includes('  0.7000')")
            await page.until("document.title.startsWith('1 running')")
            await self.picture(page, "live")
            await page.value("document.querySelector('[data-do=stop]').focus()")
            await page.press("Enter")
            await page.until("document.querySelector('[data-do=continue]') && document.querySelector('.head .state').textContent === 'stopped'")
            await self.start(page, "second", 6, 0.1)
            await page.until("document.querySelector('.head .state').textContent === 'ok' && document.querySelector('.bar i')")
            await page.until("[...document.querySelectorAll('#files a')].some(link => link.textContent === 'report.html')")
            await self.picture(page, "run")
            await page.value("(select => { select.selectedIndex = 1; select.dispatchEvent(new Event('change', {bubbles: true})); })(document.querySelector('[data-do=compare]'))")
            await page.until("document.querySelector('main h1').textContent === 'A and B' && document.querySelectorAll('#curves svg path').length >= 4")
            self.assertIn("training loss", await page.until("document.querySelector('#table tbody').innerText"))
            await self.picture(page, "compare")
            self.assertEqual(await page.value("document.querySelectorAll('main i:not([style]), #list i').length"), 0, "a name is no HTML")
            await page.value("(box => { box.value = 'stopped'; box.dispatchEvent(new Event('input')); })(document.querySelector('#filter'))")
            await page.until("document.querySelectorAll('#list a').length === 1")
        self.use(steps)

    def test_what_failed_what_is_refused_and_a_trace(self):
        self.serve()
        self.made("done", "made-12345678", {"throughput": 5.0})
        self.ask("/api/v2/spans", [{"traceId": "a" * 16, "id": f"{n:016x}", **({"parentId": f"{1:016x}"} if n > 1 else {}), "name": name, "timestamp": 1_700_000_000_000_000 + at, "duration": took,
                                    "localEndpoint": {"serviceName": service}} for n, name, at, took, service in (
            (1, "Invoke all trainers", 0, 900_000, "driver"), (2, "Training a model", 30_000, 300_000, "trainer"), (3, "Train the meta model", 400_000, 450_000, "metatrainer"))], 202)
        folder = self.ask("/api/runs", {"command": "sh -c 'echo 27 Kelvin is too cold; exit 3'", "name": "cold"}, 201)["folder"]
        row = self.row(folder, "crash")

        async def steps(page):
            await page.until("document.querySelector('.why')?.textContent.includes('27 Kelvin is too cold')")     # the latest is shown first
            await self.picture(page, "failed")
            await page.value("document.querySelector('[data-kind=failed]').click()")
            await page.until("document.querySelectorAll('#list a').length === 1")
            await page.value(f"location.hash = '#/run/{row['folder']}/nothing'")
            await page.until("document.querySelector('#said').textContent.includes('there is no run')")
            page.console.clear()     # the answer's status
            await page.value("document.querySelector('[data-do=open-start]').click()")
            await page.until("document.querySelector('#start').open")
            await page.value("document.querySelector('#start [name=command]').value = 'no-such-program'; document.querySelector('[data-do=start]').click()")
            await page.until("document.querySelector('#refused').textContent.includes('there is no such program')")
            page.console.clear()
            await page.press("Escape")
            await page.until("!document.querySelector('#start').open")
            await page.value("location.hash = '#/traces'")
            await page.until("document.querySelector('#table a')?.textContent === 'Invoke all trainers'")
            await page.value("document.querySelector('#table a').click()")
            await page.until("document.querySelectorAll('.fall i').length === 3")
            await self.picture(page, "trace")
        self.use(steps)

    def test_with_a_token(self):
        self.serve("--token", "s3cret")
        self.token = "s3cret"
        self.made("done", "made-12345678", {"throughput": 5.0})

        async def steps(page):
            await page.call("Page.navigate", url=f"{self.url}/?token=s3cret")
            await page.until("document.querySelectorAll('#list a').length === 1")
            self.assertEqual(await page.value("location.search"), "")
            page.console.clear()     # of the first address, without the token
        self.use(steps)


if __name__ == "__main__":
    unittest.main()
