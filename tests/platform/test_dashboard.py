"""Tests the dashboard: real runs by a real server, the runs after its end, and its refusals."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest
import urllib.request

from bench import BUILD, PLATFORM, absent
from dashboard import Served
from muster_bench.presets.ports import free_port


class Started(Served):
    def test_a_run_from_its_start_to_its_result(self):
        self.serve()
        folder = self.start(4, 0.02, goal={"metric": "accuracy", "value": 0.75}, name="a first one")
        self.assertTrue(folder.startswith("a_first_one-"), folder)
        row = self.row(folder, "ok")
        self.assertEqual((row["title"], row["epoch"], row["metrics"]["val_accuracy"]), ("a first one", 4, 0.85))
        home = self.runs / folder / "experiments" / row["run"]
        result = json.loads((home / "result" / "result.json").read_text())
        run = self.ask(f"/api/runs/{row['id']}")
        self.assertEqual((run["series"], run["results"]), (result["series"], result["metrics"]))
        self.assertEqual(run["goals"], [{"metric": "val_accuracy", "value": 0.75, "reached": result["series"][2]["seconds"]}])
        self.assertAlmostEqual(sum(run["shares"].values()), 1)
        self.assertGreater(run["phases"]["forward"], 0)
        log = self.ask(f"/api/runs/{row['id']}/log")
        self.assertEqual(log["text"], (home / "output" / "1" / "log.txt").read_text())
        self.assertEqual(self.ask(f"/api/runs/{row['id']}/log?worker=0")["text"], log["text"], "the one rank has printed all of it")
        self.assertEqual(self.ask(f"/api/runs/{row['id']}/log?offset=20")["text"], log["text"][20:])
        for path, file in ((f"{row['id']}/files/result/result.json", home / "result" / "result.json"), (f"{folder}/files/results.csv", self.runs / folder / "results.csv")):
            status, text, headers = self.open(f"/api/runs/{path}")
            self.assertEqual((status, text), (200, file.read_bytes()))
            self.assertIn("attachment", headers["Content-Disposition"])
        self.assertIn("results.csv", [file["path"] for file in self.ask(f"/api/runs/{folder}")["files"]])
        self.assertNotIn("worker.py", " ".join(run["words"]), "what ran is the command, whatever watches it")

    def test_live_posted_stopped_and_continued(self):
        self.serve()
        folder = self.start(1000, 0.05)
        row = self.row(folder, "running")
        address = f"/api/runs/{row['id']}"
        self.until(lambda: len(self.ask(address)["series"]) > 2)
        first = self.ask(address)["series"]
        self.until(lambda: len(self.ask(address)["series"]) > len(first))
        self.assertEqual(self.ask(address)["series"][:len(first)], first)
        self.assertEqual(self.ask(f"{address}/metrics", {"worker": 1, "metrics": {"temperature": 61.5}}, 202), {"kept": 1})
        self.ask(f"{address}/metrics", [{"at": 5, "metrics": {"temperature": 60}}, {"at": 6, "metrics": {"temperature": 62}}], 202)
        run = self.until(lambda: (found := self.ask(address))["posted"] and found["workers"] and len(found["workers"][0]["memory"]) > 1 and found)
        self.assertEqual(run["posted"]["temperature"]["0"], [[5, 60], [6, 62]])
        self.assertEqual(run["posted"]["temperature"]["1"][0][1], 61.5)
        self.assertGreater(run["workers"][0]["memory"][-1][1], 1 << 20)
        self.refuses(f"/api/runs/{folder}/continue", {}, says="is running (process")
        (self.runs / folder / "experiments" / row["run"] / "output" / "1" / "metrics.prom").write_text(
            "# TYPE x gauge\nmuster_mean_train_seconds 8\nmuster_mean_compute_seconds 4\nmuster_mean_communication_seconds 3.0e0\nmuster_mean_data_wait_seconds 0\nmuster_val_loss NaN\nother 5\n")
        self.assertEqual(self.ask(address)["shares"], {"computation_share": 0.5, "communication_share": 0.375, "data_wait_share": 0.0, "other_share": 0.125})
        self.ask(f"/api/runs/{folder}/stop", {}, 202)
        self.row(folder, "stopped")
        self.until(lambda: (self.runs / folder / "results.csv").exists())
        self.refuses(f"/api/runs/{folder}/stop", {}, says="is not running")
        self.assertGreater(len(self.ask(address)["series"]), 2, "what it printed is still there")
        self.ask(f"/api/runs/{folder}/continue", {}, 201)
        self.row(folder, "running")
        self.ask(f"/api/runs/{folder}/stop", {}, 202)
        self.row(folder, "stopped")

    def test_the_end_of_the_dashboard_disturbs_no_run(self):
        for signal_number in (signal.SIGKILL, signal.SIGTERM):
            server = self.serve()
            go = self.folder / signal_number.name
            folder = self.start(20, 0.05, go)
            row = self.row(folder, "running")
            self.until(lambda: self.ask(f"/api/runs/{row['id']}")["series"])
            server.send_signal(signal_number)
            self.assertEqual(server.wait(30), -signal_number if signal_number == signal.SIGKILL else 0)
            server = self.serve()
            self.assertEqual(self.row(folder)["status"], "running", "the next one finds it")
            go.touch()
            self.row(folder, "ok")
            run = self.ask(f"/api/runs/{row['id']}")
            self.assertEqual([epoch["epoch"] for epoch in run["series"]], list(range(1, 21)))
            self.assertEqual(len(run["attempts"]), 1)
            server.kill()

    def test_what_failed_says_why(self):
        self.serve()
        folder = self.ask("/api/runs", {"command": "sh -c 'echo 27 Kelvin is too cold; exit 3'"}, 201)["folder"]
        row = self.row(folder, "crash")
        self.assertEqual(row["why"], "it ended with status 3: 27 Kelvin is too cold")
        folder = self.ask("/api/runs", {"command": "sh -c 'kill -SEGV $$'"}, 201)["folder"]
        self.assertEqual(self.row(folder, "crash")["why"], "it was killed by SIGSEGV")

    @unittest.skipIf(absent("examples/logistic_regression") or not shutil.which("mpirun"), "SKIPPED: no build made logistic_regression, or there is no mpirun")
    def test_each_rank_of_a_training_by_its_own_log_and_its_steps(self):
        self.serve("--place", f"build={BUILD}")
        folder = self.ask("/api/runs", {"command": "{build}/examples/logistic_regression --synthetic epsilon:8000 --epochs 5 --json {output}/tracker.json", "ranks": 2,
                                        "launcher": "mpirun", "processors": 1, "trace": True}, 201)["folder"]
        row = self.row(folder, "ok", "crash")
        run = self.ask(f"/api/runs/{row['id']}")
        self.assertEqual((row["status"], row["ranks"], [worker["worker"] for worker in run["workers"]]), ("ok", 2, ["0", "1"]), row)
        self.assertIn("processors", run["settings"]["held"])
        self.assertIn("samples/s", self.ask(f"/api/runs/{row['id']}/log?worker=0")["text"])
        self.assertNotIn("samples/s", self.ask(f"/api/runs/{row['id']}/log?worker=1")["text"])
        exported = (self.runs / folder / "experiments" / row["run"] / "output" / "1" / "metrics.prom").read_text()
        self.assertIn(f"\nmuster_samples {run['results']['samples']}\n", exported)
        step = self.ask(f"/api/runs/{row['id']}/step?number=3")
        self.assertEqual((step["services"], step["steps"]), (["rank 0", "rank 1"], 400))
        self.assertEqual(sum(span["name"] == "step" for span in step["spans"]), 2)
        self.assertTrue(any(span["name"] == "backward" and span["parentId"] == step["spans"][0]["id"] for span in step["spans"]))
        self.refuses(f"/api/runs/{row['id']}/step?number=400", status=404, says="the timeline has 400")

    def test_presets_and_their_parts(self):
        self.write("build/examples/logistic_regression", "#!/bin/sh\nexit 3\n").chmod(0o755)
        self.serve("--place", f"build={self.folder}/build")
        presets = {preset["name"]: preset for preset in self.ask("/api/presets")["presets"]}
        self.assertEqual((presets["mlbench-2a"]["division"], presets["mlbench-2a"]["ranks"]), ("closed", [1, 2, 4, 8, 16, 32, 64]))
        self.refuses("/api/runs", {"preset": "mlbench-2b"}, says="did you mean 'mlbench-2a'?")
        self.refuses("/api/runs", {"preset": "mlbench-2a", "processors": 2}, says="would change the closed preset 'mlbench-2a'")
        self.refuses("/api/runs", {"preset": "mlbench-2a", "ranks": 3}, says="is left")
        folder = self.ask("/api/runs", {"preset": "mlbench-2a", "ranks": 64}, 201)["folder"]
        self.row(folder, "skipped", "crash")
        self.assertEqual({row["ranks"] for row in self.ask("/api/runs")["runs"]}, {64}, "the part with as many workers")


class Refused(Served):
    def test_requests(self):
        self.serve()
        run = self.made("done", "run-12345678", {"throughput": 1.0})
        (self.folder / "secret").write_text("secret")
        (run / "output" / "1" / "way-out").symlink_to(self.folder / "secret")
        to = "/api/runs/done/run-12345678"
        for body, says in ((b"{", "no JSON"), (b"\xff", "no JSON"), (b"[" * 100000, "no JSON"), ([], "a list"), ({}, "starts no run"), ({"command": 5}, "'command' cannot be '5'"),
                           ({"command": "true", "preset": "mlbench-2a"}, "starts no run"), ({"command": "true", "ranks": -1}, "ranks cannot be -1"), ({"command": "true", "shell": 1}, "unknown key 'shell'"),
                           ({"command": "true", "launcher": "kubernets"}, "unknown launcher"), ({"command": "true {nothing}"}, "unknown placeholder '{nothing}'"),
                           ({"command": "no-such-program"}, "there is no such program"), ({"command": "'"}, "quot"), ({"command": "true", "goal": {"metric": "luck"}}, "unknown metric 'luck'")):
            with self.subTest(body=body):
                self.refuses("/api/runs", body, says=says if says != "a list" else "mapping")
        self.refuses("/api/runs", b"command=true", Content_Type="application/x-www-form-urlencoded", says="has to be application/json")
        for body, says in ((5, "a row is not"), ([], "0 rows"), ({"metrics": {}}, "a row is not"), ({"metrics": {"loss": "low"}}, "'loss' cannot be 'low'"), (b'{"metrics": {"loss": NaN}}', "NaN is no number"),
                           (b'{"metrics": {"loss": 1e999}}', "'loss' cannot be 'inf'"), ({"worker": -1, "metrics": {"a": 1}}, "the worker cannot be"), ({"metrics": {"a": True}}, "'a' cannot be"),
                           ({"metrics": {"a": 1}, "rank": 0}, "a row is not"), ([{"metrics": {"a": 1}}] * 1001, "1001 rows")):
            with self.subTest(body=body):
                self.refuses(f"{to}/metrics", body, says=says)
        self.refuses(f"{to}/metrics", b'{"metrics": {"a": 1' + b"0" * (5 << 20) + b"}}", status=413, says="too long")
        for body in ({}, [5], [{"traceId": "x", "id": "1" * 16}], [{"traceId": "1" * 16, "id": "../../secret00000"}], [{"traceId": "1" * 16, "id": "2" * 16, "timestamp": -1}],
                     [{"traceId": "1" * 16, "id": "2" * 16, "duration": "long"}], [{"traceId": "1" * 16, "id": "2" * 16, "tags": []}, 5]):
            with self.subTest(body=body):
                self.refuses("/api/v2/spans", body)
        self.assertEqual(self.ask("/api/traces"), {"traces": []})
        for path in ("../../../../secret", "..%2f..%2f..%2f..%2fsecret", "%2e%2e/%2e%2e/%2e%2e/%2e%2e/secret", f"/{self.folder}/secret", f"%2f{self.folder}/secret".replace("//", "/"), "output/1/way-out",
                     "config/%00", "nothing", "output"):
            with self.subTest(path=path):
                self.refuses(f"{to}/files/{path}", status=404)
                self.refuses(f"/api/runs/done/files/{path}", status=404)
        for path in ("/api/runs/..", "/api/runs/../x", "/api/runs/%2e%2e/run-12345678", "/api/runs/done/%2e%2e", "/api/runs/done/.hidden", "/api/runs/nothing", "/api/runs/done/run-0", f"{to}/log?worker=9", "/api/traces/..",
                     "/api/traces/0000000000000000", "/nothing", "/dashboard.py", "/api/compare?first=done/x&second=done/y", f"{to}/step"):
            with self.subTest(path=path):
                self.refuses(path, status=404)
        self.refuses(f"{to}/log?worker=../../../config/run", says="it is a number")
        self.refuses(f"{to}/log?offset=x", says="offset cannot be 'x'")
        self.refuses("/api/compare?first=done", says="first cannot be 'done'")
        self.refuses("/api/runs", method="DELETE", status=405)
        self.refuses("/api/runs/..%2fdone/stop", {}, says="is not running")
        self.refuses("/api/runs/..%2fdone/continue", {}, says="was not started here")
        self.assertEqual([row["id"] for row in self.ask("/api/runs")["runs"]], ["done/run-12345678"], "nothing was started")
        self.assertFalse((run / "output" / "1" / "posted.jsonl").exists())

    def test_origins_and_names(self):
        self.serve()
        port = self.url.rpartition(":")[2]
        self.ask("/api/runs", Origin=self.url)
        for origin in ("http://example.com", "null", f"https://127.0.0.1:{int(port) + 1}", "http://127.0.0.1"):
            self.refuses("/api/runs", Origin=origin, status=403, says="its origin is another one")
            self.refuses("/api/runs", {"command": "true"}, Origin=origin, status=403, says="its origin is another one")
        self.refuses("/api/runs", Origin="http://[", status=403, says="its origin is another one")
        self.ask("/api/runs", Host=f"localhost:{port}")

    def test_without_a_token_nobody_starts_anything(self):
        self.serve()
        self.assertEqual(len(self.token), 43)
        kept = self.runs / ".dashboard" / "token"
        self.assertEqual((kept.read_text(), kept.stat().st_mode & 0o777), (self.token, 0o600))
        drawn, self.token = self.token, ""
        self.refuses("/api/runs", {"command": "true"}, status=401, says="the token is missing")
        self.assertFalse([path for path in self.runs.iterdir() if path != kept.parent])
        self.serve()
        self.assertEqual(self.token, drawn, "runs that go on know it")
        kept.chmod(0o644)
        self.serve()
        self.assertNotEqual(self.token, drawn, "others may have read it")

    def test_a_chosen_token_is_seen_by_its_user_alone(self):
        self.write("token", "s3cret&\nmore\n")
        for words, environment in ((("--token-file", "token"), {}), ((), {"BENCH_TOKEN": "s3cret&"}), (("--token", "s3cret&"), {})):
            with self.subTest(words=words):
                server = self.serve(*words, env={**os.environ, **environment})
                self.assertEqual(self.token, "", "it was printed")
                self.assertNotIn(b"s3cret", pathlib.Path(f"/proc/{server.pid}/cmdline").read_bytes())
                self.refuses("/api/runs", status=401)
                self.token = "s3cret&"
                self.ask("/api/runs")
        self.write("empty", "\n")
        self.refused("serve", "runs", "--token-file", "empty", says="has no token")
        self.refused("serve", "runs", "--token-file", "nothing", says="cannot be read")

    def test_the_token(self):
        self.serve("--token", "s3cret&")
        with socket.create_connection(("127.0.0.1", int(self.url.rpartition(":")[2])), timeout=30) as connection:
            connection.sendall(b"GET /api/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\r\n\r\n")
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        self.assertTrue(answer.startswith(b"HTTP/1.1 401 "), answer)
        for path in ("/", "/dashboard.js", "/api/runs", "/metrics", "/api/openapi.json"):
            self.refuses(path, status=401, says="the token is missing or another one")
            self.refuses(path, status=401, Authorization="Bearer wrong")
        self.refuses("/api/runs", {"command": "true"}, status=401)
        self.refuses("/?token=wrong", status=401)
        self.token = "s3cret&"
        self.assertEqual(self.ask("/api/runs"), {"runs": []})
        self.token = ""
        connection = http.client.HTTPConnection(self.url[7:], timeout=30)
        connection.request("GET", "/?token=s3cret%26")
        answer = connection.getresponse()
        cookie = answer.headers["Set-Cookie"]
        self.assertEqual((answer.status, answer.headers["Location"]), (303, "/"))
        self.assertIn("HttpOnly", cookie)
        self.assertIn("SameSite=Strict", cookie)
        connection.close()
        self.assertEqual(self.ask("/api/runs", Cookie=cookie.partition(";")[0]), {"runs": []})

    def test_what_a_run_has_written_is_no_page(self):
        self.serve()
        home = self.made("done", "run-12345678") / "output" / "1"
        (self.folder / "secret").write_text("secret")
        (home / "log.txt").write_text("log")
        (home / "log.txt.gz").symlink_to(self.folder / "secret")
        for name in ("evil.js", "evil.html", "evil.svg", "report.html", "evil", "log.txt"):
            (home / name).write_text("<script>1</script>" if name != "log.txt" else "log")
            status, text, headers = self.open(f"/api/runs/done/run-12345678/files/output/1/{name}", Accept_Encoding="gzip")
            self.assertEqual((status, text), (200, (home / name).read_bytes()))
            self.assertEqual(headers["Content-Type"], "text/plain; charset=utf-8")
            self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
            self.assertTrue(headers["Content-Security-Policy"].startswith("sandbox; default-src 'none'"))
            self.assertTrue(headers["Content-Disposition"].startswith("attachment"))
        (self.runs / "done" / "report.html").write_text("<h1>Report</h1>")
        _, _, headers = self.open("/api/runs/done/files/report.html")
        self.assertEqual((headers["Content-Type"], headers["Content-Security-Policy"][:8]), ("text/html; charset=utf-8", "sandbox;"))
        _, page, headers = self.open("/")
        nonce = re.search(r"script-src 'nonce-([^']+)'", headers["Content-Security-Policy"])[1]
        self.assertIn(f'src="dashboard.js" nonce="{nonce}"'.encode(), page)
        self.assertNotEqual(re.search(r"'nonce-([^']+)'", self.open("/")[2]["Content-Security-Policy"])[1], nonce)

    def test_a_run_of_another_form_is_one_line(self):
        self.serve()
        self.made("done", "good-12345678", {"throughput": 5.0}, began=time.time())
        run = {"experiment": "e", "parameters": {"ranks": 1}, "words": ["true"]}
        result = {"status": "ok", "why": "", "began": time.time(), "wall_seconds": 1.0, "metrics": {"a-b": 1.0, "a_b": 2.0, "text": "x", "epoch": 3}, "series": [], "rows": []}
        deep = "[" * 100000 + "]" * 100000
        bad = {  # contents of run.json and of result.json
            "no-object": ([], result), "no-json": ("{", result), "no-parameters": ({"experiment": "e"}, result), "list-of-parameters": ({**run, "parameters": [1]}, result),
            "ranks": ({**run, "parameters": {"ranks": {}}}, result), "deep": (run, deep), "null": (run, None), "text": (run, "x"), "series": (run, {**result, "series": 5}),
            "epoch": (run, {**result, "series": ["x"]}), "began": (run, {**result, "began": "now"}), "seconds": (run, {**result, "wall_seconds": []}), "metrics": (run, {**result, "metrics": [1]})}
        odd = {  # readable in spite of odd contents
            "nan": (run, {**result, "metrics": {"loss": float("nan")}, "series": [{"epoch": 1, "train_loss": float("inf")}]}), "surrogate": (run, {**result, "why": "\ud800", "status": "\udfff"}),
            "values": (run, {**result, "metrics": {"throughput": "fast", "loss": [1]}}), "settings": (run, {**result, "settings": {"a": {"b": [float("nan")]}}}),
            "rows": (run, {**result, "rows": [5], "series": []}), "words": ({**run, "words": 5}, result), "large": (run, {**result, "metrics": {"x": 1e308, "y": -1e308}})}
        for name, files in {**bad, **odd}.items():
            home = self.made("done", f"{name}-12345678")
            for path, content in zip((home / "config" / "run.json", home / "result" / "result.json"), files):
                path.write_text(content if isinstance(content, str) else json.dumps(content))
        home = self.made("done", "strange-12345678")
        (home / "output" / "\u00b2").mkdir()
        (home / "output" / "1" / "workers").mkdir()
        (home / "output" / "1" / "workers" / "\u00b2.log").write_text("")
        (home / "output" / "1" / "workers" / "0.log").write_text("")
        (home / "output" / "1" / "workers" / "0.jsonl").write_text('{"at": "x", "cpu": 1, "memory": 1, "received": 1, "sent": 1}\n[]\n')
        (home / "output" / "1" / "posted.jsonl").write_text('{"metrics": 5}\n{"metrics": {"a": "b"}, "at": 1}\n{"metrics": {"a": 1}}\n' + deep + "\n")
        (home / "output" / "1" / "trace.json").write_text('{"cat":"step","name":"step","pid":"x","ts":1,"dur":1,"args":{"number":0}}\n{"cat":"step","name":"step","pid":1,"ts":1,"dur":1,"args":5}\n')
        os.mkfifo(home / "output" / "1" / "metrics.prom")
        (self.runs / "other").mkdir()
        (self.runs / "other" / "muster-bench.json").write_text("[]")
        pipes = self.made("done", "pipes-12345678")
        for path in (pipes / "config" / "run.json", pipes / "result" / "result.json"):
            path.unlink()
            os.mkfifo(path)
        rows = {row["run"].removesuffix("-12345678"): row for row in self.ask("/api/runs")["runs"]}
        self.assertEqual({name for name, row in rows.items() if row["status"] == "unreadable"}, {*bad, "pipes"})
        self.assertEqual(set(rows), {"good", "strange", "pipes", *bad, *odd})
        self.assertIn("do not have the form of a run", rows["ranks"]["why"])
        metrics = self.open("/metrics")
        self.assertEqual(metrics[0], 200)
        self.assertIn(b'muster_run_throughput{folder="done",run="good-12345678"} 5.0', metrics[1])
        samples = [line.rpartition(b" ")[0] for line in metrics[1].splitlines() if not line.startswith(b"#")]
        self.assertEqual(len(samples), len(set(samples)))
        for name, row in rows.items():
            with self.subTest(run=name):
                run = self.ask(f"/api/runs/{row['id']}")
                self.assertEqual(run["status"], "unreadable" if name in ("rows", "words") else row["status"])
        self.refuses("/api/runs/done/strange-12345678/step?number=0", status=404)
        self.assertEqual(self.ask("/api/runs/done/strange-12345678")["posted"], {})
        self.open("/api/compare?first=done/large-12345678&second=done/nan-12345678")

    def test_idle_connections_do_not_end_it(self):
        self.serve(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
        to = ("127.0.0.1", int(self.url.rpartition(":")[2]))
        with contextlib.ExitStack() as held:
            idle = [held.enter_context(socket.create_connection(to, timeout=30)) for _ in range(100)]
            for one in idle:
                with contextlib.suppress(OSError):
                    one.sendall(b"GET / HTTP/1.1\r\n")
            for _ in range(3):
                self.assertEqual(self.ask("/api/runs"), {"runs": []})
            with contextlib.suppress(ConnectionResetError):   # its data was not read
                self.assertEqual(idle[0].recv(1), b"", "the oldest one goes")
            idle[-1].settimeout(0)
            self.assertRaises(BlockingIOError, idle[-1].recv, 1)

    def test_command_lines(self):
        self.refused("serve", "runs", "--listen", "0.0.0.0:0", says="can be reached by other machines")
        self.refused("serve", "runs", "--listen", "8080", says="--listen cannot be '8080'")
        self.refused("serve", "runs", "--listen", "127.0.0.1:99999", says="ADDRESS:PORT")
        self.serve()
        self.refused("serve", "other", "--listen", self.url[7:], says="cannot be used (Address already in use)")
        self.made("done", "run-12345678")
        self.refused("serve", "runs/done", "--listen", "127.0.0.1:0", says="is one folder of results")
        self.write("file", "")
        self.refused("serve", "file/runs", "--listen", "127.0.0.1:0", status=4, says="cannot write")


class Shown(Served):
    def test_a_thousand_runs(self):
        epochs = [{"epoch": n, "train_loss": 1 / n, "val_accuracy": 0.5, "seconds": n, **{f"more_{i}": 0.5 for i in range(15)}} for n in range(1, 31)]
        for number in range(1000):
            self.made(f"sweep-{number % 10}", f"made-n={number}-{number:08x}", {"throughput": 5.0}, "crash" if number == 500 else "ok", "cold" if number == 500 else "", epochs, 1e9 + number, n=number)
        self.serve()
        for _ in range(2):
            rows = self.ask("/api/runs")["runs"]
            self.assertEqual([row["parameters"]["n"] for row in rows], list(range(999, -1, -1)))
        self.assertEqual((rows[499]["status"], rows[499]["why"], rows[0]["metrics"]), ("crash", "cold", {"train_loss": 1 / 30, "val_accuracy": 0.5}))
        status, _, headers = self.open("/api/runs")
        self.assertEqual(self.open("/api/runs", If_None_Match=headers["ETag"])[0], 304)

    def test_a_gigabyte_is_streamed(self):
        server = self.serve()
        home = self.made("done", "run-12345678")
        size, end = 1 << 30, os.urandom(1000)
        with open(home / "output" / "1" / "large", "wb") as file:
            file.truncate(size)
            file.seek(size - len(end))
            file.write(end)

        def memory(field):
            return int(next(line for line in pathlib.Path(f"/proc/{server.pid}/status").read_text().splitlines() if line.startswith(field)).split()[1]) << 10
        self.ask("/api/runs")
        before, got, last = memory("VmRSS"), 0, b""
        request = urllib.request.Request(f"{self.url}/api/runs/done/run-12345678/files/output/1/large", headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            while piece := answer.read(1 << 20):
                got, last = got + len(piece), (last + piece)[-len(end):]
        self.assertEqual((got, last), (size, end))
        self.assertLess(memory("VmHWM") - before, 32 << 20)
        self.assertEqual(self.open("/api/runs/done/run-12345678/files/output/1/large", Range="bytes=1073740824-")[:2], (206, end))

    def test_two_runs_with_their_repetitions(self):
        for number in range(6):
            for folder, scale in (("old", 1.0), ("new", 1.5)):
                self.made(folder, f"made-r{number}-1234567{number}", {"throughput": scale * (100 + number % 3), "train_seconds": (10 + number % 3) / scale, "mine": 2.0}, began=1e9 + number)
        self.serve()
        found = self.ask("/api/compare?first=old/made-r1-12345671&second=new/made-r2-12345672")
        rows = {row["measure"]: row for row in found["rows"]}
        self.assertEqual(found["repetitions"], [6, 6])
        self.assertEqual((rows["throughput"]["decision"], rows["train_seconds"]["decision"], rows["mine"]["decision"]), ("faster", "lower", "within noise"))
        self.assertEqual((rows["throughput"]["first"], rows["throughput"]["second"]), (101.0, 153.0))
        alone = self.ask("/api/compare?first=old/made-r1-12345671&second=old/made-r1-12345671")
        self.assertEqual({row["decision"] for row in alone["rows"]}, {"within noise"})

    def test_spans(self):
        self.serve()

        def span(trace, number, parent=None, name="Training a model", begin=1000, took=500, service="trainer", **more):
            return {"traceId": trace, "id": f"{number:016x}", **({"parentId": f"{parent:016x}"} if parent else {}), "name": name, "timestamp": begin, "duration": took, "kind": "SERVER",
                    "localEndpoint": {"serviceName": service, "ipv4": "127.0.0.1"}, **more}
        self.ask("/api/v2/spans", [span("A" * 32, 2, 1), span("b" * 16, 1, begin=5000)], 202)
        self.ask("/api/v2/spans", [span("a" * 32, 1, name="Invoke all trainers", begin=900, took=800, service="driver", tags={"trainers": "4"})], 202)
        traces = self.ask("/api/traces")["traces"]
        self.assertEqual([(trace["id"], trace["name"], trace["count"]) for trace in traces], [("b" * 16, "Training a model", 1), ("a" * 32, "Invoke all trainers", 2)])
        trace = self.ask(f"/api/traces/{'a' * 32}")
        self.assertEqual((trace["timestamp"], trace["duration"], trace["services"]), (900, 800, ["driver", "trainer"]))
        self.assertEqual([(one["name"], one.get("parentId"), one["tags"]) for one in trace["spans"]], [("Invoke all trainers", None, {"trainers": "4"}), ("Training a model", f"{1:016x}", {})])
        long = [span("c" * 16, number, tags={str(n): "x" * 200 for n in range(20)}) for number in range(1, 801)]
        for _ in range(3):   # 3.6 MB each: the third exceeds the limit
            self.ask("/api/v2/spans", long, 202)
        self.assertEqual(self.ask(f"/api/traces/{'c' * 16}")["count"], 1600)
        self.assertIn(b"muster_spans_dropped_total 800.0", self.open("/metrics")[1])

    def test_workflows_and_the_lineage_of_their_models(self):
        file = self.write("flow.yaml", """
muster-flow: 1
name: of <b>the test</b>
steps:
  ingest: {command: [cp, '{rows}', '{made}'], inputs: {rows: rows.csv}, outputs: {made: data}}
  train: {command: [sh, -c, 'echo "1 1.0 1.0 0.8 0.1 10"; cat $1 > $2', x, '{data}', '{model}'], inputs: {data: data}, outputs: {model: model}}
  select:
    command: "{python} -m muster_flow select --repository {out}/repository --name m {model}"
    inputs: {model: model}
    environment: {PYTHONPATH: '{platform}'}
  broken: {command: 'false', needs: [select]}
""")
        self.write("rows.csv", "1,2\n")
        if shutil.which("snakemake") is None:
            self.skipTest("SKIPPED: snakemake is not installed")
        done = subprocess.run([sys.executable, "-m", "muster_flow", "run", file, "--out", self.runs / "flow"], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.serve()
        self.assertEqual(self.ask("/api/runs")["runs"], [])
        (found,) = self.ask("/api/workflows")["workflows"]
        self.assertEqual((found["folder"], found["name"]), ("flow", "of <b>the test</b>"))
        self.assertEqual({step["step"]: step["state"] for step in found["steps"]}, {"ingest": "done", "train": "done", "select": "done", "broken": "failed"})
        self.assertEqual(found["versions"], [{"model": "m", "version": 1, "name": "train", "accuracy": 0.8}])
        status, page, headers = self.open("/api/workflows/flow/m/1")
        self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        self.assertIn("sandbox", headers["Content-Security-Policy"])
        texts = re.findall(r"<text [^>]*>([^<]*)</text>", page.decode())
        self.assertEqual(texts[::2][1:], ["ingest", "train", "m version 1"])
        self.assertTrue(texts[0].endswith("/rows.csv"), texts)
        for place in ("flow/m/2", "flow/other/1", "nothing/m/1", "..%2fflow/m/1", "flow/m/.."):
            self.ask(f"/api/workflows/{place}", status=404)
        # links out of the folder, and files of another form
        secret = self.folder / "secret" / "m" / "1"
        secret.mkdir(parents=True)
        (secret / "selected.json").write_text('{"step": "secret", "accuracy": 1}')
        (self.runs / "flow" / "linked").symlink_to(self.folder / "secret")
        self.assertEqual(len(self.ask("/api/workflows")["workflows"][0]["versions"]), 1)
        with open(self.runs / "flow" / "metadata.jsonl", "a", encoding="ascii") as events:
            events.write('{"event": "begin", "step": "train"}\n[1]\n{"event": "begin", "step": "train", "at": 2')
        self.assertEqual(self.ask("/api/workflows")["workflows"][0]["steps"], found["steps"])
        (self.runs / "flow" / "muster-flow.json").write_text("[]")
        self.assertEqual(self.ask("/api/workflows"), {"workflows": []})

    def test_the_openapi_file_is_what_is_answered(self):
        self.serve()
        self.made("done", "run-12345678")
        api = self.ask("/api/openapi.json")
        sys.path.insert(0, str(PLATFORM))
        import asyncio

        from muster_bench.dashboard.server import Dashboard

        async def routes():
            return {(resource.canonical, route.method.lower()) for route in Dashboard(self.runs, {}, "", "").app().router.routes() if (resource := route.resource) and route.method != "HEAD"}
        there = {(path, method) for path, methods in api["paths"].items() for method in methods}
        self.assertEqual({route for route in asyncio.run(routes()) if route[0] not in ("/", "/{name}")}, there)
        row = api["components"]["schemas"]["Row"]["properties"]
        self.assertEqual(set(self.ask("/api/runs")["runs"][0]), set(row))
        run = api["components"]["schemas"]["Run"]["allOf"][1]["properties"]
        self.assertLessEqual(set(run), set(self.ask("/api/runs/done/run-12345678")))

    @unittest.skipUnless(shutil.which("prometheus"), "SKIPPED: no prometheus is installed")
    def test_prometheus_has_what_the_result_has(self):
        self.serve()
        folder = self.start(3, 0.02)
        row = self.row(folder, "ok")
        self.ask(f"/api/runs/{row['id']}/metrics", {"worker": 3, "metrics": {"gradient norm": 2.5}}, 202)
        result = json.loads((self.runs / folder / "experiments" / row["run"] / "result" / "result.json").read_text())
        config = self.write("prometheus.yml", f"scrape_configs: [{{job_name: muster, scrape_interval: 1s, authorization: {{credentials: {self.token}}}, static_configs: [{{targets: ['{self.url[7:]}']}}]}}]\n")
        port = free_port()
        prometheus = subprocess.Popen(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={self.folder}/tsdb", f"--web.listen-address=127.0.0.1:{port}"],
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(prometheus.wait)
        self.addCleanup(prometheus.kill)

        def query(text):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={urllib.request.quote(text)}", timeout=30) as answer:
                    return [(sample["metric"], float(sample["value"][1])) for sample in json.load(answer)["data"]["result"]]
            except OSError:
                return []
        found = self.until(lambda: query(f'muster_run_samples_per_second{{run="{row["run"]}"}}'), "Prometheus never had it")
        self.assertEqual(found[0][1], result["metrics"]["samples_per_second"])
        self.assertEqual(query("sum(muster_run_train_seconds)")[0][1], result["metrics"]["train_seconds"])
        self.assertEqual(query('muster_posted_gradient_norm{worker="3"}')[0][1], 2.5)
        self.assertEqual(query('muster_runs{status="ok"}')[0][1], 1)


class Watched(Served):
    """`run --watch`, `--launcher` and `--cpus-per-rank`, without a dashboard."""

    def test_what_a_rank_prints_is_kept_up_to_the_limit_and_passed_on(self):
        path = self.experiment(["sh", "-c", "echo one; echo two >&2; head -c 100000 /dev/zero | tr '\\0' x; exec sleep 3"], sweep="{n: [1]}", template="limits: {log: 1000}")
        self.run_file(path, "--watch")
        home, = (self.folder / "out" / "experiments").iterdir()
        self.assertEqual((home / "output" / "1" / "workers" / "0.log").read_bytes(), (b"one\ntwo\n" + b"x" * 1000)[:1000])
        self.assertIn(b"[cut", (home / "output" / "1" / "log.txt").read_bytes())
        samples = [json.loads(line) for line in (home / "output" / "1" / "workers" / "0.jsonl").read_text().splitlines()]
        self.assertGreaterEqual(len(samples), 2)
        self.assertGreater(samples[-1]["memory"], 0)

    def test_a_rank_that_is_told_to_end_and_its_children_do(self):
        script = self.write("script.sh", "trap 'echo told; exit 4' TERM; (sleep 77777 & echo $! > child; wait) & touch begun; wait\n")
        path = self.experiment(["sh", script.as_posix()], sweep="{n: [1]}", template="timeout: 5")
        self.run_file(path, "--watch", status=1)
        home, = (self.folder / "out" / "experiments").iterdir()
        self.assertIn("told", (home / "output" / "1" / "workers" / "0.log").read_text())
        self.assertIn("it did not end within 5 s", self.results()[0]["why"])
        child = int((home / "output" / "1" / "child").read_text())
        self.until(lambda: not pathlib.Path(f"/proc/{child}").exists(), "its child is still there")

    def test_processors_are_measured(self):
        path = self.experiment([sys.executable, "-c", "import time; end = time.time() + 3.5\nwhile time.time() < end: pass"], sweep="{n: [1]}")
        self.run_file(path, "--watch")
        file, = (self.folder / "out" / "experiments").glob("*/output/1/workers/0.jsonl")
        used = [json.loads(line)["cpu"] for line in file.read_text().splitlines()[1:]]
        self.assertGreater(max(used), 0.1)
        self.assertLess(max(used), 1.3)

    def test_another_launcher_and_processors(self):
        path = self.experiment("true", sweep="{ranks: [2]}", template="launcher: {kind: mpirun, options: '--map-by core'}")
        output = self.bench("run", path, "--dry-run", "--launcher", "srun", "--cpus-per-rank", "2").stdout
        self.assertIn("srun --ntasks=2 --cpus-per-task=2 true", output)
        alone = self.experiment("true", sweep="{ranks: [2]}")
        self.assertIn("\n  true\n", self.bench("run", alone, "--dry-run", "--launcher", "srun").stdout, "what starts its ranks itself still does")
        self.refused("run", path, "--dry-run", "--cpus-per-rank", "0", says="--cpus-per-rank cannot be 0")
        self.write("build/examples/logistic_regression", "#!/bin/sh\n").chmod(0o755)
        self.refused("run", "mlbench-2a", "--dry-run", "--place", "build=build", "--launcher", "hosts", says="--launcher would change the closed preset")


if __name__ == "__main__":
    unittest.main()
