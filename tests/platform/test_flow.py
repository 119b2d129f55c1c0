"""Tests workflows: refusals, steps that run again and steps that do not, killed runners, and removals."""
import contextlib
import datetime
import hashlib
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest
import urllib.parse
import urllib.request
from unittest import mock

import bench
from flow import Case
from muster_bench.files import bytes_under
from muster_bench.errors import Refusal
from muster_flow import conditions, remote, watch, workflow
from muster_flow.collect import collect
from muster_flow.store import Store
from muster_bench.presets.ports import free_port
from test_kill import alive

COUNTED = """
  make:
    each: {a: {k: 1}, b: {k: 2}}
    command: [sh, -c, 'echo $1 $2 > $3; echo make-$2 >> {here}/log', x, '{n}', '{k}', '{file}']
    outputs: {file: 'data/{k}'}
  join:
    inputs: {files: '{make.file}'}
    command: [sh, -c, 'cat $1 $2 > $3; echo join >> {here}/log', x, '{*files}', '{all}']
    outputs: {all: joined}
"""


class Refused(Case):
    def test_one_line_that_names_it(self):
        step = "command: 'true'"
        for steps, says in (
                (f"  a: {{{step}, needs: [b]}}\n  b: {{{step}, needs: [c]}}\n  c: {{{step}, needs: [a]}}", ["circle", "a", "b", "c"]),
                (f"  a: {{{step}, outputs: {{x: made}}}}\n  b: {{{step}, outputs: {{y: made}}}}", ["'made'", "'a'", "'b'", "one maker"]),
                (f"  a: {{{step}, inputs: {{x: '{{b.made}}'}}}}\n  b: {{{step}, outputs: {{mode: made}}}}", ["{b.made}", "b.mode"]),
                (f"  a: {{{step}, input: {{}}}}", ["unknown key 'input'", "'inputs'"]),
                (f"  a: {{{step}, launcher: {{kind: kubernetes, image: x}}}}", ["launcher kubernetes", "export argo"]),
                (f"  a: {{{step}, needs: [bb]}}\n  b: {{{step}}}", ["unknown step 'bb'", "'b'"]),
                ("  a: {command: 'x {nn}', parameters: {n: 1}}", ["{nn}", "'n'"]),
                (f"  a: {{{step}, memoize: {{change: ten}}}}", ["change", "'ten'", "10%"]),
                (f"  a: {{{step}, memoize: {{max-age: 1x}}}}", ["'1x'", "30s"]),
                (f"  a: {{{step}, memoize: never}}", ["memoize", "'never'"]),
                (f"  a: {{{step}, memoize: {{accuracy: 90}}}}", ["memoize", "accuracy", "90"]),
                (f"  a: {{{step}, memoize: {{records: 0}}}}", ["memoize", "records"]),
                (f"  a: {{{step}, memoize: {{records: 5, max-age: 1d}}}}", ["memoize", "records"]),
                (f"  a: {{{step}, outputs: {{x: ../made}}}}", ["'../made'", "below"]),
                (f"  a: {{{step}, outputs: {{x: made}}, wait: false}}", ["'a'", "not waited for"]),
                (f"  a: {{{step}, outputs: {{x: made}}}}\n  b: {{{step}, outputs: {{y: ./made}}}}", ["'made'", "'a'", "'b'", "one maker"]),
                (f"  a: {{{step}, outputs: {{x: made}}}}\n  b: {{{step}, outputs: {{y: made/too}}}}", ["'made/too'", "'b'", "'made'", "'a'"]),
                (f"  a: {{{step}, outputs: {{x: store/made}}}}", ["'store/made'", "its own 'store'"]),
                (f"  a: {{{step}, outputs: {{x: .}}}}", ["'.'", "below"]),
                (f"  a: {{{step}, ranks: 0}}", ["'ranks'", "'0'"]),
                (f"  a: {{{step}, ranks: two}}", ["'ranks'", "'two'"]),
                (f"  a: {{{step}, timeout: -1}}", ["'timeout'", "-1"]),
                (f"  a: {{{step}, resources: {{memory: '{'9' * 400}'}}}}", ["memory", "no size"]),
                (f'  a: {{{step}, memoize: "two\\nlines"}}', ["unknown key 'two\\nlines'"]),
                (f"  a: {{{step}, retry: {{peers: 3}}}}", ["'peers'", "'peer'"]),
                (f"  a: {{{step}, training: {{epochs: epoch}}, parameters: {{epochs: 3}}}}", ["'epoch'", "'epochs'"]),
                ("  a: {outputs: {}}", ["'command'"])):
            self.refused("run", self.workflow(steps), "--out", "out", says=says)
        self.refused("run", self.workflow(f"  a: {{{step}}}"), "--out", "out", "--set", "n=1", says=["--set n"])
        self.refused("run", self.workflow(f"  a: {{{step}}}", "places: {b: 1}"), "--out", "out", says=["places", "'b'", "'1'"])
        self.assertFalse((self.folder / "out").exists())

    def test_what_is_no_file(self):
        """Checks that a pipe does not block, and that a device is not read to its end."""
        os.mkfifo(self.folder / "pipe")
        for path, says in (("pipe", "no regular file"), ("/dev/zero", "no regular file"), (self.folder, "Is a directory"), ("none", "No such file")):
            self.refused("run", path, "--out", "out", says=says, timeout=20)
        file = self.workflow("  a: {command: 'true'}")
        for out in ("/proc/x", file, "/dev/null"):
            self.refused("run", file, "--out", out, says=f"cannot write '{out}'", status=4)

    def test_a_full_disk(self):
        """Checks a full disk with a folder that was just made, and with a folder of resultsfrom which gc removes
        some."""
        out = self.small_disk("out", "128k")
        file = self.workflow("  a: {command: 'true'}")
        (out / "fill").write_text("x" * 4096)
        with open(out / "fill", "ab", buffering=0) as fill, contextlib.suppress(OSError):
            while True:
                fill.write(b"x" * 4096)
        self.refused("run", file, "--out", out / "new", status=4, says="no room to write")
        (out / "fill").unlink()
        self.write("out/new/store/old/record.json", "{}")
        os.utime(out / "new" / "store" / "old", (0, 0))
        with open(out / "fill", "ab", buffering=0) as fill, contextlib.suppress(OSError):
            while True:
                fill.write(b"x" * 4096)
        self.assertIn("1 results removed", self.bench("gc", file, "--out", out / "new").stdout)

    def test_an_input_that_no_step_makes(self):
        file = self.workflow("  a: {command: 'true', inputs: {x: not-here}}")
        self.refused("run", file, "--out", "out", says=["step 'a'", "not-here", "no step makes it"])

    def test_a_folder_of_something_else(self):
        self.write("out/mine", "")
        self.refused("run", self.workflow("  a: {command: 'true'}"), "--out", "out", says=["not empty", "mine"])


CONDITIONAL = """
  measure: {command: [sh, -c, 'echo $1 > $2; echo measure >> {here}/log', x, '{n}', '{value}'], outputs: {value: value}}
  good:
    when: "{v} >= 5 && {kind} == a || {n} == 99"
    parameters: {v: '{measure.value}', kind: a}
    command: [sh, -c, 'echo $1 > $2; echo good-$1 >> {here}/log', x, '{v}', '{made}']
    outputs: {made: good}
  bad:
    when: "{v} < 5"
    parameters: {v: '{measure.value}'}
    command: [sh, -c, 'echo > $1; echo bad >> {here}/log', x, '{made}']
    outputs: {made: bad}
  after: {command: [sh, -c, 'echo after >> {here}/log', x], inputs: {made: '{good.made}'}}
  last: {command: [sh, -c, 'echo last-$1 >> {here}/log', x, '{v}'], parameters: {v: '{measure.value}'}, needs: [good, bad]}
"""


class Conditions(Case):
    def test_one_line_that_names_what_is_wrong(self):
        step = "command: 'x {v}', parameters: {v: '{a.y}'}"
        for steps, says in (("  a: {command: x, when: '3'}", ["'when'", "compares no two values"]), ("  a: {command: x, when: '{n} < 3'}", ["{n}"]),
                            ("  a: {command: x, when: '1 < 3', wait: false}", ["condition", "not waited for"]),
                            (f"  a: {{command: x, outputs: {{x: made}}}}\n  b: {{{step}}}", ["{a.y}", "a.x"]),
                            (f"  a: {{each: {{b: {{}}, c: {{}}}}, command: x, outputs: {{y: 'made/{{k}}'}}, parameters: {{k: 1}}}}\n  b: {{{step}}}", ["made/1", "one maker"])):
            self.refused("run", self.workflow(steps), "--out", "out", says=says)

    def test_comparisons(self):
        for text, expected in (("10 > 9", True), ("0.90 == 0.9", True), ("a == a", True), ("a != b", True), ("1e-3 <= 0.001", True), ("2 < 1 || x == x", True),
                               ("2 < 1 || x == x && 1 != 1", False), ("true == false", False)):
            self.assertEqual(conditions.holds(text, "x"), expected, text)
        with self.assertRaisesRegex(Refusal, "no number"):
            conditions.holds("a < 3", "x")

    def test_contents_are_no_operators(self):
        for text, values, expected in (("{v} == a", {"v": ""}, False), ("{v} != a", {"v": ""}, True), ("{v} == {w}", {"v": "", "w": ""}, True),
                                       ("{v} == a", {"v": "b || a"}, False), ("{v} == {w}", {"v": "1 < 2 && x", "w": "1 < 2 && x"}, True),
                                       ("{v} == b", {"v": "a == a || x"}, False), ("{v} >= 5", {"v": " 7 "}, True)):
            self.assertEqual(conditions.holds(text, "x", values), expected, (text, values))
        with self.assertRaisesRegex(Refusal, "no number"):
            conditions.holds("{v} < 3", "x", {"v": ""})


class Servers(Case):
    """Serves answers by path: a status and an ETag, or bytes that are no HTTP."""
    def serve(self, answers):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self):
                status, tag = answers.get(self.path, (404, ""))
                if isinstance(status, bytes):
                    self.wfile.write(status)
                    return
                self.send_response(status)
                if tag:
                    self.send_header("ETag", tag)
                self.end_headers()

            do_GET = do_HEAD

            def log_message(self, *_):
                pass
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    def test_a_key_that_may_not_list(self):
        """Checks an object and a set of records on a server that has 403 for each absent file, and folders with a dot."""
        base = self.serve({"/b/object": (200, '"1"'), "/b/object/MANIFEST": (403, ""), "/b/set.v1": (403, ""), "/b/set.v1/MANIFEST": (200, '"2"'),
                           "/b/dot.v2/MANIFEST": (200, '"3"'), "/b/secret": (403, ""), "/b/secret/MANIFEST": (403, ""), "/b/x.csv": (403, "")})
        with mock.patch.dict(os.environ, {"AWS_ENDPOINT_URL": base}):
            for name, tag in (("object", 1), ("set.v1", 2), ("dot.v2", 3)):
                self.assertEqual(remote.version_of(f"s3://b/{name}"), f'version "{tag}"')
            for name, status in (("secret", 403), ("x.csv", 403), ("none", 404), ("none.csv", 404)):
                with self.assertRaisesRegex(Refusal, f"status {status}"):
                    remote.version_of(f"s3://b/{name}")

    def test_no_password_is_shown(self):
        for address in ("http://me:s3cr3t@host/x.csv", "http://me:s3/cr3t@host/x.csv", "http://me:s3 cr3t@host/x.csv", "http://s3cr3t@host/x.csv",
                        "http://me:s3[cr3t@host/x.csv", "http://host:port/x.csv", "http:///x.csv", "http://host/a\nb"):
            with self.subTest(address=address), self.assertRaises(Refusal) as refused:
                remote.version_of(address)
            self.assertNotIn("cr3t", str(refused.exception))
            self.assertIn("cannot be an input", str(refused.exception))
        file = self.workflow("  read: {command: 'true', inputs: {x: 'http://me:s3/cr3t@host/x.csv'}}")
        done = self.refused("run", file, "--out", "out", says=["cannot be an input", "netrc"])
        self.assertNotIn("cr3t", done.stdout + done.stderr)

    def test_a_malformed_answer(self):
        """Checks that a watch has no state for an answer that is no HTTP, and that the command refuses in one line."""
        base = self.serve({"/x.csv": (b"no HTTP\r\n\r\n", "")})
        flow = workflow.read_file(self.workflow(f"  read: {{command: 'true', inputs: {{x: '{base}/x.csv'}}}}", "watch: {data: true}"))
        with mock.patch.object(remote.time, "sleep"):
            self.assertEqual(list(watch.Causes._states(flow)), [(f"data '{base}/x.csv'", None)])
            with self.assertRaisesRegex(Refusal, "is away .no HTTP"):
                remote.version_of(f"{base}/x.csv")


@unittest.skipIf(shutil.which("snakemake") is None, "SKIPPED: snakemake is not installed")
class Runs(Case):
    def test_an_input_on_a_server(self):
        """Checks that a version on the server starts the step, also of a set of records, and what is said of a server that is away."""
        asked, held = [], {"/x.csv": '"1"', "/set/MANIFEST": '"2"'}

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self):
                asked.append((self.path, self.headers.get("Authorization", "")))
                self.send_response(200 if self.path.removeprefix("/bucket") in held else 404)
                if tag := held.get(self.path.removeprefix("/bucket")):
                    self.send_header("ETag", tag)
                self.end_headers()

            def log_message(self, *_):
                pass
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        self.file = self.workflow(f"  read: {{command: [sh, -c, 'echo $1-$2-$3 >> {{here}}/log', x, '{{one}}', '{{two}}', '{{three}}'], "
                                  f"inputs: {{one: '{base}/x.csv', two: '{base}/set', three: 's3://bucket/x.csv'}}}}")
        access = {"AWS_ENDPOINT_URL": base, "AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret"}
        self.flow(**access)
        self.assertEqual(self.logged(), [f"{base}/x.csv-{base}/set-s3://bucket/x.csv"])
        self.assertEqual({path for path, signed in asked if signed.startswith("AWS4-HMAC-SHA256 Credential=me/")}, {"/bucket/x.csv"})
        self.assertIn("nothing to run", self.flow(**access).stdout)
        held["/set/MANIFEST"] = '"3"'
        self.assertIn("its input 'two' changed", self.bench("explain", self.file, "read", "--out", "out", **access).stdout)
        self.flow(**access)
        self.assertEqual(len(self.logged()), 1)
        del held["/x.csv"]
        self.refused("run", self.file, "--out", "out", says=[f"'{base}/x.csv' cannot be an input", "404"], **access)
        file = self.workflow("  read: {command: 'true', inputs: {x: 'http://127.0.0.1:1/x.csv'}}")
        self.refused("run", file, "--out", "other", says=["'http://127.0.0.1:1/x.csv' is away", "Connection refused"], timeout=60)

    @unittest.skipIf(shutil.which("curl") is None, "SKIPPED: curl is not installed")
    def test_signature_of_a_request(self):
        """Checks the signature against curl's for the same moment."""
        sent = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self):
                sent.append(dict(self.headers))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass
        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.addCleanup(server.server_close)
        threading.Thread(target=server.handle_request, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        subprocess.run(["curl", "-sI", "--user", "me:s3cr3t/+", "--aws-sigv4", "aws:amz:eu-west-1:s3", "-H", f"x-amz-content-sha256: {hashlib.sha256(b'').hexdigest()}",
                        f"{endpoint}/bucket/a%20b/x.csv"], check=True, timeout=60, stdout=subprocess.DEVNULL)
        by_curl = {name.lower(): value for name, value in sent[0].items()}
        moment = datetime.datetime.strptime(by_curl["x-amz-date"], "%Y%m%dT%H%M%SZ")

        class Clock(datetime.datetime):
            @classmethod
            def now(cls, tz=None):
                return moment
        with mock.patch.dict(os.environ, {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "s3cr3t/+"}), mock.patch.object(remote.datetime, "datetime", Clock):
            signed = remote._signed("HEAD", urllib.parse.urlsplit(endpoint), "/bucket/a%20b/x.csv", "eu-west-1")
        self.assertEqual(signed["Authorization"], by_curl["authorization"])

    def test_a_condition_on_the_result_of_another_step(self):
        self.file = self.workflow(CONDITIONAL, "parameters: {n: 7}")
        output = self.flow().stdout
        self.assertIn("bad: abandoned (when: '7 < 5' does not hold)", output)
        self.assertEqual(self.logged(), ["after", "good-7", "last-7", "measure"])
        self.assertEqual((self.folder / "out" / "good").read_text(), "7\n")
        self.assertIn("nothing to run", self.flow("--set", "n=7").stdout)
        # the same value by other means: what takes the value is up to date, and a changed value is not
        self.assertIn("parameter 'n' changed from 7 to 3", self.bench("explain", self.file, "measure", "--out", "out", "--set", "n=3").stdout)
        output = self.flow("--set", "n=3").stdout
        self.assertIn("good: abandoned (when: '3 >= 5 && a == a || 3 == 99' does not hold)", output)
        self.assertIn("after: abandoned (needs", output)
        self.assertEqual(self.logged(), ["bad", "last-3", "measure"])
        self.assertIn("nothing to run", self.flow("--set", "n=3").stdout)
        self.flow("--set", "n=7")
        self.assertEqual(self.logged(), [])   # all results are there already
        self.workflow(CONDITIONAL.replace("echo $1 > $2; echo measure", "echo $1 > $2; echo more >> $2; echo measure"), "parameters: {n: 7}")
        failed = self.flow("--set", "n=7", status=1)
        self.assertIn("cannot be the content of 'value' (it is not one line", failed.stdout + failed.stderr)

    def flow(self, *words, **more):
        return self.bench("run", self.file, "--out", "out", *words, timeout=300, **more)

    def logged(self):
        log = self.folder / "log"
        lines = sorted(log.read_text().split()) if log.exists() else []
        log.unlink(missing_ok=True)
        return lines

    def test_what_changed_runs_again_and_nothing_else(self):
        self.file = self.workflow(COUNTED, "parameters: {n: 3}")
        self.assertIn("3 steps have ended well", self.flow().stdout)
        self.assertEqual((self.folder / "out" / "joined").read_text(), "3 1\n3 2\n")
        self.assertEqual(self.logged(), ["join", "make-1", "make-2"])
        # nothing runs: even Snakemake is not started
        (self.folder / "bin").mkdir()
        (self.folder / "bin" / "sh").symlink_to(shutil.which("sh"))
        self.assertIn("nothing to run", self.flow(PATH=f"{self.folder}/bin").stdout)
        # a single step's parameter
        self.workflow(COUNTED.replace("k: 2", "k: 5"), "parameters: {n: 3}")
        output = self.bench("explain", self.file, "make-b", "--out", "out").stdout
        self.assertIn("parameter 'k' changed from 2 to 5", output)
        self.assertIn("'make-b' runs again", self.bench("explain", self.file, "join", "--out", "out").stdout)
        self.assertIn("make-a is up to date", self.bench("explain", self.file, "make-a", "--out", "out").stdout)
        self.flow()
        self.assertEqual(self.logged(), ["join", "make-5"])
        # the former parameters: the results still exist
        self.workflow(COUNTED, "parameters: {n: 3}")
        self.flow()
        self.assertEqual(self.logged(), [])
        self.assertEqual((self.folder / "out" / "joined").read_text(), "3 1\n3 2\n")
        # a missing output, and an output that another program wrote to
        (self.folder / "out" / "joined").resolve().unlink()
        self.assertIn("output 'joined' is missing", self.bench("explain", self.file, "join", "--out", "out").stdout)
        (self.folder / "out" / "data" / "1").resolve().write_text("other")
        self.assertIn("output 'data/1' was changed", self.bench("explain", self.file, "make-a", "--out", "out").stdout)
        self.flow()
        self.assertEqual(self.logged(), ["join", "make-1"])
        states = self.bench("status", self.file, "--out", "out").stdout.splitlines()
        self.assertEqual([line.split(",")[0] for line in states], ["make-a: done", "make-b: done", "join: done"])

    def test_the_last_lines_name_the_results_and_the_address(self):
        """Checks the end of a run, of a repeated run and of a run that stays; the settings that `explain` and `status` take from the last run."""
        port = free_port()
        steps = """
  make: {command: [sh, -c, 'echo {n} > $1; echo accuracy 0.9{n}', x, '{made}'], outputs: {made: made}}
  page: {command: [sh, -c, 'cat $1 > $2; echo the mean is 0.5', x, '{made}', '{page}'], inputs: {made: made}, outputs: {page: page.html}, needs: [serve]}
  serve:
    command: [python3, -m, http.server, '{port}', --bind, 127.0.0.1]
    wait: false
    ready: 'http://127.0.0.1:{port}/'
    address: 'http://127.0.0.1:{port}/v2'
"""
        self.file = self.workflow(steps, "parameters: {n: 1, port: 1}")
        states = self.bench("status", self.file, "--out", "out").stdout
        self.assertNotIn("again", states)
        self.assertEqual(self.bench("explain", self.file, "page", "--out", "out").stdout, "page runs: it has no result yet\n")
        given = "--set", "n=2", "--set", f"port={port}"
        ends = [f"page: {self.folder}/out/page.html (the mean is 0.5)",
                f"serve: nothing listens any more at http://127.0.0.1:{port}/v2; muster-flow run {self.file} --out out --set n=2 --set port={port} --stay keeps it"]
        self.assertEqual(self.flow(*given).stdout.splitlines()[-2:], ends)
        self.assertEqual(self.flow(*given).stdout.splitlines(), ["nothing to run: 3 steps are up to date", *ends])
        done = self.bench("explain", self.file, "page", "--out", "out")
        self.assertEqual(done.stdout, "page is up to date\n")
        self.assertEqual(done.stderr, f"as the last run: --set n=2 --set port={port}\n")
        self.assertNotIn("to run", self.bench("status", self.file, "--out", "out").stdout)
        self.assertIn("'make' runs again", self.bench("explain", self.file, "page", "--out", "out", "--set", "n=3").stdout)
        process = subprocess.Popen([*self.runner, "run", self.file, "--out", "out", *given, "--stay"], cwd=self.folder, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        for line in process.stdout:
            if line.startswith("serve: answers"):
                break
        self.assertEqual(line, f"serve: answers at http://127.0.0.1:{port}/v2 until Ctrl-C ends it\n")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as answer:
            self.assertEqual(answer.status, 200)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 130)

    def test_what_a_run_names_at_its_end(self):
        self.file = self.workflow("\n  a: {command: [touch, '{x}', '{y}'], outputs: {x: x, y: y}}\n  b: {command: [touch, '{z}'], outputs: {z: z}}\n", "results: ['{a.y}']")
        self.assertEqual(self.flow().stdout.splitlines()[-1], f"a: {self.folder}/out/y")
        self.refused("run", self.workflow("  a: {command: 'true', outputs: {x: x}}", "results: ['{a.y}']"), "--out", "out", says=["results", "'{a.y}'", "{a.x}"])
        self.refused("run", self.workflow("  a: {command: 'true', address: 'http://x'}"), "--out", "new", says=["address", "wait: false"])
        self.refused("run", self.workflow("  a: {command: 'true'}", "places: {b: []}"), "--out", "new", says=["'b'", "no path"])

    def test_the_first_place_that_exists(self):
        self.file = self.workflow("\n  a: {command: [sh, -c, 'echo $1', x, '{b}']}\n", "places: {b: [none, '{platform}/muster_flow', /usr]}")
        self.flow()
        self.assertIn(str(bench.PLATFORM / "muster_flow"), (self.folder / "out" / "steps" / "a" / "output" / "1" / "log.txt").read_text())

    def test_the_same_content_runs_nothing_behind_it(self):
        self.file = self.workflow("""
  make: {command: [sh, -c, 'cut -c 1 $1 > $2; echo make >> {here}/log', x, '{from}', '{to}'], inputs: {from: source}, outputs: {to: made}}
  use: {command: [sh, -c, 'cat $1; echo use >> {here}/log', x, '{made}'], inputs: {made: made}}
""")
        self.write("source", "1a")
        self.flow()
        self.assertEqual(self.logged(), ["make", "use"])
        self.write("source", "1b")
        self.flow()
        self.assertEqual(self.logged(), ["make"])

    def test_records_and_accuracy(self):
        """Checks a number of new records, and a training that is good enough for new data."""
        self.file = self.workflow(f"""
  grown: {{command: [sh, -c, 'echo grown >> {{here}}/log', x, '{{from}}'], inputs: {{from: source}}, memoize: {{records: 5}}}}
  train:
    each: {{good: {{rate: 0.95}}, bad: {{rate: 0.85}}}}
    command: [sh, -c, 'echo 1 1.0 1.0 {{rate}} 0.1 10; echo {{rate}} >> {{here}}/log']
    inputs: {{from: source}}
    memoize: {{accuracy: 0.9}}
""")
        self.write("source", "x\n" * 100)
        self.flow()
        self.assertEqual(self.logged(), ["0.85", "0.95", "grown"])
        self.assertIn("nothing to run", self.flow().stdout)
        self.write("source", "y\n" * 104)
        self.flow()
        self.assertEqual(self.logged(), ["0.85"])
        self.write("source", "y\n" * 109)
        self.flow()
        self.assertEqual(self.logged(), ["0.85", "grown"])

    def test_the_same_records_run_nothing_behind_them(self):
        """Checks an ingestion that is repeated: the names of the record files differ, and the records do not."""
        data, = self.built("src/programs/muster-data")
        self.file = self.workflow(f"""
  ingest: {{command: '{data} convert csv:{{rows}}?label=b {{made}}', inputs: {{rows: rows.csv}}, outputs: {{made: records}}}}
  use: {{command: [sh, -c, 'cat $1/MANIFEST; echo use >> {{here}}/log', x, '{{made}}'], inputs: {{made: records}}}}
""")
        names = set()
        for rows, runs in (("a,b\n1,2\n", ["use"]), ("a,b\n1,2\n\n", []), ("a,b\n1,3\n", ["use"])):
            self.write("rows.csv", rows)
            self.flow()
            self.assertEqual(self.logged(), runs)
            names.update(path.name for path in (self.folder / "out" / "records").glob("*.muster"))
        self.assertEqual(len(names), 3)

    def test_max_age_and_change(self):
        self.file = self.workflow("""
  old: {command: [sh, -c, 'echo old >> {here}/log', x, '{from}'], inputs: {from: source}, memoize: {max-age: 1h}}
  grown: {command: [sh, -c, 'echo grown >> {here}/log', x, '{from}'], inputs: {from: source}, memoize: {change: 10%}}
""")
        self.write("source", "x\n" * 100)
        self.flow()
        self.assertEqual(self.logged(), ["grown", "old"])
        self.write("source", "y\n" * 109)
        self.assertIn("nothing to run", self.flow().stdout)
        self.write("source", "x\n" * 110)
        self.flow()
        self.assertEqual(self.logged(), ["grown"])
        for record in (self.folder / "out" / "steps" / "old" / "record.json",):
            said = json.loads(record.read_text())
            record.write_text(json.dumps({**said, "ended": said["ended"] - 3601}))
        self.assertIn("older than 3600 s", self.bench("explain", self.file, "old", "--out", "out").stdout)
        self.flow()
        self.assertEqual(self.logged(), ["old"])

    def test_a_failed_step_stops_what_needs_it_alone(self):
        self.file = self.workflow("""
  bad: {command: [sh, -c, 'echo why; exit 1']}
  behind: {command: 'true', needs: [bad]}
  other: {command: [sh, -c, 'echo other >> {here}/log']}
""")
        output = self.flow(status=1)
        self.assertIn("muster-flow: bad: other: it ended with status 1: why", output.stderr)
        self.assertIn("muster-flow: behind: not run", output.stderr)
        self.assertEqual(self.logged(), ["other"])
        self.assertIn("its last run failed (other: it ended with status 1: why)", self.bench("explain", self.file, "bad", "--out", "out").stdout)
        self.workflow("\n  bad: {command: 'true'}\n  behind: {command: 'true', needs: [bad]}\n  other: {command: [sh, -c, 'echo other >> {here}/log']}\n")
        self.assertIn("2 steps have ended well", self.flow().stdout)
        self.assertEqual(self.logged(), [])

    def begin(self):
        process = subprocess.Popen([*self.runner, "run", self.file, "--out", "out"], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        return process

    def wait_for(self, name):
        until = time.monotonic() + 120
        while not (self.folder / name).exists() or not (self.folder / name).read_text():
            self.assertLess(time.monotonic(), until, f"'{name}' was not written")
            time.sleep(0.02)
        return (self.folder / name).read_text()

    def wait_for_end(self, process):
        until = time.monotonic() + 60
        while alive(process):
            self.assertLess(time.monotonic(), until, "it runs on")
            time.sleep(0.02)

    def test_killed_and_two_runners(self):
        """Checks that the second runner is refused while the first one works. A killed runner leaves no process, and
        the same command continues: finished steps do not run again."""
        self.file = self.workflow("""
  first: {command: [sh, -c, 'echo first >> {here}/log']}
  second: {command: [sh, -c, '[ -e {here}/pid ] || {{ echo $$ > {here}/pid; exec sleep 1000; }}; echo second >> {here}/log'], needs: [first]}
  third: {command: [sh, -c, 'echo third >> {here}/log'], needs: [second]}
""")
        process = self.begin()
        pid = int(self.wait_for("pid"))
        self.refused("run", self.file, "--out", "out", status=3, says=["another runner works in", str(process.pid)])
        self.refused("gc", self.file, "--out", "out", status=3, says="another runner works in")
        process.kill()
        process.wait()
        self.wait_for_end(pid)
        self.assertEqual(self.logged(), ["first"])
        self.flow()
        self.assertEqual(self.logged(), ["second", "third"])
        self.assertIn("nothing to run", self.flow().stdout)

    def test_interrupted(self):
        self.file = self.workflow("  one: {command: [sh, -c, 'echo $$ > {here}/pid; exec sleep 1000']}")
        process = self.begin()
        pid = int(self.wait_for("pid"))
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 130)
        self.wait_for_end(pid)

    def test_interrupted_with_a_maximal_age(self):
        """Checks that the step continues from its checkpoint, like any other step."""
        self.file = self.workflow("  one: {command: [sh, -c, 'echo begins $2 >> {here}/log; echo x > $1/state; [ -e {here}/pid ] || {{ echo $$ > {here}/pid; exec sleep 1000; }}', "
                                  "x, '{checkpoint}', '{resume}'], memoize: {max-age: 1h}}")
        process = self.begin()
        self.wait_for("pid")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 130)
        self.flow()
        self.assertEqual((self.folder / "log").read_text(), "begins\nbegins --resume\n")
        self.assertEqual(len(list((self.folder / "out" / "store").iterdir())), 1)

    def test_a_step_that_is_not_waited_for(self):
        """Checks that the step serves while another step runs, others begin when it is ready, and it ends with the
        workflow."""
        server = self.write("server.py", "import http.server, os, sys, time\ntime.sleep(0.5)\nopen('" + str(self.folder) + "/server', 'w').write(str(os.getpid()))\n"
                            "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()\n")
        ask = self.write("ask.py", "import sys, urllib.request\nurllib.request.urlopen(sys.argv[1])\nopen(sys.argv[2], 'a').write('asked ')\n")
        port = free_port()
        self.file = self.workflow(f"""
  serve: {{command: [python3, {server}, '{port}'], wait: false, ready: 'http://127.0.0.1:{port}/'}}
  slow: {{command: [sh, -c, 'until grep -q asked {{here}}/log; do sleep 0.1; done; echo slow >> {{here}}/log']}}
  ask: {{command: [python3, {ask}, 'http://127.0.0.1:{port}/', '{{here}}/log'], needs: [serve], resources: {{cpus-per-rank: 0.1}}}}
  last: {{command: 'true', needs: [slow, ask]}}
""")
        output = self.flow().stdout
        self.assertIn("serve: is ready", output)
        self.assertEqual(self.logged(), ["asked", "slow"])
        self.wait_for_end(int((self.folder / "server").read_text()))
        self.assertIn("nothing to run", self.flow().stdout)

    def test_select(self):
        """Checks that the best model becomes a version, and a worse model does not replace it; without a good model the
        old version stays."""
        train = self.write("train.py", "import sys\nprint('1 1.0 1.0', sys.argv[1], '0.1 10')\nopen(sys.argv[2], 'w').write('model ' + sys.argv[1])\n")

        def steps(accuracies, least):
            each = ", ".join(f"m{k}: {{accuracy: {accuracy}}}" for k, accuracy in enumerate(accuracies))
            return self.workflow(f"""
  train: {{each: {{{each}}}, command: [python3, {train}, '{{accuracy}}', '{{model}}'], outputs: {{model: 'models/{{accuracy}}'}}}}
  select:
    command: "{{python}} -m muster_flow select --repository {{here}}/repository --name m --at-least {least} --json {{selected}} {{*models}}"
    inputs: {{models: '{{train.model}}'}}
    outputs: {{selected: selected.json}}
    environment: {{PYTHONPATH: '{{platform}}'}}
""")
        self.file = steps([0.5, 0.9, 0.7], 0.6)
        self.flow()
        versions = self.folder / "repository" / "m"
        self.assertEqual((versions / "1" / "model.muster").read_text(), "model 0.9")
        self.assertEqual([one["accuracy"] for one in json.loads((self.folder / "out" / "selected.json").read_text())["accuracies"]], [0.9, 0.7, 0.5])
        self.file = steps([0.5, 0.8, 0.7], 0.6)
        self.flow()
        self.assertEqual([entry.name for entry in versions.iterdir()], ["1"])
        for left in ("2.new", "mine.new"):   # left by a killed run, and a folder of the user
            (versions / left).mkdir()
        self.file = steps([0.5, 0.95, 0.7], 0.6)
        self.flow()
        self.assertEqual((versions / "2" / "model.muster").read_text(), "model 0.95")
        self.assertEqual(sorted(entry.name for entry in versions.iterdir()), ["1", "2", "mine.new"])
        (versions / "mine.new").rmdir()
        self.file = steps([0.5, 0.95, 0.7], 0.99)
        error = self.flow(status=1).stderr
        self.assertIn("no model has an accuracy of 0.99 (train-m1 0.9500, train-m2 0.7000, train-m0 0.5000); version 2 stays", error)
        self.assertEqual(sorted(entry.name for entry in versions.iterdir()), ["1", "2"])

    def test_the_lineage_of_a_model(self):
        """Checks a version, and an answer of its server, back to the file of data, also when the results are removed."""
        train = self.write("train.py", "import sys\nprint('1 1.0 1.0', sys.argv[1], '0.1 10')\nopen(sys.argv[3], 'w').write('model ' + sys.argv[1] + open(sys.argv[2]).read())\n")
        rows = self.write("rows.csv", "1,2\n")
        self.file = self.workflow(f"""
  ingest: {{command: [cp, '{{rows}}', '{{made}}'], inputs: {{rows: rows.csv}}, outputs: {{made: data}}}}
  train: {{each: {{a: {{rate: 0.8}}, b: {{rate: 0.7}}}}, command: [python3, {train}, '{{rate}}', '{{data}}', '{{model}}'], inputs: {{data: data}}, outputs: {{model: 'models/{{rate}}'}}}}
  select:
    command: "{{python}} -m muster_flow select --repository {{out}}/repository --name m {{*models}}"
    inputs: {{models: '{{train.model}}'}}
    environment: {{PYTHONPATH: '{{platform}}'}}
""")
        self.flow()
        digest = hashlib.sha256(b"1,2\n").hexdigest()[:12]

        def shown(*words, **more):
            return self.bench("show", *words, "--out", "out", **more).stdout
        lines = shown("m/1").splitlines()
        self.assertEqual(lines[0], "m version 1: train-a, accuracy 0.8000")
        for line in (f"  input data: from ingest, sha256 {digest}", f"  input rows: {rows}, sha256 {digest}", "  parameters: rate=0.8"):
            self.assertIn(line, lines)
        self.assertTrue(any(line.startswith("  code: {here}/train.py, sha256 ") for line in lines), lines)
        self.assertFalse(any("train-b" in line for line in lines), lines)
        self.write("rows.csv", "3,4\n")
        self.file.write_text(self.file.read_text().replace("rate: 0.8", "rate: 0.9"))
        self.flow()
        self.bench("gc", self.file, "--out", "out", "--unused", "0s")
        answer = json.dumps({"model_name": "m", "model_version": "1", "outputs": []})
        done = subprocess.run([*self.runner, "show", "-", "--out", "out"], input=answer, capture_output=True, text=True, cwd=self.folder, timeout=60)
        self.assertEqual(done.stdout.splitlines(), lines)
        self.assertEqual(shown("m"), shown(self.folder / "out" / "repository" / "m" / "2"))
        self.assertEqual(shown().splitlines(), ["m/1: train-a, accuracy 0.8000", "m/2: train-a, accuracy 0.9000"])
        self.assertEqual(shown("--where", "rate=0.9", "--where", "step=ingest").splitlines(), ["m/2: train-a, accuracy 0.9000"])
        self.assertEqual([step["step"] for step in json.loads(shown("m/2", "--json"))["steps"]], ["ingest", "train-a"])
        shown("m/2", "--html", "lineage.html")
        page = (self.folder / "lineage.html").read_text()
        texts = re.findall(r"<text [^>]*>([^<]*)</text>", page)
        self.assertEqual(texts[::2][1:], ["ingest", "train-a", "m version 2"])
        self.assertTrue(texts[0].endswith("/rows.csv"), texts)
        self.assertEqual(page.count("<path "), 3)
        self.refused("show", "m/3", "--out", "out", says=["no model 'm/3'", "m/1, m/2"])
        self.refused("show", "m", "--out", "nowhere", says="no results")

    def test_an_ensemble_is_published_if_it_is_measured_to_be_better(self):
        """Checks models with reports and without a runner: each member has the accuracy, the mean of them is measured, an offer joins what is served."""
        repository = self.folder / "repository" / "m"
        for name, accuracies in (("a", [0.8, 0.9]), ("b", [0.92, 0.91]), ("c", [0.6, 0.7])):
            self.write(f"{name}.model", f"model {name}")
            self.write(f"{name}.json", json.dumps({"format": 1, "epochs": [{"epoch": k + 1, "val_accuracy": accuracy} for k, accuracy in enumerate(accuracies)],
                                                   "annotations": {"saved_epoch": "1"} if name == "b" else {}}))
        measure = self.write("measure.py", """import pathlib, sys
names = "".join(sorted(pathlib.Path(path).read_text()[-1] for path in sys.argv[2::2]))
print("loss 1", {"a": "top-1 accuracy  0.9000", "b": "top-1 accuracy  0.9200", "c": "accuracy: 0.7", "ab": "accuracy 0.91", "bc": "accuracy 0.99"}.get(names, "unknown"), sep="\\n")
""")

        def select(*words, models, status=0, measured=True):
            last = ("--measure", sys.executable, measure) if measured else ()
            return self.bench("select", "--repository", repository.parent, "--name", "m", "--json", "selected.json", *words, *(f"{name}.model" for name in models),
                              "--reports", *(f"{name}.json" for name in models), *last, status=status)

        def served():
            found = json.loads((self.folder / "selected.json").read_text())
            return found["version"], found["selected"].get("step"), found["selected"].get("accuracy"), [one["step"] for one in found["selected"].get("members", [])]
        # the mean of two is worse than the best of them, which alone is published; its best epoch counts, which its training has saved
        self.assertIn("0.9100  the mean of b and a, measured", select("--ensemble", 2, models="abc").stdout)
        self.assertEqual(served(), (1, "b", 0.92, ["b"]))
        self.assertEqual([path.name for path in (repository / "1").glob("*.muster")], ["model.muster"])
        # a model below the accuracy is no member, although the mean with it would be better
        self.assertNotIn("measured", select("--ensemble", 2, "--at-least", 0.905, models="bc").stdout)
        self.assertEqual(served()[:2], (1, "b"))
        self.assertIn("0.9900  the mean of b and c, measured", select("--ensemble", 2, "--at-least", 0.6, models="bc").stdout)
        self.assertEqual(served(), (2, "the mean of b and c", 0.99, ["b", "c"]))
        self.assertEqual({path.name: path.read_text() for path in (repository / "2").glob("*.muster")}, {"1-b.muster": "model b", "2-c.muster": "model c"})
        self.assertIn("version 2 stays", select("--at-least", 0.95, models="abc", status=1).stdout)
        # as the models arrive: none is good enough, the first is served, the second one joins it, the third one does not
        shutil.rmtree(repository)
        select("--offer", "--at-least", 0.75, "--ensemble", 2, models="c")
        self.assertEqual(served(), (None, None, None, []))
        select("--offer", "--ensemble", 2, models="c")
        self.assertEqual(served(), (1, "c", 0.7, ["c"]))
        select("--offer", "--ensemble", 2, models="b")
        self.assertEqual(served(), (2, "the mean of b and c", 0.99, ["b", "c"]))
        select("--offer", "--ensemble", 2, models="a")
        self.assertEqual(served()[0], 2)
        self.refused("select", "--repository", repository, "--name", "m", "--ensemble", 2, "a.model", says=["--ensemble 2", "--measure"])
        self.refused("select", "--repository", repository, "--name", "m", "a.model", says=["nothing is known of 'a.model'", "--reports"])
        self.refused("select", "--repository", repository, "--name", "m", "a.model", "b.model", "--reports", "a.json", says=["1 files for 2 models"])
        self.refused("select", "--repository", repository, "--name", "m", "--ensemble", 2, "a.model", "b.model", "--reports", "a.json", "b.json", "--measure", "false",
                     says=["--measure false gave no accuracy (status 1"])

    def test_select_without_room(self):
        repository = self.small_disk("repository", "1m")
        train = self.write("train.py", "import sys\nprint('1 1.0 1.0', sys.argv[1], '0.1 10')\nopen(sys.argv[2], 'w').write('x' * int(sys.argv[3]))\n")

        def steps(accuracy, size):
            return self.workflow(f"""
  train: {{command: [python3, {train}, '{accuracy}', '{{model}}', '{size}'], outputs: {{model: model}}}}
  select:
    command: "{{python}} -m muster_flow select --repository {repository} --name m {{model}}"
    inputs: {{model: model}}
    environment: {{PYTHONPATH: '{{platform}}'}}
""")
        self.file = steps(0.5, 1000)
        self.flow()
        self.file = steps(0.9, 2_000_000)
        self.assertIn("version 2 was not written, version 1 stays: no room", self.flow(status=1).stderr)
        self.assertEqual([entry.name for entry in (repository / "m").iterdir() if entry.name.isdigit()], ["1"])
        subprocess.run(["mount", "-o", "remount,size=10m", repository], check=True)
        self.flow()
        self.assertEqual((repository / "m" / "2" / "model.muster").stat().st_size, 2_000_000)


@unittest.skipIf(shutil.which("snakemake") is None, "SKIPPED: snakemake is not installed")
class Collects(Case):
    def test_what_is_used_and_what_is_young_stays(self):
        file = self.workflow("  one: {command: [sh, -c, 'echo {n} > $1', x, '{made}'], outputs: {made: made}}", "parameters: {n: 1}")
        for n in (1, 2, 3):
            self.bench("run", file, "--out", "out", "--set", f"n={n}", timeout=300)
        store = self.folder / "out" / "store"
        for number in range(1000):
            self.write(f"out/store/{number:032x}/record.json", "{}")
        entries = list(store.iterdir())
        self.assertEqual(len(entries), 1003)
        for entry in entries[::2]:
            os.utime(entry, (0, 0))
        used = (self.folder / "out" / "made").resolve()
        os.utime(used.parent, (0, 0))
        old = {entry for entry in entries if entry.stat().st_mtime == 0} - {used.parent}
        (store / ".removed-x" / "output").mkdir(parents=True)   # left by an earlier, killed command
        self.assertIn(f"{len(old)} results removed", self.bench("gc", file, "--out", "out").stdout)
        self.assertEqual({entry for entry in store.iterdir() if entry.name[0] != "."}, set(entries) - old)
        end = time.monotonic() + 300
        while list(store.glob(".*")):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        self.assertEqual((self.folder / "out" / "made").read_text(), "3\n")
        self.assertIn("nothing to run", self.bench("run", file, "--out", "out", "--set", "n=3").stdout)

    def run_with(self, steps, keep, *words):
        return self.bench("run", self.workflow(steps, f"parameters: {{n: 1}}\nkeep: {keep}"), "--out", "out", *words, timeout=300).stdout

    def results(self):
        return sorted(entry.name for entry in (self.folder / "out" / "store").iterdir() if entry.name[0] != ".")

    def test_runs_remove_what_is_old_or_too_much(self):
        """Checks the age, the size and the references of results after a run, without a command."""
        one = "  one: {command: [sh, -c, 'head -c 300000 /dev/zero > $1; echo {n} >> $1', x, '{made}'], outputs: {made: folder/made}}"
        two = "  two: {command: [sh, -c, 'echo {n} > $1', x, '{made}'], outputs: {made: folder/other}}"
        for n in (1, 2, 3):
            self.assertNotIn("removed", self.run_with(f"{one}\n{two}", "{age: 14d}", "--set", f"n={n}"))
        self.assertEqual(len(self.results()), 6)
        for name in self.results()[:3]:
            os.utime(self.folder / "out" / "store" / name, (1, 1))
        used = [(self.folder / "out" / "folder" / name).resolve().parent.parent.name for name in ("made", "other")]
        old = [name for name in self.results()[:3] if name not in used]
        self.assertEqual(f"{len(old)} results removed that no step uses" in self.run_with(f"{one}\n{two}", "{age: 14d}", "--set", "n=3"), bool(old))
        self.assertEqual(set(self.results()) & set(old), set())
        self.run_with(f"{one}\n{two}", "{size: 700K}", "--set", "n=4")    # two of the large results have so much
        sizes = [bytes_under(self.folder / "out" / "store" / name) for name in self.results()]
        self.assertLessEqual(sum(sizes), 700 << 10)
        self.assertGreaterEqual(len([size for size in sizes if size > 200_000]), 1)
        # a step that the workflow no longer has uses nothing
        self.run_with(one, "{age: 0s}", "--set", "n=4")
        self.assertEqual(len(self.results()), 1)
        self.assertFalse(os.path.lexists(self.folder / "out" / "folder" / "other") or os.path.lexists(self.folder / "out" / "steps" / "two"))
        self.assertTrue((self.folder / "out" / "folder" / "made").exists())
        self.refused("run", self.workflow(one, "parameters: {n: 1}\nkeep: {size: much}"), "--out", "out", says=["keep", "'size'", "'much'"])

    def test_what_somebody_works_on_stays(self):
        """Checks the result of a service that runs between two runs of a watch: no link names it."""
        flow = workflow.read_file(self.workflow("  one: {command: 'true'}"))
        store = Store(self.folder / "out", flow)
        self.write("out/store/served/record.json", "{}")
        os.utime(self.folder / "out" / "store" / "served", (1, 1))
        with store.turn(flow.steps["one"]):
            store.works_on(flow.steps["one"], "served")
            self.assertEqual(collect(store, 10)[0], 0)
        self.assertEqual(collect(store, 10)[0], 1)

    def test_a_checkpoint_of_a_training_that_has_ended(self):
        self.run_with("  one: {command: [sh, -c, 'echo > $1/step-1; echo $2 > {here}/resumes', x, '{checkpoint}', '{resume}']}", "{}")
        self.assertEqual(list((self.folder / "out" / "steps" / "one").glob("checkpoint")), [])

    def test_what_was_interrupted_stays_as_long_as_somebody_worked_at_it(self):
        file = self.workflow("  one: {command: 'true'}")
        for name, young in (("trained", "checkpoint/step-2.state"), ("begun", "output/1"), ("left", None)):
            for path in ("checkpoint/step-2.state", "output/1/log.txt"):
                self.write(f"out/store/{name}/{path}", "")
            home = self.folder / "out" / "store" / name
            for path in [home, *home.rglob("*")]:
                if young is None or path != home / young:
                    os.utime(path, (0, 0))
        self.assertIn("1 results removed", self.bench("gc", file, "--out", "out").stdout)
        self.assertEqual(sorted(entry.name for entry in (self.folder / "out" / "store").iterdir() if entry.name[0] != "."), ["begun", "trained"])


if __name__ == "__main__":
    unittest.main()
