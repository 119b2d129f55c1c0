"""Checks the files for clusters: against the published schemas, and by a shell and an mpirun on this machine."""
import json
import pathlib
import re
import subprocess
import sys
import time
import unittest

import yaml
from bench import HERE, Case
from muster_bench import launchers
from muster_bench.experiment import read_file
from muster_bench.plan import make_plan

try:
    import jsonschema
except ImportError:
    jsonschema = None

SCHEMAS = HERE / "schemas"


def documents(path):
    return list(yaml.safe_load_all(pathlib.Path(path).read_text()))


def check(document):
    """Throws if a document does not fit its kind."""
    job = json.loads((SCHEMAS / "mpijob-v2beta1.json").read_text())
    if document["kind"] == "MPIJob":
        jsonschema.validate(document, job)
        assert document["apiVersion"] == "kubeflow.org/v2beta1"
        return
    others = {kind: schema for file in ("kubernetes", "crds") for kind, schema in json.loads((SCHEMAS / f"{file}.json").read_text())["definitions"].items()
              if not (file == "crds" and kind == "Service")}   # Knative's schema
    jsonschema.validate(document, others[document["kind"]])
    if document["kind"] in ("StatefulSet", "Job"):
        spec = document["spec"]
        pod = job["properties"]["spec"]["properties"]["mpiReplicaSpecs"]["additionalProperties"]["properties"]["template"]
        jsonschema.validate(spec["template"], pod)
    if document["kind"] == "StatefulSet":
        assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


class Manifests(Case):
    def setUp(self):
        super().setUp()
        self.file = self.experiment(
            ["{build}/train", "--rate", "{rate}", "it's", "--json", "{output}/t.json"], sweep="{ranks: [2, 4], rate: [0.1]}",
            top="places: {build: /opt/muster}", template="""resources: {cpus-per-rank: 2, memory: 2G}
    environment: {OMP_NUM_THREADS: "2", NOTE: "a b"}
    timeout: 90
    retries: {attempts: 2}
    launcher: mpirun""")

    def made(self, *words):
        done = self.bench("manifests", self.file, "--out", "made", *words)
        return [self.folder / line for line in done.stdout.splitlines()]

    def test_mpi_jobs(self):
        if jsonschema is None:
            self.skipTest("SKIPPED: python3-jsonschema is not installed")
        files = self.made("--kind", "kubernetes", "--image", "registry/muster:1")
        self.assertEqual(len(files), 2)
        for path, ranks in zip(files, (2, 4)):
            job, = documents(path)
            check(job)
            self.assertIn("never run on a cluster", path.read_text())
            spec = job["spec"]
            self.assertEqual(spec["mpiReplicaSpecs"]["Worker"]["replicas"], ranks)
            self.assertEqual((spec["runPolicy"]["activeDeadlineSeconds"], spec["runPolicy"]["backoffLimit"]), (90, 1))
            worker = spec["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
            self.assertEqual(worker["resources"]["limits"], {"cpu": "2", "memory": "2048Mi"})
            line = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["args"][1]
            self.assertIn(f"mpirun -n {ranks} -x OMP_NUM_THREADS -x NOTE /opt/muster/train --rate 0.1 'it'\"'\"'s'", line)
            self.assertIn("export NOTE='a b'", line)

    def test_the_schema_refuses_what_is_wrong(self):
        if jsonschema is None:
            self.skipTest("SKIPPED: python3-jsonschema is not installed")
        job, = documents(self.made("--kind", "kubernetes", "--image", "i")[0])
        for change in (lambda job: job["spec"].update(slotPerWorker=1), lambda job: job["spec"].pop("mpiReplicaSpecs"),
                       lambda job: job["spec"]["runPolicy"].update(backoffLimit="1"), lambda job: job["metadata"].update(name="A_b"),
                       lambda job: job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0].update(img="x")):
            broken = json.loads(json.dumps(job))
            change(broken)
            with self.assertRaises(jsonschema.ValidationError):
                check(broken)

    def test_elastic_jobs(self):
        """Checks the objects; test_kube.py runs them on Kubernetes."""
        for path, ranks in zip(self.made("--kind", "kubernetes", "--image", "registry/muster:1", "--elastic"), (2, 4)):
            by_kind = {document["kind"]: document for document in documents(path)}
            self.assertEqual(list(by_kind), ["Service", "StatefulSet", "PersistentVolumeClaim", "Job", "PodDisruptionBudget"])
            pod = by_kind["Job"]["spec"]["template"]
            environment = {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"]}
            store = by_kind["Service"]["metadata"]["name"].upper().replace("-", "_")
            self.assertEqual(environment["MUSTER_RENDEZVOUS"], f"tcp://$({store}_SERVICE_HOST):{by_kind['Service']['spec']['ports'][0]['port']}")
            self.assertEqual((by_kind["Job"]["spec"]["parallelism"], environment["WORLD_SIZE"], environment["NOTE"]), (ranks, str(ranks), "a b"))
            self.assertLessEqual(by_kind["Service"]["spec"]["selector"].items(), by_kind["StatefulSet"]["spec"]["template"]["metadata"]["labels"].items())
            self.assertLessEqual(by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items(), pod["metadata"]["labels"].items())

    def test_servers_are_pods_of_their_own(self):
        """Checks the number of servers, which the launcher has."""
        file = self.experiment(["train", "--mode", "ps"], sweep="{ranks: [5], serve: [2]}", template="launcher: {kind: mpirun, servers: '{serve}'}")
        made, = self.bench("manifests", file, "--out", "made", "--kind", "kubernetes", "--image", "i", "--elastic").stdout.split()
        jobs = [document for document in documents(self.folder / made) if document["kind"] == "Job"]
        given = [{entry["name"]: entry["value"] for entry in job["spec"]["template"]["spec"]["containers"][0]["env"]} for job in jobs]
        self.assertEqual([job["metadata"]["name"].partition("-serve-2-")[2].partition("-")[2] for job in jobs], ["", "1", "2", "server-0", "server-1"])
        self.assertEqual([(each["RANK"], each["WORLD_SIZE"], each["MUSTER_SERVERS"]) for each in given], [(str(rank), "5", "2") for rank in range(5)])
        self.refused("manifests", file, "--out", "made", "--set", "serve=[5]", "--kind", "kubernetes", "--image", "i", "--elastic", says=["'5' of 5 ranks", "servers"])

    def test_the_pods_of_the_launcher_kubernetes(self):
        """Checks the objects; test_kube_launcher.py runs them on Kubernetes."""
        file = self.experiment(["train"], sweep="{ranks: [3]}", experiment="parameters: {device: cuda}\n    follows: {flavor: {device: {cpu: plain, cuda: gpu}}}", template="""
    launcher: {kind: kubernetes, image: "registry/muster:{flavor}", servers: 1, data: rows, data-mount: /data, pull-secret: mine}
    resources: {cpus-per-rank: 0.5, memory: 1G, gpus-per-rank: 2}""")
        run, = make_plan(read_file(file), None, 10, {})
        pods = [one for one in launchers._objects(run, self.folder / "out/experiments/one", 1) if one["kind"] == "Pod"]
        self.assertEqual([pod["metadata"]["name"].rpartition("-ranks-3-")[2].partition("-")[2] for pod in pods], ["0", "1", "server-0"])
        given = [{entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"]} for pod in pods]
        self.assertEqual([(each.get("MUSTER_ROLE"), each.get("WORLD_SIZE"), each.get("RANK"), each.get("MUSTER_REMOTE_SERVERS"), each["MUSTER_SERVERS"]) for each in given],
                         [(None, "2", "0", "1", "1"), (None, "2", "1", "1", "1"), ("server", None, None, None, "1")])
        for spec in (pod["spec"] for pod in pods):
            self.assertEqual(spec["containers"][0]["image"], "registry/muster:gpu")
            self.assertEqual(spec["containers"][0]["resources"]["limits"], {"cpu": "0.5", "memory": "1024Mi", "nvidia.com/gpu": "2"})
            self.assertIn({"name": "data", "mountPath": "/data", "readOnly": True}, spec["containers"][0]["volumeMounts"])
            self.assertIn({"name": "data", "persistentVolumeClaim": {"claimName": "rows", "readOnly": True}}, spec["volumes"])
            self.assertEqual(spec["imagePullSecrets"], [{"name": "mine"}])

    def test_a_launcher_decides_what_is_started(self):
        if jsonschema is None:
            self.skipTest("SKIPPED: python3-jsonschema is not installed")
        steps = "configure: echo before\n    post-process: echo after\n    clean-up: echo 'at the end'"

        def made(launcher, *words):
            file = self.experiment(["train", "--rate", "1"], sweep="{ranks: [4]}", template=f"launcher: {launcher}\n    resources: {{gpus-per-rank: 1}}\n    {steps}")
            return [self.folder / line for line in self.bench("manifests", file, "--out", "made", *words).stdout.split()]
        for launcher, kind, spec, roles in (("torchrun", "PyTorchJob", "pytorchReplicaSpecs", {"Master": 1, "Worker": 3}),
                                            ("{kind: tensorflow, servers: 2}", "TFJob", "tfReplicaSpecs", {"Chief": 1, "Worker": 1, "PS": 2})):
            job, = documents(made(launcher, "--kind", "kubernetes", "--image", "i", "--queue", "short")[0])
            check(job)
            self.assertEqual((job["kind"], job["spec"]["runPolicy"]["suspend"]), (kind, True))
            self.assertEqual({role: each["replicas"] for role, each in job["spec"][spec].items()}, roles)
            first, *others = (each["template"]["spec"]["containers"][0] for each in job["spec"][spec].values())
            self.assertEqual(first["resources"]["limits"]["nvidia.com/gpu"], "1")
            for line in ("echo before\ntrain --rate 1 > log.txt 2>&1\necho after\n", "at the end", "' EXIT\n"):
                self.assertIn(line, first["args"][1])
            self.assertFalse([each for each in others if "echo" in each["args"][1] or "log.txt" in each["args"][1]])
        script = made("{kind: torchrun, options: --max-restarts=2}", "--kind", "slurm")[0].read_text()
        self.assertIn("\ntorchrun --standalone --nproc-per-node=4 --no-python --max-restarts=2 train --rate 1 > log.txt", script)
        self.assertIn("#SBATCH --gpus-per-task=4\n", script)
        self.assertIn("srun --mpi=pmix --exclusive train", made("{kind: srun, options: --exclusive}", "--kind", "slurm")[0].read_text())
        self.refused("manifests", self.experiment(["train"], template="launcher: tensorflow"), "--out", "made", says=["TensorFlow's operator", "--kind kubernetes"])
        self.refused("run", self.experiment([sys.executable], template="launcher: tensorflow", sweep="{ranks: [2]}"), "--out", "out", says="muster-bench manifests")

    def test_an_image_is_needed(self):
        self.refused("manifests", self.file, "--out", "made", "--kind", "kubernetes", says="--image")
        self.assertEqual({path.parent.name for path in self.made()}, {"slurm", "ssh"})

    def test_scripts_for_shells(self):
        for path in self.made("--elastic") + self.made():
            done = subprocess.run(["sh", "-n", path], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
        text = next((self.folder / "made" / "slurm").glob("*ranks=4*")).read_text()
        for line in ("#SBATCH --ntasks=4", "#SBATCH --cpus-per-task=2", "#SBATCH --time=2", "#SBATCH --mem-per-cpu=1024M"):
            self.assertIn(line, text)

    def test_a_share_a_queue_and_a_priority(self):
        words = ("--account", "physics", "--queue", "short", "--priority", "high")
        made = self.made("--image", "i", *words)
        script = next(path for path in made if path.parent.name == "slurm").read_text()
        for line in ("--account=physics", "--partition=short", "--qos=high", "--requeue"):
            self.assertIn(f"#SBATCH {line}\n", script)
        for job in (one for path in made if path.parent.name == "kubernetes" for one in documents(path)):
            check(job)
            self.assertEqual(job["metadata"]["labels"], {"kueue.x-k8s.io/queue-name": "short", "kueue.x-k8s.io/priority-class": "high"})
            self.assertTrue(job["spec"]["runPolicy"]["suspend"])
        self.assertFalse([path for path in self.made("--image", "i") if "kueue" in path.read_text() or "--qos" in path.read_text()])
        self.refused("manifests", self.file, "--out", "made", "--image", "i", "--elastic", *words, says="leave --queue or --elastic out")

    def test_what_starts_its_own_ranks_is_started_once(self):
        file = self.experiment(["sh", "-c", "echo started >> {here}/count"], sweep="{ranks: [4]}", template="resources: {cpus-per-rank: 2, memory: 1G}")
        slurm, ssh = (self.folder / line for line in self.bench("manifests", file, "--out", "made", "--results", self.folder / "shared").stdout.split())
        for line in ("--ntasks=1", "--cpus-per-task=8", "--mem-per-cpu=512M"):
            self.assertIn(f"#SBATCH {line}\n", slurm.read_text())
        for name in ("srun", "mpirun"):  # each would start as many as requested
            self.write(f"bin/{name}", '#!/bin/sh\nfor n in 1 2 3 4; do sh -c "echo started" >> ' + f"{self.folder}/count; done\n").chmod(0o755)
        for number, script in enumerate((slurm, ssh), 1):
            subprocess.run(["sh", script], check=True, env={"PATH": f"{self.folder}/bin:/usr/bin:/bin"}, cwd=self.folder)
            self.assertEqual((self.folder / "count").read_text().count("started"), number)
        self.refused("manifests", file, "--out", "made", "--elastic", says=["starts its own ranks", "leave --elastic out"])
        if jsonschema is not None:
            job, = documents(self.folder / self.bench("manifests", file, "--out", "made", "--kind", "kubernetes", "--image", "i").stdout.strip())
            check(job)
            self.assertEqual(job["kind"], "Job")
            self.assertEqual(job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"], {"cpu": "8", "memory": "4096Mi"})
        for preset in ("pytorch", "resnet-modes"):
            for line in self.bench("manifests", preset, "--out", preset).stdout.split():
                self.assertNotRegex((self.folder / line).read_text(), "(?m)^(srun|mpirun) ", line)

    def test_run_by_their_script_and_collected(self):
        """Runs the script for Slurm, with a srun that starts one process; then collects the results."""
        srun = self.write("bin/srun", '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n')
        srun.chmod(0o755)
        file = self.experiment(["sh", "-c", "echo rate={n}5"], sweep="{n: [1, 2, 3]}",
                               template="launcher: srun\n    read: [{log: {throughput: 'rate=(\\d+)'}}]")
        scripts = self.bench("manifests", file, "--out", "made", "--kind", "slurm", "--results", self.folder / "shared").stdout.split()
        for script in scripts[:2]:
            subprocess.run(["sh", self.folder / script], check=True, env={"PATH": f"{self.folder}/bin:/usr/bin:/bin"})
        done = self.bench("collect", file, "--out", "shared", status=1)
        self.assertRegex(done.stderr, r"only-n=3-\w+: it has no results")
        self.assertEqual([row["throughput"] for row in self.results(folder="shared")], ["15", "25"])
        subprocess.run(["sh", self.folder / scripts[2]], check=True, env={"PATH": f"{self.folder}/bin:/usr/bin:/bin"})
        self.bench("collect", file, "--out", "shared")
        self.assertEqual([row["throughput"] for row in self.results(folder="shared")], ["15", "25", "35"])
        self.assertTrue(re.search("3 of 3 runs ended well", self.bench("collect", file, "--out", "shared").stdout))

    def test_resources_of_the_machine_that_writes_do_not_stop_a_cluster(self):
        """Checks a run that is too large for this machine: skipped here, and started by the script for Slurm."""
        srun = self.write("bin/srun", '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n')
        srun.chmod(0o755)
        file = self.experiment(["sh", "-c", "echo rate=7"], sweep="{n: [1]}", template="machine-needs: [\"sh -c 'echo 1000 cores, here are few; exit 1'\"]\n"
                               "    read: [{log: {throughput: 'rate=(\\d+)'}}]")
        self.bench("run", file, "--out", "here")
        row, = self.results(folder="here")
        self.assertEqual((row["status"], "1000 cores" in row["why"]), ("skipped", True))
        script = self.bench("manifests", file, "--out", "made", "--kind", "slurm", "--results", self.folder / "shared").stdout.strip()
        self.assertNotIn("1000 cores", (self.folder / script).read_text())
        subprocess.run(["sh", self.folder / script], check=True, env={"PATH": f"{self.folder}/bin:/usr/bin:/bin"})
        self.bench("collect", file, "--out", "shared")
        self.assertEqual([(row["status"], row["throughput"]) for row in self.results(folder="shared")], [("ok", "7")])
        for preset, experiment in (("cluster-vgg16", "trainers"), ("mlbench-2a", "plain")):
            for line in self.bench("manifests", preset, "--out", preset, "--kind", "slurm", "--only", "experiment=" + experiment).stdout.split():
                self.assertNotRegex((self.folder / line).read_text(), "pods.sh|epsilon.sh memory")

    def test_an_experiment_is_chosen_by_its_name(self):
        (self.folder / "data" / "cifar10").mkdir(parents=True)
        self.write("build/examples/vgg16", "#!/bin/sh\n").chmod(0o755)
        places = ["--place", f"build={self.folder}/build", "--place", f"data={self.folder}/data"]
        listed = self.bench("run", "cluster-vgg16", "--dry-run", "--only", "experiment=trainers", *places).stdout
        self.assertIn("22 runs, closed division", listed)
        self.assertNotIn("batch-size-", listed)
        self.assertIn("matches none", self.bench("run", "cluster-vgg16", "--dry-run", "--only", "experiment=nothing", *places, status=2).stderr)

    def test_what_has_not_ended_is_not_collected_and_what_crashed_is_no_result(self):
        file = self.experiment(["sh", "-c", "echo loss=3{n}; while [ ! -e {here}/go ]; do sleep 0.02; done; echo loss=1{n}; exit $(({n} - 1))"], sweep="{n: [1, 2]}",
                               template="read: [{log: {val_loss: 'loss=(\\d+)'}}]")
        scripts = self.bench("manifests", file, "--out", "made", "--kind", "slurm", "--results", self.folder / "shared").stdout.split()
        running = [subprocess.Popen(["sh", self.folder / script]) for script in scripts]
        logs = self.folder / "shared" / "experiments"
        until = time.monotonic() + 60
        while sum("loss=3" in path.read_text() for path in logs.glob("*/output/1/log.txt")) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        done = self.bench("collect", file, "--out", "shared", status=1)
        self.assertEqual(len(re.findall("has not ended yet", done.stderr)), 2)
        self.assertEqual(self.results(folder="shared"), [])
        self.write("go", "")
        self.assertEqual([each.wait(60) for each in running], [0, 1])
        self.bench("collect", file, "--out", "shared", status=1)
        self.assertEqual([(row["status"], row["val_loss"]) for row in self.results(folder="shared")], [("ok", "11"), ("crash", "")])

    def test_the_image(self):
        text = (HERE.parent.parent / "packaging" / "Dockerfile").read_text()
        for needed in ("/home/mpiuser/.sshd_config", "useradd -m -u 1000 mpiuser", "Port 2222"):
            self.assertIn(needed, text)

    def test_the_image_has_all_parts(self):
        """Checks `serve`, which an export has started, and the sources of files: a part whose package is missing would
        be left out."""
        root = HERE.parent.parent
        self.assertIn('"/opt/muster/libexec/muster/serve"', (root / "python" / "muster_flow" / "export.py").read_text())
        text = (root / "packaging" / "Dockerfile").read_text()
        self.assertIn("-DMUSTER_WITH_SERVE=ON", text)
        built, run = (set(stage.split()) for stage in text.split("FROM debian:12")[1:])
        needed = set(re.findall(r"^ *muster_find_part.*?([\w-]+-dev)\b", (root / "cmake" / "parts.cmake").read_text(), re.M))
        self.assertLessEqual({"libboost-dev", "libsimdjson-dev", "libjpeg-dev"}, needed)
        needed.discard("libtorch-dev")  # half a gigabyte, and no program of the image is compiled with LibTorch
        self.assertLessEqual(needed, built)
        self.assertLessEqual({"haproxy", "snakemake", "dataset-fashion-mnist"}, run)   # what examples/fashion needs
        self.assertLessEqual({"openmpi-bin", "libtbb12", "zlib1g", "libssl3", "libzstd1", "libjpeg62-turbo", "libpq5", "libcurl4", "libsimdjson14"}, run)


if __name__ == "__main__":
    unittest.main()
