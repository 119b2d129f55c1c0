"""Jobs on a real Kubernetes of three nodes (tools/kube-local.sh): elastic ones through deaths, drains and lost nodes; the launcher
kubernetes, its faults and what it leaves; the commands of docs/kubernetes.md."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from bench import PROGRAM, Case

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ["MUSTER_TEST_BENCH"]).parent.parent.parent
LOCAL = ROOT / "tools/kube-local.sh"
PATIENCE = 180 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))
CACHE = pathlib.Path(os.environ.get("MUSTER_KUBE_CACHE", pathlib.Path.home() / ".cache/muster/kube"))
IMAGE = "muster.local/muster:1"
PROGRAMS = [BUILD / "src/programs/muster-store", BUILD / "src/programs/muster-info", BUILD / "examples/logistic_regression",
            BUILD / "tests/elastic/test_elastic_worker"]
RUNS = os.environ.get("MUSTER_TEST_KUBE", "")   # the folder of one that runs; or "start"
FOLDER = pathlib.Path(RUNS if "/" in RUNS else f"{tempfile.gettempdir()}/muster-kube-{os.getpid()}")
STAYS = ["sh", "-c", "trap exit TERM; while sleep 0.2; do :; done"]
MANUAL = "/tmp/kube"           # how docs/kubernetes.md calls the folder


def missing():
    if not RUNS:
        return "SKIPPED: MUSTER_TEST_KUBE is not set (start: a Kubernetes is started, and built the first time, for ten minutes on two quiet cores)"
    if os.getuid() != 0:
        return "SKIPPED: Kubernetes' nodes are started by root"
    absent = [program.name for program in PROGRAMS if not program.exists()]
    return f"SKIPPED: {', '.join(absent)}: not built" if absent else ""


def setUpModule():
    if why := missing():
        print(why, flush=True)
        raise unittest.SkipTest(why)
    if "/" not in RUNS:
        unittest.addModuleCleanup(subprocess.run, [LOCAL, "down", FOLDER], check=True, timeout=PATIENCE)
        subprocess.run([LOCAL, "up", FOLDER], check=True, timeout=20 * PATIENCE)
    subprocess.run([LOCAL, "image", FOLDER, IMAGE, *PROGRAMS], check=True, timeout=PATIENCE)
    for line in (FOLDER / "environment").read_text().splitlines():
        os.environ["KUBECONFIG"], os.environ["PATH"] = re.match(r"export KUBECONFIG=(\S+) PATH=(\S+?):", line).groups()[0], f"{CACHE}/bin:{os.environ['PATH']}"
    kubectl("apply", "-f", "-", given="""
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: muster-results}
spec: {accessModes: [ReadWriteMany], storageClassName: shared, resources: {requests: {storage: 10Gi}}}
""")
    if not items("secrets", "--field-selector=metadata.name=muster-token"):
        kubectl("create", "secret", "generic", "muster-token", "--from-literal=MUSTER_TOKEN=of the test")


def kubectl(*words, given=None, status=0):
    done = subprocess.run(["kubectl", *map(str, words)], input=given, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode != status:
        raise AssertionError(f"kubectl {words} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def items(kind, *words):
    return json.loads(kubectl("get", kind, "-o", "json", *words))["items"]


def left():
    """What muster-bench has made, of all kinds."""
    return kubectl("get", "pods,services,statefulsets,jobs,pvc,pdb", "-l", "muster-bench/run", "-o", "name").split()


def await_until(what, why):
    until = time.monotonic() + PATIENCE
    while not (found := what()):
        if time.monotonic() > until:
            raise AssertionError(f"{why() if callable(why) else why}\n{kubectl('get', 'pods,jobs', '-o', 'wide')}{kubectl('get', 'events')[-2000:]}")
        time.sleep(0.3)
    return found


def processes(*parts):
    """Those of this machine whose command line has these words, and whose variables have: NAME=VALUE."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words, variables = (pathlib.Path("/proc", name, file).read_bytes().split(b"\0") for file in ("cmdline", "environ"))
        except OSError:
            continue
        if all(part.encode() in words or part.encode() in variables for part in parts):
            found.append(int(name))
    return found


class Elastic(Case):
    """One job through everything: its ranks check at the end that each sample was used exactly once."""

    def job(self, command, ranks, name):
        file = self.experiment(command, sweep=f"{{ranks: [{ranks}]}}", template=f"launcher: mpirun\n    timeout: {PATIENCE * 4}\n    resources: {{cpus-per-rank: 0.2, memory: 200M}}")
        made, = self.bench("manifests", file, "--out", name, "--kind", "kubernetes", "--image", IMAGE, "--elastic").stdout.split()
        text = (self.folder / made).read_text().replace("policy/v1\n", "policy/v1beta1\n")   # Kubernetes 1.20
        (self.folder / made).write_text(text)
        self.addCleanup(kubectl, "delete", "-f", self.folder / made, "--wait=false")
        kubectl("apply", "-f", self.folder / made)
        self.name = re.search(r"kind: Job\nmetadata:\n  name: (\S+)", text)[1]
        self.logs = {}

    def pods(self):
        return items("pods", "-l", f"muster-bench/run={self.name},muster-bench/part=rank")

    def look(self):
        """What all ranks have said so far, also those that are gone."""
        for pod in self.pods():
            done = subprocess.run(["kubectl", "logs", "--request-timeout=3s", pod["metadata"]["name"]], capture_output=True, text=True, timeout=PATIENCE)
            if done.returncode == 0 and done.stdout:
                self.logs[pod["metadata"]["name"]] = done.stdout
        return self.logs

    def training(self):
        """The pods that are ready: in the group, and answering."""
        return [pod for pod in self.pods() if "deletionTimestamp" not in pod["metadata"] and
                any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))]

    def await_group(self, size, but=()):
        """Until that many are in, none of them one of `but`; a step is said by them all."""
        def grown():
            ready = self.training()
            return ready if len(ready) == size and not {pod["metadata"]["name"] for pod in ready} & set(but) else None
        ready = await_until(grown, f"there is no group of {size}")
        names = [pod["metadata"]["name"] for pod in ready]
        await_until(lambda: any(re.search(rf"^step \d+ \d+ {size} ", text, re.M) for text in (self.look().get(name, "")[-400:] for name in names)),
                    lambda: f"no step of {size}: {[text[-200:] for text in self.logs.values()]}")
        return ready

    def scale(self, ranks):
        kubectl("patch", "job", self.name, "-p", json.dumps({"spec": {"parallelism": ranks}}))

    def test_no_sample_is_lost_or_doubled(self):
        self.job(["test_elastic_worker", "--samples", "2000", "--batch", "50", "--epochs", "180", "--steps", "--work", "20", "--values", "20000"], 2, "made")
        self.await_group(2)
        self.scale(3)
        ready = self.await_group(3)
        self.assertEqual(len({pod["spec"]["nodeName"] for pod in ready}), 3)   # spread

        # A node that says nothing any more, and whose rank nobody hears: there is proof of nothing. Its pod is made anew elsewhere.
        store = items("pods", "-l", f"muster-bench/run={self.name},muster-bench/part=store")[0]["spec"]["nodeName"]
        lost = next(pod for pod in ready if pod["spec"]["nodeName"] != store)
        link = f"mk{(FOLDER / 'net').read_text().strip()}-{lost['spec']['nodeName'][-1]}"
        self.addCleanup(subprocess.run, ["ip", "link", "set", link, "up"], check=True)
        subprocess.run(["ip", "link", "set", link, "down"], check=True)
        ready = self.await_group(3, but=[lost["metadata"]["name"]])
        subprocess.run(["ip", "link", "set", link, "up"], check=True)
        kubectl("wait", "--for=condition=ready", "node", "--all", f"--timeout={PATIENCE:.0f}s")

        gone = ready[0]["metadata"]["name"]
        kubectl("delete", "pod", gone, "--wait=false")
        ready = self.await_group(3, but=[gone])

        killed = ready[0]["metadata"]["name"]
        os.kill(*processes("test_elastic_worker", f"HOSTNAME={killed}"), signal.SIGKILL)
        ready = self.await_group(3, but=[killed])

        drained = next(pod for pod in ready if pod["spec"]["nodeName"] != store)
        node = drained["spec"]["nodeName"]
        self.addCleanup(kubectl, "uncordon", node)
        kubectl("drain", node, "--delete-emptydir-data", "--ignore-daemonsets", "--force", "--timeout=60s")
        ready = self.await_group(3, but=[drained["metadata"]["name"]])
        self.assertNotIn(node, {pod["spec"]["nodeName"] for pod in ready})
        kubectl("uncordon", node)

        self.scale(1)
        self.await_group(1)
        kubectl("wait", "--for=condition=complete", f"job/{self.name}", f"--timeout={PATIENCE:.0f}s")
        said = self.look()
        ends = {name: re.findall("^done (.*)", text, re.M) for name, text in said.items()}
        self.assertTrue(any(ends.values()), said)
        self.assertEqual(len({tuple(end[0].split()[:2]) for end in ends.values() if end}), 1, ends)
        self.assertFalse([line for text in said.values() for line in text.splitlines() if line.startswith("wrong")])
        changes = sorted({line for text in said.values() for line in text.splitlines() if line.startswith("generation ")}, key=lambda line: int(line.split()[1][:-1]))
        print(*changes, sep="\n", file=sys.stderr)
        for what in (" left", " joined", "no heartbeat for", "its connection ended"):
            self.assertTrue([line for line in changes if what in line], changes)

    def test_a_training_has_the_bits_of_an_undisturbed_one(self):
        train = ["logistic_regression", "--synthetic", "epsilon:20000", "--epochs", "60", "--virtual-shards", "6", "--save"]
        subprocess.run([PROGRAMS[2], *train[1:], self.folder / "alone"], check=True, capture_output=True, timeout=PATIENCE,
                       env={name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")})
        self.job([*train, "/results/model"], 3, "made")
        await_until(lambda: len([text for text in self.look().values() if re.search("^ +2 ", text, re.M)]), "it does not train")
        kubectl("delete", "pod", self.training()[-1]["metadata"]["name"], "--wait=false")
        kubectl("wait", "--for=condition=complete", f"job/{self.name}", f"--timeout={PATIENCE:.0f}s")
        self.assertEqual((FOLDER / "shared/model").read_bytes(), (self.folder / "alone").read_bytes())


class Launcher(Case):
    """muster-bench starts runs there, says why one does not run, and leaves nothing."""

    def setUp(self):
        super().setUp()
        self.out = pathlib.Path(tempfile.mkdtemp(dir=FOLDER / "shared"))

    def file(self, command, more="", ranks=1, resources="{cpus-per-rank: 0.1, memory: 100M}", template="", image=IMAGE):
        return self.experiment(command, sweep=f"{{ranks: [{ranks}]}}", template=f"""launcher: {{kind: kubernetes, image: "{image}"{more}}}
    resources: {resources}
    {template}""")

    def ran(self, path, *words, **more):
        return self.bench("run", path, "--out", self.out / "out", *words, timeout=PATIENCE, **more)

    def log(self):
        return "".join(path.read_text() for path in self.out.glob("out/experiments/*/output/*/log.txt"))

    def why(self, path, **more):
        self.ran(path, status=1, **more)
        found, = (json.loads(path.read_text()) for path in self.out.glob("out/experiments/*/result/result.json"))
        print(f"  {found['status']}: {found['why']}", file=sys.stderr)
        return found["why"]

    def tearDown(self):
        await_until(lambda: not left(), lambda: f"left: {left()}")

    def test_one_file_by_two_launchers_has_equal_losses(self):
        losses = {}
        words = ["logistic_regression", "--synthetic", "epsilon:2000", "--epochs", "3", "--virtual-shards", "6", "--json", "{output}/t.json"]
        for name, elastic in (("fixed", "false"), ("elastic", "true")):
            file = self.file(words, f", volume: muster-results, mount: {FOLDER}/shared, secret: muster-token, elastic: {elastic}", 2, template="read: [{tracker: t.json}]")
            self.bench("run", file, "--out", self.out / name, timeout=PATIENCE)
            row, = self.results(folder=self.out / name)
            losses[name] = row["val_loss"]
        file = self.experiment([str(PROGRAMS[2]), *words[1:]], sweep="{ranks: [2]}", template="launcher: {kind: hosts}\n    read: [{tracker: t.json}]")
        self.bench("run", file, "--out", self.out / "hosts", timeout=PATIENCE)
        losses["hosts"] = self.results(folder=self.out / "hosts")[0]["val_loss"]
        self.assertEqual(len(set(losses.values())), 1, losses)

    def test_the_status_and_the_last_line_of_what_fails(self):
        why = self.why(self.file(["sh", "-c", "echo what it says; exit 7"]))
        self.assertIn("it ended with status 7", why)
        self.assertIn("what it says", self.log())

    def test_an_image_that_is_not_there(self):
        self.assertRegex(self.why(self.file(["true"], image="muster.local/absent:1")), "muster.local/absent:1.*name an image")

    def test_a_secret_that_is_not_there(self):
        self.assertIn('secret "absent" not found', self.why(self.file(["true"], ", secret: absent")))

    def test_more_than_any_node_has_waits_and_says_why(self):
        why = self.why(self.file(["true"], resources="{cpus-per-rank: 1000}", template="timeout: 8"))
        self.assertIn("it did not end within 8 s", why)
        self.assertIn("Insufficient cpu", why)

    def test_a_quota(self):
        kubectl("create", "namespace", "small")
        self.addCleanup(kubectl, "delete", "namespace", "small", "--wait=false")
        kubectl("create", "quota", "small", "--hard=requests.cpu=50m", "-n", "small")
        await_until(lambda: items("resourcequotas", "-n", "small")[0].get("status", {}).get("hard"), "no quota")
        self.assertRegex(self.why(self.file(["true"], ", namespace: small")), "exceeded quota.*ask for less")

    def test_a_user_with_the_least_role_and_one_without(self):
        account = "system:serviceaccount:default:starter"
        kubectl("create", "serviceaccount", "starter")
        self.addCleanup(kubectl, "delete", "serviceaccount", "starter")
        secret = await_until(lambda: next((one for one in items("secrets") if one["metadata"]["name"].startswith("starter-token")), None), "no token")
        import base64
        token = base64.b64decode(secret["data"]["token"]).decode()
        config = pathlib.Path(os.environ["KUBECONFIG"]).read_text()
        path = self.write("config", re.sub('token: "[^"]*"', f'token: "{token}"', config))
        file = self.file(["sh", "-c", "echo it runs"], ", elastic: true, secret: muster-token")
        self.refused("run", file, "--out", self.out / "out", says=[f'User "{account}" cannot list resource', "kubernetes-role.yaml"], KUBECONFIG=str(path))
        kubectl("apply", "-f", ROOT / "bench/platform/kubernetes-role.yaml")
        self.addCleanup(kubectl, "delete", "role/muster-bench", "rolebinding/muster-bench")
        kubectl("create", "rolebinding", "muster-bench", "--role=muster-bench", "--serviceaccount=default:starter")
        self.ran(file, KUBECONFIG=str(path))
        self.assertIn("it runs", self.log())

    def test_no_cluster(self):
        file = self.file(["true"])
        self.refused("run", file, "--out", self.out / "out", says="no cluster is known", KUBECONFIG="/absent")
        config = re.sub("https://[0-9.:]*", "https://127.0.0.1:1", pathlib.Path(os.environ["KUBECONFIG"]).read_text())
        self.refused("run", file, "--out", self.out / "out", says="the API server does not answer", KUBECONFIG=str(self.write("config", config)))

    def test_two_runs_of_one_name(self):
        file = self.file(STAYS)
        with subprocess.Popen([*PROGRAM, "run", file, "--out", self.out / "first"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
            try:
                await_until(lambda: items("pods", "-l", "muster-bench/run"), "it does not start")
                self.assertRegex(self.why(file), "already exists.*another run of this name")
            finally:
                first.send_signal(signal.SIGINT)
        self.assertEqual(first.returncode, 130)

    def test_the_api_server_is_restarted(self):
        file = self.file(["sh", "-c", "i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); sleep 0.5; done"])
        with subprocess.Popen([*PROGRAM, "run", file, "--out", self.out / "out"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            await_until(lambda: "line 3" in self.log(), "it does not run")
            number = FOLDER / "apiserver.pid"
            os.kill(int(number.read_text()), signal.SIGKILL)
            time.sleep(2)
            with open(FOLDER / "apiserver.log", "a", encoding="utf-8") as log:
                server = subprocess.Popen(["sh", FOLDER / "apiserver.sh"], start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            number.write_text(str(server.pid))
            self.assertEqual(run.wait(PATIENCE), 0, self.log())
        self.assertEqual(re.findall("line .*", self.log()), [f"line {number}" for number in range(40)])
        self.assertIn("the API server does not answer", self.log())

    def test_a_killed_runner_leaves_what_the_next_start_removes(self):
        slow = self.file(STAYS, ", elastic: true, secret: muster-token", 2)
        with subprocess.Popen([*PROGRAM, "run", slow, "--out", self.out / "out"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            await_until(lambda: len(items("pods", "-l", "muster-bench/part=rank")) == 2, "it does not start")
            run.kill()
        self.assertGreaterEqual(len(left()), 5)
        self.ran(self.file(["sh", "-c", "true"]))

    def test_many_runs_leave_nothing(self):
        file = self.experiment(["sh", "-c", "echo rate=7"], sweep="{ranks: [1]}", experiment="repeats: 50", template=f"""launcher: {{kind: kubernetes, image: "{IMAGE}"}}
    resources: {{cpus-per-rank: 0.1}}
    read: [{{log: {{throughput: 'rate=(\\d+)'}}}}]""")
        begin = time.monotonic()
        self.bench("run", file, "--out", self.out / "out", timeout=PATIENCE * 3)
        print(f"  50 runs in {time.monotonic() - begin:.1f} s", file=sys.stderr)
        self.assertEqual([row["throughput"] for row in self.results(folder=self.out / "out")], ["7"] * 50)


class Manual(Case):
    """The commands of docs/kubernetes.md, one after another, on the cluster of this test."""

    def test_each_command_works(self):
        text = (ROOT / "docs/kubernetes.md").read_text()
        blocks = re.findall("^```sh\n(.*?)^```", text, re.M | re.S)
        self.assertGreaterEqual(len(blocks), 3)
        script = "".join(blocks).replace("build/release", str(BUILD)).replace(MANUAL, str(FOLDER)).replace("tools/kube-local.sh", str(LOCAL))
        script = "\n".join(line for line in script.splitlines() if not re.search(f"kube-local.sh (up|down) {FOLDER}", line))
        kubectl("delete", "secret", "muster-token")
        kubectl("delete", "pvc", "muster-results")
        kubectl("patch", "pv", "shared", "-p", '{"spec":{"claimRef":null}}')
        path = f"{BUILD}/bench/platform:{os.environ['PATH']}"
        done = subprocess.run(["bash", "-euxo", "pipefail", "-c", script], cwd=self.folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=2 * PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr[-3000:])
        print(done.stdout, file=sys.stderr)
        await_until(lambda: not left(), lambda: f"left: {left()}")


if __name__ == "__main__":
    unittest.main()
