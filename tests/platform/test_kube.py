"""Tests elastic jobs on a real Kubernetes of three nodes, through deaths, drains and lost nodes; and the commands of
docs/kubernetes.md."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

from bench import Case
from cluster import BUILD, FOLDER, IMAGE, LOCAL, PATIENCE, ROOT, await_until, inside, is_ready, items, kubectl, left, processes, start as setUpModule  # noqa: F401

MANUAL = "/tmp/kube"           # the folder's name in docs/kubernetes.md


class Elastic(Case):
    """A job with all faults: its ranks check at the end that each sample was used exactly once."""

    def job(self, command, ranks, name):
        file = self.experiment(command, sweep=f"{{ranks: [{ranks}]}}", template=f"launcher: mpirun\n    timeout: {PATIENCE * 12}\n    resources: {{cpus-per-rank: 0.2, memory: 300M}}")
        manifest, = self.bench("manifests", file, "--out", name, "--kind", "kubernetes", "--image", IMAGE, "--elastic").stdout.split()
        # the version of Kubernetes 1.20
        text = (self.folder / manifest).read_text().replace("policy/v1\n", "policy/v1beta1\n")
        (self.folder / manifest).write_text(text)
        self.addCleanup(kubectl, "delete", "-f", self.folder / manifest, "--wait=false")
        kubectl("apply", "-f", self.folder / manifest)
        self.name = re.search(r"kind: Job\nmetadata:\n  name: (\S+)", text)[1]
        self.program, self.logs = command[0], {}

    def pods(self):
        return items("pods", "-l", f"muster-bench/run={self.name},muster-bench/part=rank")

    def look(self):
        """Returns the ranks' output so far, including ended ranks."""
        for pod in self.pods():
            done = subprocess.run(["kubectl", "logs", "--request-timeout=3s", pod["metadata"]["name"]], capture_output=True, text=True, timeout=PATIENCE)
            if done.returncode == 0 and done.stdout:
                self.logs[pod["metadata"]["name"]] = done.stdout
        return self.logs

    def training(self):
        return [pod for pod in self.pods() if "deletionTimestamp" not in pod["metadata"] and is_ready(pod)]

    def await_group(self, size, but=(), ranks=None):
        """Waits until the group has that many ranks without the pods in `but`, and if steps are printed, until a step
        with all ranks (with `ranks`: of so many ranks)."""
        def grown():
            ready = self.training()
            return ready if len(ready) == size and not {pod["metadata"]["name"] for pod in ready} & set(but) else None
        ready = await_until(grown, f"there is no group of {size}")
        names = [pod["metadata"]["name"] for pod in ready]
        self.look()
        if self.program != "test_elastic_worker":
            return ready
        await_until(lambda: any(re.search(rf"^step \d+ \d+ {ranks or size} ", text, re.M) for text in (self.look().get(name, "")[-400:] for name in names)),
                    lambda: f"no step of {size}: {[text[-200:] for text in self.logs.values()]}")
        return ready

    def scale(self, ranks):
        kubectl("patch", "job", self.name, "-p", json.dumps({"spec": {"parallelism": ranks}}))

    # Faults of a job. Each function receives the ready pods, and returns the ready pods once the group is complete
    # again.

    def away_from_store(self, ready):
        """Returns a pod on a node without the store, and that node."""
        store = items("pods", "-l", f"muster-bench/run={self.name},muster-bench/part=store")[0]["spec"]["nodeName"]
        pod = next(pod for pod in ready if pod["spec"]["nodeName"] != store)
        return pod["metadata"]["name"], pod["spec"]["nodeName"]

    def silence_a_node(self, ready):
        """Cuts a node's network: the others receive nothing from its rank, but have no proof of its death. Its pod is
        made again on another node."""
        pod, node = self.away_from_store(ready)
        link = f"mk{(FOLDER / 'net').read_text().strip()}-{node[-1]}"
        self.addCleanup(subprocess.run, ["ip", "link", "set", link, "up"], check=True)
        subprocess.run(["ip", "link", "set", link, "down"], check=True)
        self.await_group(3, but=[pod])
        subprocess.run(["ip", "link", "set", link, "up"], check=True)
        kubectl("wait", "--for=condition=ready", "node", "--all", f"--timeout={PATIENCE:.0f}s")
        return self.await_group(3, but=[pod])

    def delete_a_pod(self, ready):
        gone = ready[0]["metadata"]["name"]
        kubectl("delete", "pod", gone, "--wait=false")
        return self.await_group(3, but=[gone])

    def kill_a_rank(self, ready):
        killed = ready[0]["metadata"]["name"]
        os.kill(*processes(self.program, f"HOSTNAME={killed}"), signal.SIGKILL)
        return self.await_group(3, but=[killed])

    def kill_a_kubelet(self, ready):
        """Kills a kubelet: its rank continues and a new pod joins, because Kubernetes treats the node as lost. The rank
        leaves when the kubelet is back."""
        pod, node = self.away_from_store(ready)
        # nsenter has the same words
        kubelet, = (candidate for candidate in processes("kubelet", f"--hostname-override={node}") if pathlib.Path(f"/proc/{candidate}/comm").read_text() == "kubelet\n")
        words = [word.decode() for word in pathlib.Path(f"/proc/{kubelet}/cmdline").read_bytes().split(b"\0")[:-1]]
        os.kill(kubelet, signal.SIGKILL)
        self.await_group(3, but=[pod], ranks=4)
        subprocess.run(["sh", "-c", 'exec "$@" >>"$0" 2>&1 </dev/null &', FOLDER / f"kubelet{node[-1]}.log", "setsid", "nsenter", "--target", inside(node),
                        "--mount", "--net", "--pid", *words], check=True)
        kubectl("wait", "--for=condition=ready", "node", "--all", f"--timeout={PATIENCE:.0f}s")
        return self.await_group(3, but=[pod])

    def drain_a_node(self, ready):
        pod, node = self.away_from_store(ready)
        self.addCleanup(kubectl, "uncordon", node)
        kubectl("drain", node, "--delete-emptydir-data", "--ignore-daemonsets", "--force", "--timeout=60s")
        ready = self.await_group(3, but=[pod])
        self.assertNotIn(node, {pod["spec"]["nodeName"] for pod in ready})
        kubectl("uncordon", node)
        return ready

    def goes_through(self, *events):
        """Runs two ranks, three, the events, then one rank to the end."""
        self.await_group(2)
        self.scale(3)
        ready = self.await_group(3)
        self.assertEqual(len({pod["spec"]["nodeName"] for pod in ready}), 3)   # spread over the nodes
        for event in events:
            ready = event(ready)
        self.scale(1)
        self.await_group(1)
        kubectl("wait", "--for=condition=complete", f"job/{self.name}", f"--timeout={10 * PATIENCE:.0f}s", patience=11 * PATIENCE)

    def test_no_sample_is_lost_or_doubled(self):
        self.job(["test_elastic_worker", "--samples", "2000", "--batch", "50", "--epochs", "280", "--steps", "--work", "20", "--values", "20000"], 2, "made")
        self.goes_through(self.silence_a_node, self.delete_a_pod, self.kill_a_rank, self.kill_a_kubelet, self.drain_a_node)
        logs = self.look()
        ends = {name: re.findall("^done (.*)", text, re.M) for name, text in logs.items()}
        self.assertTrue(any(ends.values()), logs)
        self.assertEqual(len({tuple(end[0].split()[:2]) for end in ends.values() if end}), 1, ends)
        self.assertFalse([line for text in logs.values() for line in text.splitlines() if line.startswith("wrong")])
        changes = sorted({line for text in logs.values() for line in text.splitlines() if line.startswith("generation ")}, key=lambda line: int(line.split()[1][:-1]))
        print(*changes, sep="\n", file=sys.stderr)
        for what in (" left", " joined", "no heartbeat for", "its connection ended"):
            self.assertTrue([line for line in changes if what in line], changes)

    def has_the_bits_of_an_undisturbed_one(self, *train):
        alone = [BUILD / "examples" / train[0], *train[1:], "--save", self.folder / "alone"]
        subprocess.run(alone, check=True, capture_output=True, timeout=5 * PATIENCE, env={name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")})
        self.job([*train, "--save", f"/results/{train[0]}.model"], 2, "made")
        self.goes_through(self.delete_a_pod, self.kill_a_kubelet, self.drain_a_node)
        self.assertEqual((FOLDER / f"shared/{train[0]}.model").read_bytes(), (self.folder / "alone").read_bytes())

    def test_a_logistic_regression(self):
        self.has_the_bits_of_an_undisturbed_one("logistic_regression", "--synthetic", "epsilon:20000", "--epochs", "2000", "--virtual-shards", "6")

    def test_a_resnet(self):
        self.has_the_bits_of_an_undisturbed_one("resnet", "--depth", "20", "--data", "cifar-like:120", "--batch", "12", "--epochs", "450", "--virtual-shards", "6")


class Manual(Case):
    """The commands of docs/kubernetes.md, one after another, on the test's cluster."""

    def test_each_command_works(self):
        text = (ROOT / "docs/kubernetes.md").read_text()
        blocks = re.findall("^```sh\n(.*?)^```", text, re.M | re.S)
        self.assertGreaterEqual(len(blocks), 3)
        script = "".join(blocks).replace("build/release", str(BUILD)).replace(MANUAL, str(FOLDER)).replace("tools/kube-local.sh", str(LOCAL))
        script = "\n".join(line for line in script.splitlines() if not re.search(f"kube-local.sh (up|down) {FOLDER}", line))
        kubectl("delete", "secret", "muster-token")
        kubectl("delete", "pvc", "muster-results")
        kubectl("patch", "pv", "shared", "-p", '{"spec":{"claimRef":null}}')
        path = f"{BUILD}/python:{os.environ['PATH']}"
        done = subprocess.run(["bash", "-euxo", "pipefail", "-c", script], cwd=self.folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=2 * PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr[-3000:])
        print(done.stdout, file=sys.stderr)
        await_until(lambda: not left(), lambda: f"left: {left()}")


if __name__ == "__main__":
    unittest.main()
