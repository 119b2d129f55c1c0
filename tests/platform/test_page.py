"""Tests the dashboard's page like a user, by Chromium without a window (MUSTER_TEST_PICTURES names a folder for
screenshots)."""
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
    def use(self, steps, **options):
        """Runs `steps(page)`; the page's console must be empty afterwards."""
        async def run():
            async with browser.Page(f"{self.url}/?token={self.token}", **options) as page:
                await steps(page)
                self.assertEqual(page.console, [])
        asyncio.run(run())

    async def picture(self, page, name):
        """Takes pictures in both widths and in dark mode; nothing may be wider than the window."""
        for width, dark in ((1400, False), (1400, True), (390, False), (390, True)):
            await page.resize(width, 1000, dark)
            self.assertLessEqual(await page.value("document.documentElement.scrollWidth"), width, name)
            if PICTURES:
                await asyncio.sleep(0.3)
                await page.picture(pathlib.Path(PICTURES, f"{name}-{width}{'-dark' if dark else ''}.png"))
        await page.resize(1400, 1000)

    async def start(self, page, name, epochs, seconds):
        """Starts a run by the keyboard: the button has the focus, Enter presses it, the form is filled in, Enter sends
        it."""
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
            # the page updates itself
            await page.until(f"document.querySelector('#curves svg path').getAttribute('d') !== {json.dumps(drawn)}")
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
            page.console.clear()     # contains the status of the reply
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

    def test_the_token_leaves_the_address(self):
        self.serve()
        self.made("done", "made-12345678", {"throughput": 5.0})

        async def steps(page):
            await page.until("document.querySelectorAll('#list a').length === 1")
            self.assertEqual(await page.value("location.search"), "")
        self.use(steps)

    def test_hostile_names_are_text(self):
        """Checks every field that a run, a worker or a span may set, and the file names."""
        self.serve()
        evil = """<img src=x onerror="window.pwned=1" data-evil><iframe srcdoc="<script>parent.pwned=1</script>"></iframe>'">&<b data-evil data-do=stop>"""
        numbers = {evil: 5.0, f"phase_{evil}_seconds": 3.0, "train_seconds": 4.0, **{f"mean_{name}_seconds": 1.0 for name in ("compute", "communication", "data_wait")}}
        epochs = [{"epoch": n, "train_loss": 1 / n, "val_accuracy": 0.5, "seconds": n, evil: 1.0} for n in (1, 2, 3)]
        for name in ("made-12345678", "made-12345679"):
            home = self.made("done", name, numbers, "ok", evil, epochs, **{evil: evil})
            for file, change in ((home / "config" / "run.json", {"experiment": evil, "words": [evil], "environment": {evil: evil}}),
                                 (home / "result" / "result.json", {"rows": [{"row": evil, "metrics": {"seconds": 1.0}}], "settings": {evil: evil}}),
                                 (self.runs / "done" / "muster-bench.json", {"content": {"name": evil, "title": evil, "goal": {"metric": "accuracy", "value": 0.4}}})):
                file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
            (home / "output" / "1" / evil.replace("/", "")).write_text("")
            (home / "output" / "1" / "log.txt").write_text(evil)
            (home / "output" / "1" / "posted.jsonl").write_text("".join(json.dumps({"at": at, "worker": evil, "metrics": {evil: at}}) + "\n" for at in (1, 2)))
            (home / "output" / "1" / "trace.json").write_text("".join(json.dumps(
                {"name": text, "cat": category, "pid": 0, "ts": 1, "dur": 5, "args": {"number": 1, evil: evil}}, separators=(",", ":")) + ",\n" for text, category in (("step", "step"), (evil, evil))))
        crash = self.made("done", "crash-12345678", {}, evil, evil)
        (crash / "output" / "1" / "log.txt").write_text(evil)
        (self.runs / "done" / evil.replace("/", "")).write_text("")
        self.ask("/api/v2/spans", [{"traceId": "a" * 16, "id": "1" * 16, "name": evil, "timestamp": 1, "duration": 5, "localEndpoint": {"serviceName": evil}, "tags": {evil: evil}}], 202)

        (self.runs / "flow").mkdir()
        (self.runs / "flow" / "muster-flow.json").write_text(json.dumps({"name": evil}))
        (self.runs / "flow" / "metadata.jsonl").write_text(json.dumps({"event": "end", "step": evil, "state": evil, "why": evil, "at": 1}) + "\n")

        async def steps(page):
            for place, ready in (("run/done/made-12345678", "document.querySelector('#files a') && document.querySelector('#fall i') && document.querySelector('.times')"),
                                 (f"run/done/{crash.name}", "document.querySelector('.why')"), ("compare/done/made-12345678/done/made-12345679", "document.querySelector('#table td')"),
                                 ("workflows", "document.querySelector('#table td')"),
                                 ("traces", "document.querySelector('#table a')"), ("trace/" + "a" * 16, "document.querySelector('.fall i')")):
                await page.value(f"location.hash = '#/{place}'")
                await page.until(ready)
                self.assertIn("data-evil", await page.value("document.querySelector('main').textContent"), "it is shown")
                self.assertEqual(await page.value("[document.querySelectorAll('[data-evil], iframe, img').length, window.pwned]"), [0, None], place)
            self.assertEqual(await page.value("fetch('/api/runs/done/made-12345678/files/output/1/log.txt').then(answer => answer.headers.get('content-type'))"), "text/plain; charset=utf-8")
        self.use(steps)


if __name__ == "__main__":
    unittest.main()
