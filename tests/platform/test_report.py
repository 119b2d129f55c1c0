"""Tests the report, a single self-contained file, and the comparison of two folders."""
import html
import html.parser
import json
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree

import browser
from bench import Case

PROGRAM = r'''
import json, sys
ranks, batch, seed, out = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
rate = 100 * ranks ** 0.8 * (1 + 0.01 * seed) * float(sys.argv[5])
epochs = [dict(epoch=n, train_loss=2 / n, val_loss=2.2 / n, val_accuracy=1 - 0.6 / n, samples=1000, train_seconds=1000 / rate) for n in range(1, 8)]
total = 7000 / rate
json.dump(dict(format=1, world_size=ranks, samples=7000, train_seconds=total, samples_per_second=rate, compute_seconds=0.7 * total / ranks ** 0.1,
               mean_train_seconds=total, mean_compute_seconds=0.7 * total / ranks ** 0.1, mean_communication_seconds=0.05 * ranks * total,
               mean_data_wait_seconds=0.03 * total, communication_seconds=0.9 * total, communication_bytes=1000 * ranks, data_wait_seconds=0.03 * total, phases={},
               epochs=epochs, annotations={}), open(out, "w"))
'''

FILE = """
muster-bench: 1
name: report
title: A report <of> everything & more
prices: {{currency: USD, cpu-hour: 0.05}}
goal: {{metric: accuracy, value: 0.85}}
templates:
  train:
    command: "{python} {{here}}/train.py {{ranks}} {{batch}} {{seed}} {{output}}/t.json {scale}"
    inputs: ["{{here}}/train.py"]
    read: [{{tracker: t.json}}]
  sizes:
    command: ["sh", "-c", "cat {{here}}/b.json"]
    read: [{{benchmark: log.txt, rows: '^(\\w+/\\w+)/\\d+/(\\d+)'}}]
  bad: {{command: ["sh", "-c", "echo '<script>alert(1)</script>'; exit 3"]}}
experiments:
  scaling: {{template: train, parameters: {{batch: 32}}, sweep: {{ranks: [1, 2, 4]}}, repeats: 5}}
  batches: {{template: train, parameters: {{ranks: 2}}, sweep: {{batch: [32, 64, 128]}}}}
  sizes: {{template: sizes, sweep: {{ranks: [2]}}}}
  bad: {{template: bad}}
"""


class Page(html.parser.HTMLParser):
    """A parser that checks balanced tags and collects ids and links."""
    ALONE = {"meta", "link", "br", "path", "use", "rect"}

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.tags = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "xlink:href"):
                self.links.append(value)
        if tag not in self.ALONE:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.ALONE:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.ALONE:
            assert self.open.pop() == tag, tag


class Made(Case):
    def make(self, scale=1.0, out="out"):
        self.write("train.py", PROGRAM)
        self.write("b.json", json.dumps({"benchmarks": [{"name": f"allreduce/{contender}/2/{4 ** n}", "real_time": 4 ** n / speed + 5,
                                                         "time_unit": "us"} for n in range(1, 9) for contender, speed in
                                                        (("muster_shm", 90), ("openmpi", 40))]}))
        path = self.write("report.yaml", FILE.format(python=sys.executable, scale=scale))
        return self.bench("run", path, "--out", out, status=1)


class Report(Made):
    def test_one_file_with_all_in_it(self):
        self.make()
        text = (self.folder / "out" / "report.html").read_text()
        page = Page(text)
        self.assertEqual(page.open, [])
        self.assertEqual(len(page.ids), len(set(page.ids)))
        for link in page.links:
            self.assertTrue(link.startswith(("#", "data:")), link)
        for link in page.links:
            if link.startswith("#"):
                self.assertIn(link[1:], page.ids)
        self.assertNotIn("script", page.tags)
        self.assertNotRegex(re.sub(r'xmlns(:\w+)?="[^"]*"', "", text), "https?:")
        self.assertIn("A report &lt;of&gt; everything &amp; more", text)
        self.assertIn("&lt;script&gt;alert(1)", text)
        self.assertNotRegex(text, "#0a0[bc]")
        captions = re.findall("<figcaption>(.*?)</figcaption>", text)
        for wanted in ("scaling: training loss over time", "scaling: validation accuracy over time",
                       "scaling: speed-up of the time to accuracy, against one rank", "scaling: where the time goes, the mean over the ranks",
                       "scaling: cost to the goal, least to most", "batches: throughput over batch", "sizes: allreduce, time over size, 2 ranks"):
            self.assertIn(wanted, captions)
        figures = self.folder / "out" / "figures"
        files = {path.name: path.read_text() for path in figures.iterdir()}
        self.assertEqual(len(files), len(captions))
        (figures / "mine.svg").write_text("mine")
        self.bench("run", self.folder / "report.yaml", "--out", "out", status=1)
        self.assertEqual({path.name for path in figures.iterdir()}, {*files, "mine.svg"})
        self.assertIn("sizes-allreduce-time-over-size-2-ranks.svg", files)
        for name, picture in files.items():
            with self.subTest(name=name):
                root = xml.etree.ElementTree.fromstring(picture)
                colours = root.find("{http://www.w3.org/2000/svg}style").text
                for variable in set(re.findall(r"var\((--\w+)\)", picture)):
                    self.assertIn(f"{variable}: #", colours)
        self.assertIn("goal 0.85", text)
        self.assertIn("ideal", text)

    def test_figures_are_right(self):
        self.make()
        rows = {(row["experiment"], row["ranks"]): row for row in self.results("summary.csv") if row["experiment"] == "scaling"}
        four = rows["scaling", "4"]
        self.assertAlmostEqual(float(four["speedup_rank"]), 4 ** 0.8)
        self.assertAlmostEqual(float(four["efficiency_rank"]), 4 ** 0.8 / 4)
        self.assertAlmostEqual(float(four["speedup_time_rank"]), 4 ** 0.8)
        self.assertAlmostEqual(float(four["price_index"]), 4 / 4 ** 1.6)
        self.assertAlmostEqual(float(four["time_to_accuracy_median"]), 4000 / (100 * 4 ** 0.8 * 1.03))
        self.assertAlmostEqual(float(four["cost_median"]), 4000 / (100 * 4 ** 0.8 * 1.03) / 3600 * 4 * 0.05)
        self.assertAlmostEqual(float(four["throughput_min"]), 100 * 4 ** 0.8 * 1.01)
        self.assertEqual(four["communication_share_median"], "0.2")
        parts = [float(four[f"{part}_share_median"]) for part in ("computation", "communication", "data_wait", "other")]
        self.assertAlmostEqual(sum(parts), 1)

    def test_tables_as_published(self):
        """Checks mini-batches a second for the trainers, without servers; on the page and on the terminal."""
        path = self.experiment(["sh", "-c", "echo rate=$(({trainers} * {batch} * (12 - {trainers}) * {k}))"],
                               sweep="{mode: [fast, slow], trainers: [1, 2, 10]}", template="read: [{log: {throughput: 'rate=(\\S+)'}}]",
                               experiment="parameters: {batch: 32, ranks: 3}\n    follows: {k: {mode: {fast: 2, slow: 1}}}", top="""
tables:
  - {title: Efficiency, about: 20 servers, experiment: only, unit: mini-batches / s, per: batch, columns: trainers, rows: [mode], speed-up: true,
     published: {theirs: {1: 5, 10: 7.5}}}""")
        done = self.run_file(path)
        lines = [line.split("  ") for line in done.stdout.splitlines()]
        self.assertIn(["Efficiency (20 servers; mini-batches / s)"], lines)
        output = "\n".join(" ".join(line.split()) for line in done.stdout.splitlines())
        for line in ("trainers 1 2 10", "fast 22 40 40", "fast, S = T1 / TN 1 1.818 1.818", "fast, E = S / N 1 0.9091 0.1818",
                     "slow 11 20 20", "theirs 5 - 7.5"):
            self.assertIn(line, output)
        page = self.told()
        for line in ("Efficiency (20 servers; mini-batches / s)", "fast, E = S / N 1 0.9091 0.1818", "theirs 5 - 7.5"):
            self.assertIn(line, page)
        for wrong, says in (("columns: trainer,", "did you mean 'trainers'"), ("experiment: onli,", "did you mean 'only'"), ("rows: [modes]", "did you mean 'mode'")):
            key = wrong.split(":")[0]
            text = path.read_text()
            broken = self.write("broken.yaml", re.sub(key + r": (\[mode\]|\w+,)", wrong, text[:text.index("templates:")]) + text[text.index("templates:"):])
            self.refused("run", broken, "--dry-run", says=["table 1", says])

    def test_the_report_of_the_first_worker_stands_for_all(self):
        """Checks that a worker beside servers counts its own samples."""
        report = json.dumps({"format": 1, "world_size": 1, "samples": 100, "train_seconds": 4, "samples_per_second": 25, "epochs": [],
                             "annotations": {"mode": "ps", "workers": "3"}})
        self.run_file(self.experiment(["sh", "-c", f"echo '{report.replace('{', '{{').replace('}', '}}')}' >{{output}}/t.json"], template="read: [{tracker: t.json}]"))
        self.assertEqual({float(row["throughput"]) for row in self.results()}, {75.0})

    def test_what_varies_within_a_cell_names_its_line(self):
        path = self.experiment(["sh", "-c", "echo rate=$(({batch} * {ranks}))"], sweep="{ranks: [1, 2]}", template="read: [{log: {throughput: 'rate=(\\S+)'}}]",
                               experiment="parameters: {mode: a}\n    cases: [{batch: 32, steps: 8}, {batch: 64, steps: 8}]",
                               top="tables: [{experiment: only, columns: ranks, rows: [mode]}]")
        lines = [" ".join(line.split()) for line in self.run_file(path).stdout.splitlines()]
        self.assertTrue({"a, batch 32 32 64", "a, batch 64 64 128"} <= set(lines), lines)

    def test_figures_of_rows_tell_configurations_apart(self):
        self.write("b.json", json.dumps({"benchmarks": [{"name": f"sum/fast/{n}", "real_time": n} for n in (1, 2)]}))
        self.run_file(self.experiment(["cat", "{here}/b.json"], sweep="{k: [3, 4]}", template="read: [{benchmark: log.txt}]"))
        picture, = (self.folder / "out" / "figures").glob("*time-over-size*")
        for label in ("fast, k 3", "fast, k 4"):
            self.assertIn(f">{label}<", picture.read_text())

    def told(self):
        """Returns the text of the page, without its tags and figures."""
        text = (self.folder / "out" / "report.html").read_text()
        return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", re.sub(r"<(style|svg).*?</\1>", "", text, flags=re.S)).split()))

    def test_a_speed_up_of_times_is_of_less(self):
        path = self.experiment(["sh", "-c", "echo seconds=$((40 / {ranks}))"], sweep="{ranks: [1, 4]}", template="read: [{log: {seconds: 'seconds=(\\S+)'}}]", top="""
tables: [{experiment: only, columns: ranks, measure: seconds, speed-up: true}]""")
        output = "\n".join(" ".join(line.split()) for line in self.run_file(path).stdout.splitlines())
        for line in ("S = T1 / TN 1 4", "E = S / N 1 1"):
            self.assertIn(line, output)
        text = path.read_text()
        for more, says in (("per: {n}", "unknown"), ("per: where", "is 'here' in only")):
            broken = self.write("broken.yaml", text.replace("measure: seconds,", f"measure: seconds, {more},".replace("{n}", "n")).replace("    sweep:", "    parameters: {where: here}\n    sweep:"))
            self.refused("run", broken, "--dry-run", says=says)

    def test_it_opens_with_three_sentences(self):
        self.make()
        text = (self.folder / "out" / "report.html").read_text()
        self.assertLess(text.index('class="lead"'), text.index('class="facts"'))
        page_text = self.told()
        self.assertRegex(page_text, r"scaling : 4 ranks reached the goal first: 12\.81 s, the median of 5 runs\. That is 1\.74 times as good as the next, "
                         r"2 ranks \(22\.3 s\)\. That (exceeds|is within) the noise \(it may be 1\.67 to 1\.81 times; the machine's noise was [\d.,]+%\)\.")
        self.assertRegex(page_text, r"batches : .* the median of 1 run\. .* Whether that exceeds the noise cannot be said \(it takes 5 runs of each\)")
        self.assertIn("run 5 times, with seeds 1 to 5", page_text)
        self.assertIn("throughput, samples/s", page_text)
        self.assertIn("cost, USD", page_text)
        self.assertIn("communicating, %", page_text)
        self.assertRegex(page_text, r"libraries \d+ of them|libraries lib")
        self.assertNotIn("noisy:", page_text)

    def test_what_is_noisy_is_marked(self):
        """Checks a run that is faster than ideal and takes less than a second."""
        report = ("import json, sys; n, s = int(sys.argv[1]), 0.9 / int(sys.argv[1]) ** 2; epochs = [dict(epoch=k, val_accuracy=0.5, train_seconds=s / 2) for k in (1, 2)]; "
                  "json.dump(dict(format=1, world_size=n, samples=1234567, train_seconds=s, samples_per_second=1234567 / s, compute_seconds=0.9 * s, "
                  "communication_seconds=0.6 * s, communication_bytes=4000000, phases={}, epochs=epochs, annotations={}), open(sys.argv[2], 'w'))")
        self.write("report.py", report)
        path = self.experiment([sys.executable, str(self.folder / "report.py"), "{ranks}", "{output}/t.json"], sweep="{ranks: [1, 2]}",
                               template="read: [{tracker: t.json}]", top="goal: {metric: accuracy, value: 0.9}")
        self.run_file(path)
        page_text = self.told()
        self.assertIn("No run reached the goal (accuracy 0.9); 2 ranks had the highest throughput: 5,487,000 samples/s, the median of 1 run.", page_text)
        self.assertIn("noisy: under 1 s, above ideal", page_text)
        self.assertIn("against one rank; noisy: 2 of 2 under 1 s, 1 of 2 above ideal", page_text)
        self.assertEqual(page_text.count("goal not reached"), 2)
        text = (self.folder / "out" / "report.html").read_text()
        self.assertNotIn("of each at the rank", text)  # the axis whose title was cut

    def test_what_misses_the_goal_has_no_price_and_what_is_not_drawn_is_said(self):
        program = ("import json, sys; n, out = int(sys.argv[1]), sys.argv[2]; "
                   "epochs = [dict(epoch=k, train_loss=1 / k, val_loss=1 / k, val_accuracy=k / (n + 1), train_seconds=1.0) for k in (1, 2, 3)]; "
                   "json.dump(dict(format=1, world_size=1, samples=30, train_seconds=3.0, samples_per_second=10.0, compute_seconds=2.0, "
                   "communication_seconds=0.5, communication_bytes=1, data_wait_seconds=0.1, phases={}, epochs=epochs, annotations={}), open(out, 'w'))")
        self.write("train.py", program)
        path = self.experiment([sys.executable, str(self.folder / "train.py"), "{n}", "{output}/t.json"], sweep="{n: {from: 1, to: 10}}",
                               template="read: [{tracker: t.json}]",
                               top="goal: {metric: accuracy, value: 0.5}\nprices: {currency: USD, cpu-hour: 0.05}")
        self.run_file(path)
        rows = self.results("summary.csv")
        for n, row in enumerate(rows, 1):  # the third epoch has 3 / (n + 1)
            self.assertEqual([row["cost_median"] != "", row["time_to_accuracy_median"] != ""], [n <= 5] * 2, n)
        captions = re.findall("<figcaption>(.*?)</figcaption>", (self.folder / "out" / "report.html").read_text())
        self.assertIn("only: cost to the goal, least to most; 5 did not get there", captions)
        self.assertIn("only: training loss over time (the first 8 of 10)", captions)

    def test_in_a_browser(self):
        if browser.find() is None:
            self.skipTest("SKIPPED: no chromium is installed")
        self.make()
        for width, dark in ((1200, False), (1200, True), (390, False), (390, True)):
            console, (content, window, cut) = browser.open_page(self.folder / "out" / "report.html", width, 900, dark)
            self.assertEqual(console, [])
            self.assertLessEqual(content, window, f"at {width} pixels the page is wider than the window")
            if width == 1200:
                self.assertEqual(cut, 0, "tables whose last columns are out of sight")


class Compared(Made):
    def measured_noise(self, share):
        """Sets the machine's noise of both folders to this value, so that noise during the test has no effect."""
        for out in ("out", "slow"):
            path = self.folder / out / "results.json"
            found = json.loads(path.read_text())
            for number, run in enumerate(found["runs"]):
                if run["status"] == "ok":
                    self.assertGreater(run["machine_seconds"], 0)
                run["machine_seconds"] = 1 + share * (number % 2)
            path.write_text(json.dumps(found))

    def test_two_folders(self):
        self.make()
        self.make(0.5, "slow")
        self.measured_noise(0.03)
        same = self.bench("compare", "out", "out", "--fail-on-slower")
        self.assertNotIn("slower", same.stdout)
        done = self.bench("compare", "out", "slow", "--html", "c.html", "--fail-on-slower", status=5)
        self.assertRegex(done.stdout, r"scaling, batch 32, 1 rank +throughput .* 0\.500 \(.*\) +3\.0% +slower")
        self.assertRegex(done.stdout, r"batches, batch 32, 2 ranks +throughput .* not enough runs")
        self.assertRegex(done.stdout, r"1 rank +communication_share .* 1\.000 \(.* within noise")
        self.assertIn("the machine's noise: 3.0%", done.stdout)
        page = Page((self.folder / "c.html").read_text())
        self.assertEqual(page.open, [])
        self.measured_noise(1.2)
        noisy = self.bench("compare", "out", "slow", "--fail-on-slower")
        self.assertRegex(noisy.stdout, r"scaling, batch 32, 1 rank +throughput .* 0\.500 \(.*\) +120\.0% +within noise")
        self.refused("compare", "out", "nowhere", says="has no results")

    def test_a_goal_that_is_missed_and_runs_that_crash_are_worse(self):
        self.write("report.py", "import json, sys; value = float(sys.argv[1]); json.dump(dict(format=1, world_size=1, samples=100, train_seconds=2.0, "
                   "samples_per_second=50.0, epochs=[dict(epoch=1, val_accuracy=value, train_seconds=2.0)]), open(sys.argv[2], 'w')); sys.exit(value < 0.5)")
        for out, accuracy in (("old", 0.805), ("missed", 0.795), ("crashed", 0)):
            path = self.experiment([sys.executable, str(self.folder / "report.py"), str(accuracy), "{output}/t.json"], sweep="{n: [1]}", experiment="repeats: 5",
                                   template="read: [{tracker: t.json}]", top="goal: {metric: accuracy, value: 0.8}")
            self.bench("run", path, "--out", out, status=1 if accuracy == 0 else 0)
        for out, says in (("missed", r"runs that reached the goal +5 +0 .* worse"), ("crashed", r"runs that ended well +5 +0 .* worse")):
            self.assertRegex(self.bench("compare", "old", out, "--fail-on-slower", status=5).stdout, says)
            self.bench("compare", out, "old", "--fail-on-slower", "--html", "c.html")
            self.assertIn("better", (self.folder / "c.html").read_text())

    def test_a_measure_of_the_file_is_shown_and_compared(self):
        for out, factor in (("out", 1), ("slow", 2)):
            path = self.experiment(["sh", "-c", f"echo rate=$(({factor} * (100 + {{seed}}))) samples/s: 7"], sweep="{n: [1]}", experiment="repeats: 5",
                                   template="read: [{log: {rate: 'rate=(\\d+)', throughput: '/s: (\\d+)'}}]")
            self.bench("run", path, "--out", out)
        self.assertIn(">rate<", (self.folder / "out" / "report.html").read_text())
        self.measured_noise(0.03)
        self.assertRegex(self.bench("compare", "out", "slow", "--fail-on-slower").stdout, r"only, n 1, 1 rank +rate .* 2\.000 \(.* higher")

    def test_two_revisions(self):
        git = ["git", "-c", "user.name=t", "-c", "user.email=t@t"]
        for rate in (100, 200):
            self.write("build/rate.sh", f"echo rate={rate}")
            subprocess.run(git + (["init", "-q", "."] if rate == 100 else ["status", "-s"]), cwd=self.folder, check=True, capture_output=True)
            subprocess.run([*git, "add", "build"], cwd=self.folder, check=True)
            subprocess.run([*git, "commit", "-qm", str(rate)], cwd=self.folder, check=True)
        path = self.experiment(["sh", "{build}/rate.sh"], top="places: {build: build}", sweep="{n: [1, 2]}", experiment="repeats: 5",
                               template="inputs: ['{build}/rate.sh']\n    read: [{log: {throughput: 'rate=(\\d+)'}}]")
        done = self.bench("revisions", path, "HEAD~1", "HEAD", "--out", "both", "--build", "test -d build")
        self.assertRegex(done.stdout, r"n 1, .* throughput +100 \(.* 200 \(.* 2\.000 \(.*\) +run in turns +faster")
        old, new = (sorted((run["began"], run["repeat"]) for run in json.loads((folder / "results.json").read_text())["runs"])
                    for folder in sorted((self.folder / "both").glob("results-*")))
        self.assertTrue(all(max(old[2 * k + 1], new[2 * k + 1]) < min(old[2 * k + 2], new[2 * k + 2]) for k in range(4)))
        done = self.bench("revisions", path, "HEAD~1", "HEAD", "--out", "part", "--build", "true", "--only", "n=2")
        self.assertNotIn("n 1,", done.stdout)
        self.refused("revisions", path, "HEAD~1", "nothing", "--out", "both", "--build", "true", says="no revision 'nothing'")
        self.refused("revisions", path, "HEAD~1", "HEAD", "--out", "other", "--build", "false", says="was not built")

    def test_two_builds(self):
        for name, rate in (("before/release", 100), ("after/release", 200)):
            self.write(f"{name}/rate.sh", f"echo rate={rate}")
        path = self.experiment(["sh", "{build}/rate.sh"], top="places: {build: nowhere}", sweep="{n: [1]}", experiment="repeats: 5",
                               template="inputs: ['{build}/rate.sh']\n    read: [{log: {throughput: 'rate=(\\d+)'}}]")
        done = self.bench("revisions", path, "before/release", "after/release", "--out", "both", "--noise")
        itself, other = done.stdout.split("before/release and after/release\n")
        self.assertIn("before/release and itself\n", itself)
        self.assertRegex(itself, r"n 1, .* throughput +100 \(.* 100 \(.* 1\.000 \(.*\) +run in turns +within noise")
        self.assertRegex(other, r"n 1, .* throughput +100 \(.* 200 \(.* 2\.000 \(.*\) +run in turns +faster")
        began = [sorted((run["repeat"], run["began"]) for run in json.loads((self.folder / f"both/results-{side}/results.json").read_text())["runs"])
                 for side in (1, 2, 3)]   # the third repeats the first
        self.assertTrue(all(max(side[k][1] for side in began) < min(side[k + 1][1] for side in began) for k in range(4)))
        self.refused("revisions", path, "before/release", "before", "--out", "other", says="rate.sh")


if __name__ == "__main__":
    unittest.main()
