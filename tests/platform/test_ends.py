"""The ends of steps and their consequences: a test for each row of the table in docs/workflow.md, with a process that
ends so."""
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import threading
import time
import unittest

from bench import HERE
from flow import Case
from muster_flow import ends
from muster_flow.steps import Training
from muster_bench.process import Outcome

CNN = "{command} --data cifar-like:{images} --epochs {{epochs}} --checkpoint {{checkpoint}} {{resume}} --save {{model}} --batch 20"
# Prints the lines of a training with these accuracies, one after another; the last line of a calling script decides its
# end.
LINES = "import os, sys, time\nfor n, accuracy in enumerate(map(float, sys.argv[1].split()), 1):\n    print(n, 1.0, 1.0, accuracy, 0.1, 10, flush=True)\n    time.sleep(0.1)\n"


class Rows(Case):
    def shell(self, text, more=""):
        return f"  one:\n    command: [sh, -c, {json.dumps(text)}, x, '{{made}}']\n    outputs: {{made: made}}\n    {more}\n"

    def lines(self, accuracies, then="", training="{epochs: epochs, chance: 0.1, patience: 3}", more=""):
        script = self.write("lines.py", LINES + then)
        return f"  one:\n    command: [python3, {script}, '{accuracies}', '{{epochs}}']\n    parameters: {{epochs: 100}}\n    training: {training}\n    {more}\n"

    def training(self, images, epochs, more, launcher="mpirun", schedule="step:0.001,epochs=3+7,factor=0.1", patience=3):
        program, = self.built("examples/cnn")
        command = CNN.format(command=program, images=images) + f" --schedule {schedule}"
        return (f"  one:\n    command: \"{command}\"\n    parameters: {{epochs: {epochs}}}\n    outputs: {{model: model}}\n    launcher: {{kind: {launcher}"
                f", options: \"--bind-to none\"}}\n    ranks: 2\n    training: {{epochs: epochs, chance: 0.1, patience: {patience}}}\n    {more}\n")

    def test_done(self):
        end, attempts, record = self.step(self.shell("echo x > $1"))
        self.assertEqual((end["state"], end["cause"], len(attempts)), ("done", "done", 1))
        self.assertEqual((self.folder / "out" / "made").read_text(), "x\n")
        self.assertEqual(record["attempts"][0]["cause"], "done")

    def test_output(self):
        end, attempts, record = self.step(self.shell("true"), status=1)
        self.assertEqual((end["state"], end["cause"], len(attempts), record), ("failed", "output", 1, None))
        self.assertIn("did not make its output 'made'", end["why"])

    def test_peer_a_rank_is_killed(self):
        """Checks that the second attempt resumes from the checkpoint of the first: each epoch occurs once."""
        if shutil.which("mpirun") is None:
            self.skipTest("SKIPPED: there is no mpirun")
        process, store = self.begin(self.training(1000, 4, "", patience=9), "one")
        ranks = self.wait_for_ranks(store)
        os.kill(ranks[-1], signal.SIGKILL)
        end, attempts, record = self.end(process, store, "one")
        self.assertEqual([attempt["cause"] for attempt in attempts], ["peer", "done"])
        self.assertEqual([row["epoch"] for row in record["series"]], [1, 2, 3, 4])
        home = store.home(record["key"])
        again = (home / "output" / "2" / "log.txt").read_text()
        self.assertIn("resumes after step", again)
        self.assertIsNone(re.search(r"^ +1 ", again, re.MULTILINE), "the first epoch was trained again")
        self.assertEqual(end["state"], "done")

    def wait_for_ranks(self, store):
        """Returns the processes of the ranks, once the first epoch and its checkpoint exist."""
        until = time.monotonic() + 120
        while time.monotonic() < until:
            logs = list((store.folder / "store").glob("*/output/1/log.txt"))
            if logs and re.search(r"^ +1 .*$\n", logs[0].read_text(), re.MULTILINE) and any(logs[0].parents[2].rglob("step-*.state")):
                home = str(logs[0].parent.parent.parent).encode()
                found = [int(entry.name) for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit() and self.is_rank(entry, home)]
                if len(found) == 2:
                    return found
            time.sleep(0.02)
        self.fail("no two ranks have ended an epoch")

    @staticmethod
    def is_rank(entry, home):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return words[0].endswith(b"/cnn") and any(home in word for word in words)

    def test_peer_by_its_status(self):
        end, attempts, _ = self.step(self.shell("[ -e {here}/again ] || { touch {here}/again; exit 5; }; echo > $1".replace("{ ", "{{ ").replace("; }", "; }}")))
        self.assertEqual(([attempt["cause"] for attempt in attempts], end["state"]), (["peer", "done"], "done"))

    def test_every_status(self):
        """Checks that the statuses of peers and deadlines in docs/exit-codes.md are retried, and others are not."""
        found = {}
        for status, kind in re.findall(r"^\| ([\d to,]+) \| (?:`(\w+)`)?", (HERE.parents[1] / "docs" / "exit-codes.md").read_text(), re.MULTILINE):
            for part in status.split(", "):
                first, _, last = part.partition(" to ")
                found.update(dict.fromkeys(range(int(first), int(last or first) + 1), kind))
        self.assertLessEqual({0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 15, 16, 143}, found.keys())
        for status, kind in found.items():
            end = ends.of_command(Outcome("ok" if status == 0 else "crash", "", status), "", "", False, [], None)
            self.assertEqual(end.action, "done" if status == 0 else "retry" if kind in ("peer_failure", "timeout", "source") else "fail", status)

    def test_source_after_growing_pauses(self):
        """Checks that a source that comes back is read by a later attempt, and that the attempts are counted."""
        away = "n=$(cat {here}/n 2>/dev/null || echo 0); echo $((n + 1)) > {here}/n; [ $n -lt 2 ] && exit 8; echo > $1"
        process, store = self.begin(self.shell(away), "one")
        end, attempts, _ = self.end(process, store, "one")
        self.assertEqual(([attempt["cause"] for attempt in attempts], end["state"]), (["source", "source", "done"], "done"))
        times = [event["at"] for event in store.events() if event["event"] == "begin"]
        first, second = (later - earlier for earlier, later in zip(times, times[1:]))
        self.assertGreaterEqual(first, 2)
        self.assertGreaterEqual(second, 4)

    def test_source_not_for_ever(self):
        end, attempts, _ = self.step(self.shell("exit 8", "retry: {source: 1}"), status=1)
        self.assertEqual(([attempt["cause"] for attempt in attempts], end["state"], end["cause"]), (["source", "source"], "failed", "source"))

    def test_peer_not_for_ever(self):
        end, attempts, _ = self.step(self.shell("kill -9 $$", "retry: {peer: 2}"), status=1)
        self.assertEqual((len(attempts), end["state"], end["cause"]), (3, "failed", "peer"))

    def test_peer_it_hangs(self):
        end, attempts, _ = self.step(self.shell("[ -e {here}/again ] || { touch {here}/again; sleep 100; }; echo > $1".replace("{ ", "{{ ").replace("; }", "; }}"), "timeout: 4"))
        self.assertEqual(([attempt["cause"] for attempt in attempts], end["state"]), (["peer", "done"], "done"))

    def test_memory(self):
        script = self.write("takes.py", "import sys\nheld = b'x' * (100 << 20)\nopen(sys.argv[1], 'w').write('x')\n")
        end, attempts, _ = self.step(f"  one:\n    command: [python3, {script}, '{{made}}']\n    outputs: {{made: made}}\n    resources: {{memory: 40M}}\n")
        self.assertEqual(([attempt["cause"] for attempt in attempts], end["state"]), (["memory", "memory", "done"], "done"))
        self.assertEqual([attempt["memory"] >> 20 for attempt in attempts], [40, 80, 160])

    def test_input(self):
        """Removes the data during a read: the step that makes the data runs again, and then this step."""
        data, = self.built("src/programs/muster-data")
        self.write("rows.csv", "a,b\n" + "1,2\n" * 100)
        steps = f"""  ingest:
    command: "{data} convert csv:{{rows}}?label=b {{records}}"
    inputs: {{rows: rows.csv}}
    outputs: {{records: records}}
  one:
    command: [sh, -c, "[ -e $2/again ] || {{{{ touch $2/again; rm -r $2/out/store/*/records; }}}}; exec {data} verify $1", x, "{{records}}", "{{here}}"]
    inputs: {{records: records}}
    needs: [ingest]
"""
        process, store = self.begin(steps, "ingest")
        self.end(process, store, "ingest")
        end, attempts, _ = self.step(steps)
        self.assertEqual(([attempt["cause"] for attempt in attempts], end["state"]), (["input", "done"], "done"))
        self.assertEqual(len([event for event in store.events() if event["step"] == "ingest" and event["event"] == "begin"]), 2)

    def test_two_inputs_that_are_gone_at_once(self):
        """Checks inputs from two steps, which count as one loss."""
        steps = """  a: {command: [sh, -c, 'echo a > $1', x, '{made}'], outputs: {made: a}}
  b: {command: [sh, -c, 'echo b > $1', x, '{made}'], outputs: {made: b}}
  one: {command: [sh, -c, '[ -e $3/again ] || {{ touch $3/again; rm $3/out/store/*/a $3/out/store/*/b; }}; cat $1 $2', x, '{*made}', '{here}'], inputs: {made: [a, b]}}
"""
        for name in ("a", "b"):
            self.step(steps, name)
        end, attempts, _ = self.step(steps)
        self.assertEqual(([attempt["cause"] for attempt in attempts], end["state"]), (["input", "done"], "done"))

    def test_input_that_no_step_makes(self):
        rows = self.write("rows.csv", "a,b\n1,2\n")
        steps = self.shell(f"rm {rows}; exit 3", "inputs: {rows: rows.csv}")
        end, attempts, _ = self.step(steps, status=1)
        self.assertEqual((end["state"], end["cause"]), ("failed", "input"))
        self.assertIn("rows.csv", end["why"])

    def permanent(self, steps, cause, says):
        end, attempts, _ = self.step(steps, status=1)
        self.assertEqual((end["state"], end["cause"], len(attempts)), ("failed", cause, 1), end)
        self.assertIn(says, end["why"])

    def test_configuration(self):
        program, = self.built("examples/cnn")
        self.permanent(f"  one:\n    command: '{program} --epochs many'\n", "configuration", "epochs")

    def test_configuration_no_program(self):
        self.permanent("  one:\n    command: there-is-no-such-program\n", "configuration", "there-is-no-such-program")

    def test_data(self):
        data, = self.built("src/programs/muster-data")
        self.write("rows.csv", "a,b\n1,2\n1,x\n")
        self.permanent(f"  one:\n    command: '{data} convert csv:{{rows}}?label=b {{records}}'\n    inputs: {{rows: rows.csv}}\n    outputs: {{records: records}}\n",
                       "data", "rows.csv")

    def test_mismatch(self):
        self.permanent(self.shell("echo the ranks called different collectives; exit 6"), "mismatch", "different collectives")

    def test_diverged(self):
        program, = self.built("examples/cnn")
        self.permanent(f"  one:\n    command: '{program} --data cifar-like:200 --epochs 9 --schedule constant:1e30'\n", "diverged", "loss")

    def test_disk(self):
        self.permanent(self.shell("head -c 50000000 /dev/zero > $1; sleep 100", "limits: {disk: 1M}"), "disk", "MiB")

    def test_other(self):
        self.permanent(self.shell("echo why it ended; exit 1"), "other", "why it ended")

    def abandoned(self, steps, cause, says):
        end, attempts, record = self.step(steps)
        self.assertEqual((end["state"], end["cause"], len(attempts)), ("abandoned", cause, 1), end)
        self.assertIn(says, end["why"])
        self.assertEqual(record["state"], "abandoned")
        return record

    def test_deadline(self):
        self.abandoned(self.training(500, 100_000, "deadline: 3", patience=1000), "deadline", "its rate misses the deadline")

    def test_deadline_with_a_slow_start(self):
        """Checks that start-up and the first epoch do not decide: the later epochs meet the deadline."""
        script = self.write("slow.py", "import sys, time\ntime.sleep(2)\nfor n in range(1, 16):\n    print(n, 1.0, 1.0, 0.5 + n / 100, 0.1, 10, flush=True)\n    time.sleep(1.5 if n == 1 else 0.1)\n")
        steps = f"  one:\n    command: [python3, {script}, '{{epochs}}']\n    parameters: {{epochs: 15}}\n    training: {{epochs: epochs}}\n    deadline: DEADLINE\n"
        end, _, _ = self.step(steps.replace("DEADLINE", "8"))
        self.assertEqual(end["state"], "done", end)
        end, attempts, _ = self.step(steps.replace("DEADLINE", "3.5").replace("one:", "two:"), "two")
        self.assertEqual((end["state"], end["cause"], len(attempts)), ("abandoned", "deadline", 1), end)

    def test_the_forecast(self):
        pace, seconds = ends.Pace(), 0
        for number in range(30):
            seconds += 9 if number == 0 else 1 + number % 2 / 10
            pace.ended(1, seconds)
            if number < 2:
                self.assertEqual(pace.forecast(100), (0.0, float("inf")))
        low, high = pace.forecast(100)
        self.assertTrue(100 < low < 105 < high < 110, (low, high))
        row = {"epoch": 30, "val_accuracy": 0.5}
        self.assertRegex(ends.of_epochs([row], None, seconds, pace, 100, 130).why, r"^its rate misses the deadline \(130 epochs take 14\d to 14\d s, and it has 100\)$")
        self.assertIsNone(ends.of_epochs([row], None, seconds, pace, (seconds + low) / ends.MISSES + 0.1, 130))

    def test_falls_slowly(self):
        """Checks the accuracies of a training that must not be repeated: the fall is small, and is no convergence."""
        record = self.abandoned(self.lines("0.30 0.29 0.28 0.27", "time.sleep(100)\n"), "falls", "falls (0.3000, and 0.2700 after 4 epochs)")
        self.assertEqual(record["outputs"], {})
        end, _, _ = self.step(self.lines("0.30 0.29 0.28 0.27", "os.kill(os.getpid(), 9)\n", "{chance: 0.1, patience: 3}").replace("one:", "two:"), "two")
        self.assertEqual((end["state"], end["cause"]), ("abandoned", "falls"))
        # a plateau is no fall
        rows = [{"epoch": k + 1, "val_accuracy": accuracy} for k, accuracy in enumerate((0.3, 0.2999, 0.2998, 0.2997))]
        self.assertEqual(ends.of_epochs(rows, Training("epochs", 0.1, 3, 0.001, False), 1, ends.Pace(), 0, 100).cause, "converged")

    def test_falls_and_the_best_epoch_is_kept(self):
        """Checks a training that saves its best epoch: it ends early, its model is an output, and the accuracy of that epoch counts."""
        script = self.write("best.py", LINES.replace("enumerate(", "list(enumerate(").replace(", 1):", ", 1))[:int(sys.argv[2])]:") +
                            "open(sys.argv[3], 'w').write('model')\n")
        steps = (f"  one:\n    command: [python3, {script}, '0.2 0.7 0.8 0.6 0.5 0.4 0.3 0.2 0.1', '{{epochs}}', '{{model}}']\n    parameters: {{epochs: 9}}\n"
                 "    outputs: {model: model}\n    training: {epochs: epochs, chance: 0.1, patience: 2, best: true}\n")
        end, attempts, record = self.step(steps)
        self.assertEqual(([attempt["cause"] for attempt in attempts], end["state"], end["cause"], end["accuracy"]), (["falls", "done"], "done", "falls", 0.8))
        self.assertLess(len(record["series"]), 9)
        selected = self.bench("select", "--repository", "repository", "--name", "m", "--json", "selected.json", "out/model").stdout
        self.assertIn("version 1: one, accuracy 0.8000", selected)

    def test_chance(self):
        self.abandoned(self.training(200, 1000, "", schedule="constant:1e-12"), "chance", "never left chance")

    def test_falls(self):
        self.abandoned(self.lines("0.2 0.5 0.8 0.6 0.5 0.4", "time.sleep(100)\n"), "falls", "falls")

    def test_flat(self):
        """Checks a failure with a status that would be retried: its accuracy shows that a retry is useless."""
        self.abandoned(self.lines("0.2 0.5 0.8 0.8 0.8 0.8", "os.kill(os.getpid(), 9)\n", "{chance: 0.1, patience: 3}"), "flat", "flat at 0.8")
        # a training that still improved is retried
        _, attempts, _ = self.step(self.lines("0.2 0.5 0.6 0.7 0.8", "os.kill(os.getpid(), 9)\n", "{chance: 0.1, patience: 3}").replace("one:", "two:"), "two", 1)
        self.assertEqual(len(attempts), 4)

    def test_converged(self):
        """Checks that a converged training ends early, and is kept like a training that ended by itself."""
        end, attempts, record = self.step(self.training(1000, 1000, "", schedule="step:0.001,epochs=3,factor=1e-12"))
        self.assertEqual(([attempt["cause"] for attempt in attempts], end["state"], end["cause"]), (["converged", "done"], "done", "converged"))
        epochs = [row["epoch"] for row in record["series"]]
        self.assertEqual(epochs, list(range(1, len(epochs) + 1)))
        self.assertLess(len(epochs), 100)
        self.assertTrue((self.folder / "out" / "model").is_file())

    def test_needs(self):
        """Checks that a step that needs the output of an abandoned step is abandoned; a step with several inputs uses
        the others."""
        steps = self.lines("0.2 0.5 0.8 0.6 0.5 0.4", "time.sleep(100)\n").replace("  one:", "  bad:\n    outputs: {made: bad}") + """
  good: {command: [sh, -c, 'echo good > $1', x, '{made}'], outputs: {made: good}}
  one: {command: [cat, '{made}'], inputs: {made: bad}}
  all: {command: [sh, -c, 'cat $2 > $1', x, '{joined}', '{*made}'], inputs: {made: [bad, good]}, outputs: {joined: joined}}
"""
        for name in ("bad", "good"):
            self.step(steps, name)
        end, attempts, _ = self.step(steps)
        self.assertEqual((end["state"], end["cause"], attempts), ("abandoned", "needs", []))
        self.step(steps, "all")
        self.assertEqual((self.folder / "out" / "joined").read_text(), "good\n")
        mended = """
  bad: {command: [sh, -c, 'echo mended > $1', x, '{made}'], outputs: {made: bad}}
  one: {command: [cat, '{made}'], inputs: {made: bad}}
"""
        for name in ("bad", "one"):
            process, store = self.begin(mended, name)
            process.communicate(timeout=60)
        self.assertEqual(store.record("one")["state"], "done")

    def test_ready(self):
        end, attempts, _ = self.step("  one: {command: [sleep, '5'], wait: false, ready: 'http://127.0.0.1:1/', timeout: 1}", status=1)
        self.assertEqual((end["state"], end["cause"]), ("failed", "ready"))

    def test_ready_of_another_process(self):
        with http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as other:
            threading.Thread(target=other.serve_forever, daemon=True).start()
            end, attempts, _ = self.step(f"  one: {{command: [sleep, '5'], wait: false, ready: 'http://127.0.0.1:{other.server_port}/'}}", status=1)
            other.shutdown()
        self.assertEqual((end["cause"], attempts), ("ready", []))
        self.assertIn("is already answered by another process; end that, or", end["why"])

    def test_runner(self):
        self.write("out/made", "somebody's")
        end, _, _ = self.step(self.shell("echo x > $1"), status=2)
        self.assertEqual((end["state"], end["cause"]), ("failed", "runner"))
        self.assertIn("is in the way", end["why"])
        self.assertEqual((self.folder / "out" / "made").read_text(), "somebody's")

    def test_interrupted(self):
        process, store = self.begin(self.shell("echo > {here}/runs; sleep 100"), "one")
        until = time.monotonic() + 60
        while not (self.folder / "runs").exists() and time.monotonic() < until:
            time.sleep(0.02)
        process.terminate()
        end, attempts, record = self.end(process, store, "one", 1)
        self.assertEqual((end["state"], end["cause"], record), ("stopped", "interrupted", None))

    def test_the_table_has_every_row(self):
        """Checks that the causes in the code and in the manual's table are the same."""
        table = re.search(r"\| cause \|.*?\n\n", (HERE.parent.parent / "docs" / "workflow.md").read_text(), re.DOTALL).group(0)
        flow = HERE.parent.parent / "python" / "muster_flow"
        known = set(re.findall(r'End\("(\w+)"', "".join((flow / name).read_text() for name in ("ends.py", "wrapper.py"))))
        known |= set(re.findall(r'\d: "(\w+)"', (flow / "ends.py").read_text()))
        known |= set(re.findall(r'(?:cause=|_keep_abandoned\()"(\w+)"', (flow / "wrapper.py").read_text()))
        self.assertEqual(set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)), known)


class Samples(Case):
    def test_what_is_sampled(self):
        """Checks memory, processor and the connection between two processes, every other second, and the dependencies
        at the end."""
        script = self.write("talks.py", "import socket, sys, threading, time\nheld = b'x' * (30 << 20)\nlistener = socket.create_server(('127.0.0.1', 0))\n"
                            "def answer():\n    to, _ = listener.accept()\n    while to.recv(1 << 16):\n        pass\n"
                            "threading.Thread(target=answer, daemon=True).start()\nout = socket.create_connection(listener.getsockname())\n"
                            "until = time.monotonic() + 5\nwhile time.monotonic() < until:\n    out.sendall(bytes(100_000))\n    time.sleep(0.01)\n"
                            "open(sys.argv[1], 'w').write('x')\n")
        rows = self.write("rows.csv", "1\n")
        steps = (f"  one:\n    command: [python3, {script}, '{{made}}', '{{rate}}']\n    outputs: {{made: made}}\n    inputs: {{rows: {rows}}}\n    ranks: 2\n"
                 "    parameters: {rate: 3}\n")
        process, store = self.begin(steps, "one")
        end, _, record = self.end(process, store, "one")
        samples = [event for event in store.events() if event["event"] == "sample"]
        self.assertGreaterEqual(len(samples), 1)
        self.assertGreater(max(sample["memory_bytes"] for sample in samples), 30 << 20)
        self.assertGreater(max(sample["processors"] for sample in samples), 0)
        if shutil.which("ss"):
            peers = [peer for sample in samples for peer in sample["peers"].values()]
            self.assertGreater(max(peer.get("bytes_sent", 0) for peer in peers), 100_000)
            self.assertTrue(all(peer["round_trip_ms"] > 0 for peer in peers if "round_trip_ms" in peer))
        parts = end["parts"]
        self.assertEqual(parts["parameters"], {"rate": 3})
        self.assertEqual(len(parts["inputs"]["rows"][0]), 64)
        self.assertTrue(any(word.endswith("talks.py") for word in parts["code"]), parts["code"])
        self.assertEqual(end["outputs"]["made"][1], record["outputs"]["made"][1])


if __name__ == "__main__":
    unittest.main()
