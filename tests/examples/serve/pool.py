#!/usr/bin/env python3
"""Tests muster-pool as users run it, with a real HAProxy and real replicas, and with faults under load.

CTest runs one class at a time, like program.py. The faults continue until MUSTER_TEST_REQUESTS requests are answered."""
import collections
import contextlib
import csv
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

import program
from pool_case import ENVIRONMENT, PLATFORM, Load, PoolCase, end_all, model, service, skip_without_what_it_needs, slow
from program import HANG, PAGE

LEAST = int(os.environ.get("MUSTER_TEST_REQUESTS", "0"))


class Transcript(program.Transcript):
    """Tests the commands in the page's section on replicas."""

    before = f"""
export PATH=$PWD/bin:$PATH PYTHONPATH={PLATFORM} PYTHONDONTWRITEBYTECODE=1
mkdir bin
echo 'exec {sys.executable} -m muster_pool "$@" --listen 127.0.0.1:8080 --metrics 127.0.0.1:8404' >bin/muster-pool
chmod +x bin/muster-pool
"""

    def setUp(self):
        super().setUp()
        skip_without_what_it_needs(self)
        self.addCleanup(self.end)
        self.add_model()
        (self.folder / "services.yaml").write_text(re.search(r"^```yaml\n(.*?)^```", self.part(), re.S | re.M).group(1))

    def end(self):
        """Also cleans up after a shell that was killed at the time limit."""
        lock = self.folder / "services.pool" / "lock"
        if lock.is_file() and (pool := re.match(r"process (\d+) on", lock.read_text())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pool.group(1)), signal.SIGKILL)
        end_all(lock.parent)

    def part(self):
        return PAGE.read_text().partition("\n## Replicas")[2]


class Overload(PoolCase):
    """Tests overload. The rate of answered requests stays as high as before, and the other requests are refused immediately."""

    def resident(self):
        """Returns the memory of HAProxy and all replicas, in KiB."""
        pids = [*self.replicas(), *(pid for pid, _ in self.state()["haproxy"])]
        return sum(int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) for pid in pids)

    def answered(self, clients, seconds):
        with Load(self.port, clients) as load:
            time.sleep(1)  # until all queues have reached their final length
            before, begin = load.counts.copy(), time.monotonic()
            time.sleep(seconds)
            counts, spent = load.counts - before, time.monotonic() - begin
        self.assertEqual([each for each in load.failed if each != 429], [])
        return counts, spent

    def test_goodput_stays_and_memory_is_bounded(self):
        seconds = float(os.environ.get("MUSTER_TEST_OVERLOAD_SECONDS", "3"))
        self.start(service("line", slow(0.05, {"minReplicas": 2, "maxReplicas": 2, "containerConcurrency": 2}), **{"pool.muster__queue": "8"}))
        self.until(lambda: len(self.replicas()) == 2)
        peak, spent = self.answered(8, seconds)  # a load below the limit
        at_peak, memory = peak[200] / spent, self.resident()
        for _ in range(3):  # other work on the machine may use the processors in these seconds
            counts, spent = self.answered(60, seconds)
            good, offered = counts[200] / spent, sum(counts.values()) / spent
            if good > at_peak / 2:
                break
        grown = self.resident() - memory
        print(f"peak {at_peak:.1f} requests/s; of {offered:.0f} a second {good:.1f} were answered ({good / at_peak:.2f}), the others with 429; {grown} KiB more")
        self.assertGreater(counts[429], counts[200])
        self.assertGreater(good, at_peak / 2)  # 0.9 and more on an idle machine
        self.assertLess(grown, 64 << 10)
        self.drain()


class Faults(PoolCase):
    """Tests requests that are smaller than --retry-up-to, which may be predicted twice."""

    def setUp(self):
        super().setUp()
        self.add_model()

    def up(self):
        """Returns the servers to which HAProxy sends requests."""
        with socket.socket(socket.AF_UNIX) as to:
            to.connect(str(self.folder / "services.pool" / "haproxy.sock"))
            to.sendall(b"show stat\n")
            rows = csv.DictReader(to.makefile().read().removeprefix("# ").splitlines())
        return {row["svname"] for row in rows if row["pxname"] == "line" and re.fullmatch(r"s\d+", row["svname"]) and row["status"].startswith("UP")}

    def answers(self, load, count, lives=True):
        at = load.counts[200]
        self.until(lambda: load.counts[200] >= at + count, lives)

    def test_what_befalls_replicas_fails_no_request(self):
        self.start(service("line", model(minReplicas=3, maxReplicas=3)))
        self.until(lambda: len(self.up()) == 3)
        with Load(self.port, 4) as load:
            self.answers(load, 20)
            for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP):
                slots = {pid: slot for slot, pid in self.replicas(numbered=True)}
                victim = min(slots)
                load.longest, begin, at = 0.0, time.monotonic(), load.counts[200]
                os.kill(victim, number)
                self.until(lambda: f"s{slots[victim]}" not in self.up() or victim not in self.replicas())
                out = time.monotonic() - begin
                self.until(lambda: victim not in self.replicas() and len(self.up()) == 3)
                back = time.monotonic() - begin
                self.answers(load, max(20, LEAST // 4))
                print(f"{number.name}: no more requests after {out:.2f} s, three replicas after {back:.2f} s, "
                      f"{load.counts[200] - at} requests, of which the longest took {load.longest:.2f} s")
            load.longest, begin, at = 0.0, time.monotonic(), load.counts[200]
            self.add_model(2)   # a version that the replicas load
            changed = model(minReplicas=3, maxReplicas=3)
            changed["model"]["args"] = ["--threads", "2"]
            before = set(self.replicas())
            self.describe(service("line", changed))
            self.pool.send_signal(signal.SIGHUP)
            self.until(lambda: not before & set(self.replicas()) and len(self.up()) == 3)
            back = time.monotonic() - begin
            self.answers(load, max(20, LEAST // 4))
            print(f"a version and a revision: all replaced after {back:.2f} s, {load.counts[200] - at} requests, of which the longest took {load.longest:.2f} s")
            for path in ("/v2/models/line", "/v2/health/ready"):
                answer = self.ask(self.port, "GET", path)
                self.assertEqual(answer[0], 200, answer)
        print(f"{sum(load.counts.values())} requests, {len(load.failed)} failed")
        self.assertEqual(load.failed, [])
        self.drain()

    def test_what_befalls_haproxy_and_the_pool(self):
        clients = 4
        self.start(service("line", model(minReplicas=2, maxReplicas=2)))
        self.until(lambda: len(self.replicas()) == 2)
        with Load(self.port, clients) as load:
            self.answers(load, 20)
            begin, at = time.monotonic(), load.counts[200]
            os.kill(self.state()["haproxy"][-1][0], signal.SIGKILL)
            self.until(lambda: load.counts[200] >= at + clients)
            back = time.monotonic() - begin
            self.says("HAProxy ended and is started again")
            self.answers(load, 20)
            lost = len(load.failed)
            print(f"HAProxy killed: {lost} of {sum(load.counts.values())} requests failed ({collections.Counter(load.failed)}), answers again after "
                  f"{back:.2f} s at the latest")
            self.assertLessEqual(lost, clients)   # its pending requests, and the idle connections of clients
            before = set(self.replicas())
            for _ in range(2):
                self.pool.kill()
                self.pool.wait()
                self.answers(load, max(20, LEAST // 4), lives=False)
                self.start()
                self.answers(load, 20)
            self.assertEqual(set(self.replicas()), before)   # the same processes
            self.assertEqual(len(load.failed), lost)
        print(f"muster-pool killed twice and started again: {sum(load.counts.values())} requests in all, none of them failed then")
        self.drain()

    def test_a_replica_that_dies_at_once_is_started_after_longer_and_longer_pauses(self):
        self.start(service("line", {"containers": [{"command": ["false"]}]}))
        self.says("another one starts in 1 s")
        self.drain()


class Callers(PoolCase):
    PATH = "/v1/models/slow:predict"

    def together(self, count, refused=0, **headers):
        """Sends requests at the same time and returns the replies. No request is answered before `refused` requests are refused."""
        answers, hold = [], self.folder / "hold"
        if refused:
            hold.touch()
        threads = [threading.Thread(target=lambda: answers.append(self.post(self.PATH, **headers))) for _ in range(count)]
        for thread in threads:
            thread.start()
        self.until(lambda: len(answers) >= refused)
        hold.unlink(missing_ok=True)
        for thread in threads:
            thread.join()
        return answers

    def most(self, answers):
        self.assertEqual({status for status, _, _ in answers}, {200})
        return max(body["most"] for _, _, body in answers)

    def test_limits(self):
        (self.folder / "keys").write_text("# who\nann k-1\nbob k-2\n")
        (self.folder / "services.pool").symlink_to("my #1")
        limits = {"pool.muster__keys": "keys", "pool.muster__queue": "4"}
        self.start(service("slow", slow(0.4), **limits), more=["--state", "my #1"])
        self.until(lambda: len(self.replicas("slow")) == 1)
        self.assertEqual(self.most(self.together(4)), 2)   # two requests run, then the other two
        self.assertEqual(self.most(self.together(6, Authorization="Bearer k-1")), 3)
        self.assertEqual(self.post(self.PATH, Authorization="Bearer k-3")[0], 401)
        answers = self.together(9, refused=3)              # two requests run and four wait
        refused = [(status, headers) for status, headers, _ in answers if status != 200]
        self.assertEqual([status for status, _ in refused], [429] * 3)
        self.assertEqual(refused[0][1]["Retry-After"], "1")
        self.drain()

    def test_the_first_service_that_a_request_matches_limits_it(self):
        """Tests a host and a path that match two services. The second service's limits and keys have no effect."""
        (self.folder / "first.keys").write_text("ann k-1\n")
        (self.folder / "second.keys").write_text("bob k-2\n")
        keys, anonymous = "pool.muster__keys", "pool.muster__anonymous-concurrency"
        self.start(service("slow", slow(0.4), **{keys: "first.keys", anonymous: "1"}), service("other", slow(), **{keys: "second.keys", anonymous: "9"}))
        self.until(lambda: len(self.replicas("slow")) == len(self.replicas("other")) == 1)
        for both in ({"Host": "other"}, {"Host": "other.default.example:80"}):
            self.assertEqual(self.post(self.PATH, Authorization="Bearer k-2", **both)[0], 401)
            self.assertEqual(self.post(self.PATH, Authorization="Bearer k-1", **both)[0], 200)
        self.assertEqual(self.post("/", Authorization="Bearer k-2", Host="other")[0], 200)
        self.assertEqual(self.most(self.together(4, Host="other")), 1)
        for name in ("state.json", "slow.keys", "other.keys"):
            self.assertEqual((self.folder / "services.pool" / name).stat().st_mode & 0o077, 0, name)
        self.drain()

    def test_rates(self):
        """Checks the requests of an address without a key in an hour, of each key in a few seconds, and that a refused request does not count."""
        (self.folder / "keys").write_text("ann k-1\nbob k-2\n")
        self.start(service("slow", slow(0), **{"pool.muster__keys": "keys", "pool.muster__anonymous-rate": "1/h", "pool.muster__key-rate": "3/s"}))
        self.until(lambda: len(self.replicas("slow")) == 1)
        self.assertEqual(self.post(self.PATH)[0], 200)
        for _ in range(3):
            status, headers, body = self.post(self.PATH)
            self.assertEqual((status, headers["Retry-After"]), (429, "3600"))
            self.assertIn("this address has sent its 1 requests of 3600 s", body["error"])
        answers = [self.post(self.PATH, Authorization="Bearer k-1") for _ in range(20)]
        self.assertEqual([status for status, _, _ in answers[:3]], [200] * 3)
        refused = [headers for status, headers, _ in answers if status == 429]
        self.assertEqual(refused[0]["Retry-After"], "1")
        self.assertEqual(self.post(self.PATH, Authorization="Bearer k-2")[0], 200)   # another key has its own
        self.until(lambda: self.post(self.PATH, Authorization="Bearer k-1")[0] == 200)
        self.drain()

    def test_a_rate_without_keys(self):
        self.start(service("slow", slow(0), **{"pool.muster__anonymous-rate": "2/h"}))
        self.until(lambda: len(self.replicas("slow")) == 1)
        self.assertEqual([self.post(self.PATH, **({"Authorization": "Bearer x"} if k else {}))[0] for k in range(4)], [200, 200, 429, 429])
        self.drain()

    def test_a_replica_has_as_many_at_once_as_it_may(self):
        self.start(service("slow", slow(0.3, {"containerConcurrency": 1, "maxReplicas": 1}), **{"pool.muster__queue": "2"}))
        self.until(lambda: len(self.replicas("slow")) == 1)
        answers = self.together(5, refused=2)
        self.assertEqual(sorted(status for status, _, _ in answers), [200] * 3 + [429] * 2)
        self.assertEqual(self.most([each for each in answers if each[0] == 200]), 1)
        self.drain()


class Canary(PoolCase):
    def share(self, percent, **variables):
        """Starts the old revision, and assigns the new revision a share of the requests."""
        self.start(service("slow", slow(0.01, {"maxReplicas": 1}, REVISION="old")))
        self.until(lambda: len(self.replicas("slow")) == 1)
        self.describe(service("slow", slow(more={"maxReplicas": 1, "canaryTrafficPercent": percent}, REVISION="new", **variables)))
        self.pool.send_signal(signal.SIGHUP)
        self.says(f"gets {percent} % of the requests")
        self.until(lambda: len(self.replicas("slow")) == 2)

    def test_it_has_its_share_and_then_all(self):
        self.share(20, DELAY="0.01")
        with Load(self.port, 2, "/v1/models/slow:predict", "{}") as load:
            def as_told():
                """Counts replies among two hundred consecutive requests. A replica may be unavailable for a moment before."""
                new = [json.loads(body).get("revision") == "new" for body in load.bodies[-200:]]
                return len(new) == 200 and all(17 <= sum(hundred) <= 23 for hundred in (new[:100], new[100:]))
            self.until(as_told)
            self.describe(service("slow", slow(more={"maxReplicas": 1}, REVISION="new", DELAY="0.01")))
            self.pool.send_signal(signal.SIGHUP)
            self.says("is the one that serves")
            self.until(lambda: len(self.replicas("slow")) == 1)
        self.assertEqual(load.failed, [])
        self.assertEqual(self.post("/v1/models/slow:predict")[2]["revision"], "new")
        self.drain()

    def taken_back(self, why, **variables):
        self.share(20, **variables)
        with Load(self.port, 2, "/v1/models/slow:predict", "{}") as load:
            self.says("is taken back (")
            self.assertRegex(self.log.read_text(), why)
            self.until(lambda: len(self.replicas("slow")) == 1)
            at = len(load.bodies)
            self.until(lambda: len(load.bodies) > at + 20)
        self.assertEqual(json.loads(load.bodies[-1])["revision"], "old")
        self.pool.send_signal(signal.SIGHUP)
        self.says("was taken back and gets no share")
        self.drain()
        return load

    def test_errors_take_it_back(self):
        self.taken_back(r"taken back \(\d+ errors of \d+ requests, 0 of \d+ before\)", STATUS="500", DELAY="0.01")

    def test_latency_takes_it_back(self):
        load = self.taken_back(r"taken back \(\d+ ms a request, \d+ ms before\)", DELAY="0.1")
        self.assertEqual(load.failed, [])

    def test_one_that_does_not_start_is_taken_back(self):
        self.start(service("slow", slow(0.01, {"maxReplicas": 1}, REVISION="old")))
        self.until(lambda: len(self.replicas("slow")) == 1)
        self.describe(service("slow", {"containers": [{"command": ["false"]}], "maxReplicas": 1, "canaryTrafficPercent": 20}))
        self.pool.send_signal(signal.SIGHUP)
        self.says("is taken back (3 of its replicas ended)")
        self.assertEqual(self.post("/v1/models/slow:predict")[2]["revision"], "old")
        self.drain()


class Files(PoolCase):
    def refused(self, *says, more=(), status=2):
        ran = subprocess.run([*self.words(), *more], cwd=self.folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=HANG)
        self.assertEqual(ran.returncode, status, ran.stdout + ran.stderr)
        self.assertEqual(ran.stderr.count("\n"), 1, ran.stderr)
        for text in says:
            self.assertIn(text, ran.stderr)

    def test_one_line_names_the_key(self):
        good = slow()
        wrong_kind = service("a", good)
        wrong_kind["kind"] = "Deployment"
        for document, text in ((wrong_kind, "'kind' cannot be 'Deployment'"), (service("A", good), "'name' cannot be 'A'"),
                               (service("a", {**good, "minReplica": 1}), "unknown key 'minReplica' (known: "),
                               (service("a", {**good, "minReplicas": 3, "maxReplicas": 2}), "'maxReplicas' cannot be 2"),
                               (service("a", {**good, "minReplicas": 6}), "need 6 cores at least"),
                               (service("a", {**good, "minReplicas": 0, "containers": [{"command": ["a"], "resources": {"requests": {"cpu": 6}}}]}), "need 6 cores at least"),
                               (service("a", {**good, "scaleMetric": "memory"}), "'scaleMetric' cannot be 'memory'"),
                               (service("a", {**good, "canaryTrafficPercent": 101}), "'canaryTrafficPercent' cannot be '101'"),
                               (service("a", {**good, "transformer": {}}), "unknown key 'transformer'"),
                               (service("a", {**good, **model()}), "has 1 in 'containers' and a 'model'"),
                               (service("a", {"model": {"modelFormat": {"name": "onnx"}}}), "'name' cannot be 'onnx'"),
                               (service("a", {"model": {"modelFormat": {"name": "muster"}, "storageUri": "gs://a/b"}}), "'storageUri' cannot be 'gs://a/b'"),
                               (service("a", model()), "'storageUri' cannot be 'file://models' (there is no folder"),
                               (service("a", {"containers": [{"command": ["a", 1]}]}), "'command' cannot have '1'"),
                               (service("a", {"containers": [{"command": ["a"], "resources": {"requests": {"cpu": "x"}}}]}), "'cpu' cannot be 'x'"),
                               (service("a", {"containers": [{"command": ["a"], "ports": [{"name": "grpc"}]}]}), "'name' cannot be 'grpc' (known: http1, h2c)"),
                               (service("a", good, **{"pool.muster__path": "a b"}), "'pool.muster/path' cannot be 'a b'"),
                               (service("a", good, **{"autoscaling.knative.dev__window": "1s"}), "'autoscaling.knative.dev/window' cannot be '1s'"),
                               (service("a", good, **{"pool.muster__anonymous-rate": "often"}), "'pool.muster/anonymous-rate' cannot be 'often'"),
                               (service("a", good, **{"pool.muster__key-rate": "1/s"}), "'pool.muster/key-rate' limits nobody"),
                               (service("a", good, **{"pool.muster__balance": "best"}), "'pool.muster/balance' cannot be 'best'"),
                               (service("a", good, **{"pool.muster__keys": "none"}), "the keys in 'none' cannot be read"),
                               (service("a", good, other="1"), "unknown key 'other'")):
            with self.subTest(text):
                self.describe(document)
                self.refused("muster-pool: services.yaml", text)
        self.describe(service("a", good), service("a", good))
        self.refused("document 2: the InferenceService 'a' is there twice")
        (self.folder / "services.yaml").write_text("a: [")
        self.refused("services.yaml:1:5: this is no YAML")

    def test_an_empty_repository_is_waited_for(self):
        (self.folder / "models").mkdir()
        words = self.words()
        self.words = lambda: [words[0], "-c", "from muster_pool import __main__, deployment\ndeployment.BEGINS = 1.0\n__main__.main()", *words[3:]]
        self.start(service("line", model(minReplicas=1)))
        time.sleep(3)
        self.add_model()
        self.until(lambda: self.replicas())
        self.assertNotIn("is killed", self.log.read_text())

    def test_command_line(self):
        self.describe(service("a", slow()))
        self.refused("--retry-up-to cannot be 1", more=["--retry-up-to", "1"])
        for address in ("here", "127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1:"):
            self.refused(f"--listen cannot be '{address}'", "is no port", more=["--listen", address])
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.refused("Address already in use", more=["--listen", f"127.0.0.1:{taken.getsockname()[1]}"])

    def test_files_that_become_wrong_change_nothing(self):
        self.start(service("a", slow(more={"minReplicas": 1, "maxReplicas": 1})))
        self.until(lambda: len(self.replicas("a")) == 1)
        self.refused("another runner works in", status=3)
        self.describe(service("a", slow(more={"minReplicas": 9})))
        self.pool.send_signal(signal.SIGHUP)
        self.says("the files are left as they were: services.yaml: the services need 9 cores")
        other = slow(more={"minReplicas": 1, "maxReplicas": 1})
        other["containers"][0]["ports"] = [{"name": "h2c"}]
        self.describe(service("a", other))
        self.pool.send_signal(signal.SIGHUP)
        self.says("the files are left as they were: a cannot change between http1 and h2c")
        self.assertEqual(self.post("/v1/models/a:predict")[0], 200)
        self.describe(service("b", slow(more={"minReplicas": 1, "maxReplicas": 1})))   # replaces service a
        self.pool.send_signal(signal.SIGHUP)
        self.until(lambda: len(self.replicas("b")) == 1 and "a" not in self.state()["services"] and len(self.state()["haproxy"]) == 1)
        self.assertEqual(self.post("/v1/models/b:predict")[0], 200)
        self.drain()


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=2)
