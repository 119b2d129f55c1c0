"""Tests the launcher kubernetes of muster-bench on a real Kubernetes: its runs, their faults, and leftover objects."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from bench import PROGRAM, Case
from cluster import BUILD, FOLDER, IMAGE, PATIENCE, ROOT, await_until, inside, is_ready, items, kubectl, left, start as setUpModule  # noqa: F401

STAYS = ["sh", "-c", "trap exit TERM; while sleep 0.2; do :; done"]


class Launcher(Case):
    """muster-bench starts runs on the cluster, reports why a run fails, and leaves no objects."""

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

    def test_one_file_by_four_launchers_has_equal_losses(self):
        """Compares mpirun, hosts, a private Slurm, and this Kubernetes with ranks that connect once and with an elastic
        job."""
        shared = f"image: \"{IMAGE}\", volume: muster-results, mount: {FOLDER}/shared, secret: muster-token"
        launchers = {"mpirun": "mpirun", "hosts": "hosts", "srun": "{kind: srun, options: --mpi=pmix}", "fixed": f"{{kind: kubernetes, {shared}}}",
                     "elastic": f"{{kind: kubernetes, elastic: true, {shared}}}"}
        variables = {"PATH": f"{BUILD}/examples:{os.environ['PATH']}", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if all(map(shutil.which, ("munged", "slurmctld", "slurmd", "slurmdbd", "srun", "mariadbd"))):
            slurm = self.folder / "slurm"
            self.addCleanup(subprocess.run, [ROOT / "tools/slurm-local.sh", "down", slurm], check=True, timeout=PATIENCE)
            subprocess.run([ROOT / "tools/slurm-local.sh", "up", slurm], check=True, timeout=PATIENCE)
            variables["SLURM_CONF"] = str(slurm / "slurm.conf")
        else:
            print("  Slurm is not installed: by the others alone", file=sys.stderr)
            del launchers["srun"]
        templates = "".join(f"""
  {name}:
    command: "logistic_regression --synthetic epsilon:2000 --epochs 3 --virtual-shards 6 --json {{output}}/t.json"
    launcher: {launcher}
    resources: {{cpus-per-rank: 0.5, memory: 200M}}
    read: [{{tracker: t.json}}]""" for name, launcher in launchers.items())
        experiments = "".join(f"\n  {name}: {{template: {name}, sweep: {{ranks: [2]}}}}" for name in launchers)
        file = self.write("file.yaml", f"muster-bench: 1\nname: of the test\ntemplates:{templates}\nexperiments:{experiments}\n")
        self.ran(file, **variables)
        losses = {row["experiment"]: row["val_loss"] for row in self.results(folder=self.out / "out")}
        print(f"  {losses}", file=sys.stderr)
        self.assertEqual((set(losses), len(set(losses.values()))), (set(launchers), 1), losses)

    def test_servers_of_parameters(self):
        """Checks pods with their role, and pods of an elastic job after a server is deleted."""
        def file(epochs, elastic):
            return self.file(["logistic_regression", "--synthetic", "epsilon:20000", "--epochs", epochs, "--mode", "ps", "--timeout", "60"],
                             f", secret: muster-token, servers: 2, elastic: {elastic}", 4, "{cpus-per-rank: 0.3, memory: 300M}")
        self.ran(file("3", "false"))
        self.assertRegex(self.log(), "server-1 runs on ")
        shutil.rmtree(self.out / "out")
        file = file("40", "true")
        with subprocess.Popen([*PROGRAM, "run", file, "--out", self.out / "out"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            await_until(lambda: re.search("^ +2 ", self.log(), re.M), lambda: f"it does not train: {self.log()}")
            await_until(lambda: sum(map(is_ready, items("pods", "-l", "muster-bench/part=rank"))) == 4, "not all workers and servers are in the group")
            gone = next(pod["metadata"]["name"] for pod in items("pods", "-l", "muster-bench/part=rank") if "-server-1-" in pod["metadata"]["name"])
            kubectl("delete", "pod", gone, "--wait=false")
            self.assertEqual(run.wait(2 * PATIENCE), 0, self.log())
        self.assertEqual(len(set(re.findall(r"(\S+-server-1-\S+) runs on ", self.log()))), 2, self.log())

    def test_a_volume_that_is_full(self):
        small = FOLDER / "small"
        small.mkdir(exist_ok=True)
        # each node has a small disk at the path, and this machine the folder itself
        for node in FOLDER.glob("node*.pid"):
            subprocess.run(["nsenter", "--target", inside(node.stem), "--mount", "mount", "-t", "tmpfs", "-o", "size=256k", "none", small], check=True)
        kubectl("apply", "-f", "-", given=f"""
apiVersion: v1
kind: PersistentVolume
metadata: {{name: small}}
spec: {{capacity: {{storage: 1Mi}}, accessModes: [ReadWriteMany], storageClassName: small, hostPath: {{path: {small}}}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: small}}
spec: {{accessModes: [ReadWriteMany], storageClassName: small, resources: {{requests: {{storage: 1Mi}}}}}}
""")
        self.addCleanup(kubectl, "delete", "pvc/small", "pv/small", "--wait=false")
        self.out = small
        self.addCleanup(shutil.rmtree, small)   # with its mount
        why = self.why(self.file(["resnet", "--depth", "20", "--data", "cifar-like:12", "--batch", "12", "--epochs", "1", "--save", "{output}/model"],
                                 f", volume: small, mount: {small}", resources="{cpus-per-rank: 0.5, memory: 200M}"))
        self.assertIn("No space left on device", why)
        self.assertRegex(self.log(), "ended with 2 .Error: resnet: error: cannot write.*No space left on device.*make room on the volume")

    def test_the_status_and_the_last_line_of_what_fails(self):
        why = self.why(self.file(["sh", "-c", "echo what it says; exit 7"]))
        self.assertIn("it ended with status 7", why)
        self.assertRegex(self.log(), "ended with 7 .Error: what it says")

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
        kubectl("apply", "-f", ROOT / "packaging/kubernetes-role.yaml")
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
                self.assertRegex(self.why(file), "already exists.*another run has this name")
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


if __name__ == "__main__":
    unittest.main()
