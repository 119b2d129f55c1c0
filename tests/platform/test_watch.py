"""Tests workflows that start by themselves: for data, a revision and a schedule, one run at a time; and new data that
reach the service."""
import http.client
import json
import os
import shutil
import signal
import subprocess
import threading
import time
import unittest

from flow import Case
from muster_bench.presets.ports import free_port
from test_kill import alive

PATIENCE = 120
try:
    import croniter
except ImportError:
    croniter = None


@unittest.skipIf(shutil.which("snakemake") is None, "SKIPPED: snakemake is not installed")
class Watches(Case):
    def begin(self):
        with open(self.folder / "said", "a") as log_file:
            self.process = subprocess.Popen([*self.runner, "watch", self.file, "--out", "out"], cwd=self.folder, stdout=log_file, stderr=log_file)
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.terminate)

    def end(self):
        """Interrupts the watch, which leaves nothing behind."""
        self.process.send_signal(signal.SIGINT)
        self.assertEqual(self.process.wait(60), 130)

    def said(self):
        return (self.folder / "said").read_text()

    def until(self, done):
        until = time.monotonic() + PATIENCE
        while not done():
            self.assertLess(time.monotonic(), until, self.said())
            self.assertIsNone(self.process.poll(), self.said())
            time.sleep(0.05)

    def logged(self):
        log = self.folder / "log"
        return log.read_text().split() if log.exists() else []

    def git(self, *words):
        subprocess.run(["git", "-C", self.folder / "code", "-c", "user.name=t", "-c", "user.email=t@t", *words], check=True, capture_output=True, timeout=60)

    def ended(self, times):
        self.until(lambda: self.said().count("ended with status 0") == times)

    def test_data_and_revisions(self):
        """Checks that a change starts a run, and that changes during a run start one more."""
        (self.folder / "code").mkdir()
        self.git("init", "-q", "-b", "main")
        self.git("commit", "-q", "--allow-empty", "-m", "one")
        self.file = self.workflow("""
  of-data: {command: [sh, -c, 'echo data-$(cat $1) >> {here}/log; while [ -e {here}/wait ]; do sleep 0.05; done', x, '{rows}'], inputs: {rows: rows}}
  of-code: {command: [sh, -c, 'echo code-$1 >> {here}/log', x, '{commit}']}
""", f"parameters: {{commit: none}}\nwatch: {{data: true, revision: {{repository: {self.folder}/code, branch: main, parameter: commit}}, every: 0.2s}}")
        self.write("rows", "1")
        self.begin()
        self.ended(1)
        self.assertEqual(len(self.logged()), 2)
        self.assertIn("data-1", self.logged())
        for command in ("watch", "gc"):   # also between two runs
            self.refused(command, self.file, "--out", "out", status=3, says=["another runner works in", str(self.process.pid)])
        self.git("commit", "-q", "--allow-empty", "-m", "two")
        self.ended(2)
        self.assertIn("starts: the revision changed", self.said())
        self.assertRegex(self.logged()[-1], "code-[0-9a-f]{40}")
        self.assertEqual(len(set(self.logged())), 3)
        self.write("wait", "")
        self.write("rows", "2")
        self.until(lambda: self.logged()[-1] == "data-2")
        for number in ("3", "4", "5"):
            self.write("rows", number)
            time.sleep(0.5)
        (self.folder / "wait").unlink()
        self.ended(4)
        self.assertEqual([word for word in self.logged() if word.startswith("data")], ["data-1", "data-2", "data-5"])
        # an unreadable file, and a failed run, do not end the watch
        whole = self.file.read_text()
        self.file.write_text("muster-flow: [")
        self.until(lambda: "this is no YAML" in self.said())
        self.write("rows", "meanwhile")
        time.sleep(2)   # several checks
        self.file.write_text(whole)
        self.ended(5)
        self.assertEqual(self.logged()[-1], "data-meanwhile")
        self.file.write_text(whole.replace("echo data", "exit 1; echo data"))
        self.write("rows", "6")
        self.until(lambda: "ended with status 1" in self.said())
        self.file.write_text(whole)
        self.write("rows", "7")
        self.ended(6)
        self.assertEqual(self.logged()[-1], "data-7")
        self.end()

    @unittest.skipIf(croniter is None, "SKIPPED: python3-croniter is not installed")
    def test_a_schedule(self):
        self.file = self.workflow("  one: {command: [sh, -c, 'echo one >> {here}/log'], memoize: {max-age: 0.1s}}", "watch: {schedule: '* * * * * */10', every: 0.2s}")
        self.begin()
        self.until(lambda: len(self.logged()) >= 2 and self.said().count("ended with status 0") >= 2)   # every ten seconds
        self.assertIn("starts: the schedule '* * * * * */10'", self.said())
        self.assertEqual(self.logged()[:2], ["one", "one"])
        self.end()

    def test_refused(self):
        for watch, says in (("{}", "nothing to watch"), ("{data: yes}", "'data'"), ("{datum: true}", "'data'"), ("{every: 1x}", "a time: 30s"),
                            ("{revision: {repository: x}}", "no 'branch'"), ("{revision: {repository: x, branch: y, parameter: z}}", "'z' is no parameter"),
                            *((("{schedule: '61 * * * *'}", "'61 * * * *'"),) if croniter else ())):
            with self.subTest(watch):
                self.refused("watch", self.workflow("  a: {command: 'true'}", f"watch: {watch}"), "--out", "out", says=says)

        self.write("other/mine", "")
        self.refused("watch", self.workflow("  a: {command: 'true'}", "watch: {data: true}"), "--out", "other", says=["not empty", "mine"])
        self.assertEqual(os.listdir(self.folder / "other"), ["mine"])

    def test_new_data_are_served_and_no_request_is_lost(self):
        """Trains on rows of a first kind with two ranks. A twentieth more of another kind is too little to train again, a
        tenth is enough: the better model replaces the first one while requests arrive. A further tenth improves
        nothing, and the model stays."""
        trainer, server = self.built("examples/logistic_regression", "examples/serve")
        if not shutil.which("mpirun"):
            self.skipTest("SKIPPED: mpirun is not here")
        port = free_port()
        self.file = self.workflow(f"""
  train:
    command: "{trainer} --train libsvm:{{rows}} --test libsvm:{{held}} --epochs 3 --batch 20 --schedule constant:1 --save {{model}}"
    inputs: {{rows: rows.svm, held: test.svm}}
    outputs: {{model: model.muster}}
    memoize: {{change: 10%}}
    launcher: mpirun
    ranks: 2
    resources: {{cpus-per-rank: 0.5}}
    environment: {{OMPI_MCA_rmaps_base_oversubscribe: "1"}}
  select:
    command: "{{python}} -m muster_flow select --repository {{out}}/repository --name m --json {{selected}} {{model}}"
    inputs: {{model: model.muster}}
    outputs: {{selected: selected.json}}
    environment: {{PYTHONPATH: "{{platform}}"}}
  serve: {{command: "{server} --models {{out}}/repository --listen 127.0.0.1:{port}", needs: [select], wait: false, ready: "http://127.0.0.1:{port}/v2/health/ready"}}
""", "watch: {data: true, every: 0.2s}")
        of_one, of_two = (f"+1 {feature}:1\n-1 {feature}:-1\n" for feature in (1, 2))
        self.write("rows.svm", "+1 1:1 2:0.001\n-1 1:-1 2:-0.001\n" + of_one * 99)   # 200 rows
        self.write("test.svm", (of_one + of_two) * 20)
        self.begin()
        self.ended(1)
        selected = self.folder / "out" / "selected.json"
        first = json.loads(selected.read_text())["selected"]["accuracy"]
        versions, failed, over = {}, [], threading.Event()

        def ask():
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            self.addCleanup(connection.close)
            while not over.is_set():
                try:
                    connection.request("POST", "/v2/models/m/infer",
                                       json.dumps({"inputs": [{"name": "features", "datatype": "FP32", "shape": [1, 2], "data": [0, 1]}]}))
                    answer = connection.getresponse()
                    reply = json.loads(answer.read())
                    if answer.status != 200:
                        failed.append(reply)
                    versions[reply.get("model_version")] = versions.get(reply.get("model_version"), 0) + 1
                except (OSError, http.client.HTTPException, ValueError) as error:
                    failed.append(repr(error))
                    return
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            self.until(lambda: versions or failed)
            for number, more in enumerate((of_two * 5, of_two * 5, of_one * 11), 2):
                with open(self.folder / "rows.svm", "a") as rows:
                    rows.write(more)
                self.ended(number)
                if number == 3:
                    self.until(lambda: "2" in versions or failed)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        self.assertEqual(failed, [])
        self.assertEqual(sorted(versions), ["1", "2"])
        self.assertEqual(self.said().count("train: begins"), 3)
        last = json.loads(selected.read_text())
        self.assertEqual((last["version"], sorted(os.listdir(self.folder / "out" / "repository" / "m"))), (2, ["1", "2"]))
        self.assertGreater(last["selected"]["accuracy"], first)
        events = [json.loads(line) for line in (self.folder / "out" / "metadata.jsonl").read_text().splitlines()]
        self.assertEqual(sum(event["event"] == "begin" and event["step"] == "serve" for event in events), 1)   # one process in all runs
        owner = next(int(name) for name in os.listdir("/proc") if name.isdigit() and alive(int(name)) and f"127.0.0.1:{port}" in command(name) and
                     command(name).startswith(server))
        self.end()
        self.assertFalse(alive(owner))


def command(process):
    try:
        with open(f"/proc/{process}/cmdline", encoding="utf-8", errors="replace") as file:
            return file.read().replace("\0", " ")
    except OSError:
        return ""


if __name__ == "__main__":
    unittest.main()
