"""Tests the project examples/fashion on a small part of the data: from files to a report, repeated steps, and a killed
rank."""
import base64
import gzip
import json
import pathlib
import re
import shutil
import subprocess
import sys
import unittest
import urllib.request

import containers
import yaml
from bench import HERE
from flow import Case
from muster_bench.presets.ports import free_port

sys.path.append(str(HERE.parent / "fuzz"))
from seeds import JPEGS  # noqa: E402

DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")   # Debian's dataset-fashion-mnist
FILE = HERE.parent.parent / "examples" / "fashion" / "workflow.yaml"
TRAIN, TEST, OUT = 256, 64, "all results"
PROJECT = "03_elastic_mlp", "cnn", "resnet", "vgg16", "predict", "logistic_regression", "serve"
PROGRAMS = "muster-data", "muster-info", "muster-launch", "muster-store"


class Fashion(Case):
    def setUp(self):
        super().setUp()
        for needed, there in (("snakemake", shutil.which("snakemake")), ("mpirun", shutil.which("mpirun")), (str(DATA), DATA.is_dir())):
            if not there:
                self.skipTest(f"SKIPPED: '{needed}' is not here (Debian: snakemake, openmpi-bin, dataset-fashion-mnist)")
        programs = self.built(*(f"examples/{name}" for name in PROJECT), *(f"src/programs/{name}" for name in PROGRAMS))
        self.build = pathlib.Path(programs[0]).parent.parent
        self.installed = self.folder / "prefix"
        for component in ("programs", "examples"):
            subprocess.run(["cmake", "--install", self.build, "--prefix", self.installed, "--component", component], check=True, stdout=subprocess.DEVNULL, timeout=100)
        for kind, count in (("train", TRAIN), ("t10k", TEST)):
            for suffix, size, head in (("images-idx3", 784, 16), ("labels-idx1", 1, 8)):
                content = gzip.decompress((DATA / f"{kind}-{suffix}-ubyte.gz").read_bytes())
                self.write(f"data/{kind}-{suffix}-ubyte.gz", "").write_bytes(
                    gzip.compress(content[:4] + count.to_bytes(4, "big") + content[8:head + count * size]))

    def flow(self, *words, file=None, **more):
        """Runs the project as an installed muster does, in a folder with nothing but the data."""
        ports = [word for name in ("port", "metrics") for word in ("--set", f"{name}={free_port()}")]
        project = self.installed / "share" / "muster" / "examples" / "fashion"
        places = {"data": self.folder / "data", "here": project, **self.pool()}
        self.runner = [self.installed / "bin" / "muster-flow"]
        return self.bench("run", file or project / "workflow.yaml", "--out", OUT, *[word for name, path in places.items() for word in ("--place", f"{name}={path}")], *ports,
                          "--set", "epochs=2", *words, timeout=500, PYTHONPATH="", OMPI_MCA_rmaps_base_oversubscribe="1", **more)

    def pool(self):
        """Returns {}, or without HAProxy the place of a single server with the command line of muster-pool."""
        if shutil.which("haproxy"):
            return {}
        alone = self.write("pool", f"""#!/usr/bin/python3
import http.server, os, sys, threading
words = dict(zip(sys.argv[2::2], sys.argv[3::2]))
repository = next(line.split("file://")[1] for line in open(sys.argv[1]) if "storageUri" in line).strip()
host, port = words["--metrics"].split(":")
if os.fork() == 0:
    http.server.HTTPServer((host, int(port)), http.server.SimpleHTTPRequestHandler).serve_forever()
os.makedirs("metrics", exist_ok=True)
os.execvp("serve", ["serve", "--models", repository, "--listen", words["--listen"]])
""")
        alone.chmod(0o755)
        return {"pool": alone}

    def began(self, output):
        return sorted(re.findall(r" s  (\S+): begins", output))

    def test_from_data_to_report(self):
        output = self.flow().stdout
        out = self.folder / OUT
        selected = json.loads((out / "selected.json").read_text())
        self.assertEqual(len(selected["accuracies"]), 3)
        self.assertEqual(selected["selected"]["accuracy"], max(one["accuracy"] for one in selected["accuracies"]))
        answers = json.loads((out / "load.json").read_text())
        self.assertEqual((len(answers["classes"]), answers["failed"], list(answers["versions"])), (TEST, [], [str(selected["version"])]))
        labels = gzip.decompress((self.folder / "data" / "t10k-labels-idx1-ubyte.gz").read_bytes())[8:]

        def right_of(answers):
            return sum(a == b for a, b in zip(answers["classes"], labels)) / TEST
        # the server has the selected model
        self.assertAlmostEqual(right_of(answers), selected["selected"]["accuracy"], delta=1.01 / TEST)
        *_, result, address = output.splitlines()
        self.assertRegex(result, rf"^report: {re.escape(str(out))}/report.html \(accuracy of the served answers 0\.\d+, ")
        self.assertRegex(address, r"^serve: nothing listens any more at http://127.0.0.1:\d+/v2/models/fashion; muster-flow run .* --stay keeps it$")
        self.assertEqual((answers["names"][0], answers["names"][9], len(answers["names"])), ("T-shirt", "boot", 10))
        page = (out / "report.html").read_text()
        self.assertGreaterEqual(page.count("data:image/png"), 2)
        self.assertIn("taken for", page)
        self.assertEqual(page.count("<svg"), 3)
        self.assertNotIn("http://", re.sub(r"xmlns(:\w+)?=\"[^\"]*\"", "", page))
        # a changed parameter: that training and the later steps run
        text = FILE.read_text().replace("plain: {variant: plain, schedule: \"step:0.001,", "plain: {variant: plain, schedule: \"step:0.002,")
        self.assertNotEqual(text, FILE.read_text())
        shutil.rmtree(out / "repository" / "fashion")   # as the models arrive: the next served model is of this run
        began = self.began(self.flow("--set", "ensemble=3", file=self.write("changed.yaml", text)).stdout)
        self.assertIn("train-plain", began)
        self.assertEqual([name for name in began if name.startswith(("ingest", "train"))], ["train-plain"])
        self.assertIn("select", began)
        selected, answers = (json.loads((out / name).read_text()) for name in ("selected.json", "load.json"))
        members = [member["step"] for member in selected["selected"]["members"]]
        # measured before it was published, and better than each of its members or alone
        self.assertAlmostEqual(right_of(answers), selected["selected"]["accuracy"], delta=1e-4)
        self.assertGreaterEqual(selected["selected"]["accuracy"], max(one["accuracy"] for one in selected["accuracies"]) - 1e-4)
        self.assertEqual(answers["model"], "muster" if len(members) == 1 else "muster, mean of " + " and ".join(f"{k + 1}-{name}" for k, name in enumerate(members)))
        shown = self.bench("show", f"fashion/{selected['version']}", "--out", OUT).stdout
        for member in (*members, "ingest-train", "ingest-test"):
            self.assertRegex(shown, rf"(?m)^{member}: (done|falls|converged)")
        self.assertIn(f"  input images: {self.folder}/data/train-images-idx3-ubyte.gz, sha256 ", shown)
        for member in members:
            self.assertIn(f"<td>{member}</td>", (out / "report.html").read_text().partition("Members of the served model")[2])
        self.assertEqual(len(self.began(output)), 16)

    def test_exported_pods(self):
        """Runs the exported workflow in containers, in the order of its DAG, to the served answer, and again."""
        if reason := containers.missing():
            self.skipTest(reason)
        ports = {name: free_port() for name in ("port", "metrics")}
        project = "/opt/muster/share/muster/examples/fashion"
        self.runner = [self.installed / "bin" / "muster-flow"]
        words = [word for name, port in ports.items() for word in ("--set", f"{name}={port}")]
        self.bench("export", "argo", FILE, "--out", "made", "--image", "registry/muster:1", "--place", f"here={project}", "--set", "epochs=2", "--set", "ensemble=2", *words)
        workflow, = yaml.safe_load_all((self.folder / "made" / "workflow.yaml").read_text())
        volume = self.folder / "claim"
        cluster = containers.Workflow(self, workflow, {"/opt/muster": self.installed, "/usr/share/datasets/fashion-mnist": self.folder / "data"}, volume)
        ran = cluster.run()
        self.assertEqual(len(ran), 6 + 2 * 3 + 3 + 3 + 2)   # with the ranks and the digest of each training, and the address of the service
        self.assertEqual(len(list((self.folder / "containers").glob("fashion-train-*/1/log"))), 3)   # a second worker pod each
        selected, answers = (json.loads((volume / name).read_text()) for name in ("selected.json", "load.json"))
        self.assertEqual((len(answers["classes"]), answers["failed"], list(answers["versions"])), (TEST, [], [str(selected["version"])]))
        labels = gzip.decompress((self.folder / "data" / "t10k-labels-idx1-ubyte.gz").read_bytes())[8:]
        self.assertAlmostEqual(sum(a == b for a, b in zip(answers["classes"], labels)) / TEST, selected["selected"]["accuracy"], delta=1.01 / TEST)
        self.assertIn("taken for", (volume / "report.html").read_text())
        # the service lives when the workflow has ended
        self.assertTrue(containers.answers(f"http://127.0.0.1:{ports['port']}/v2/models/fashion/versions/{selected['version']}/ready"))
        picture = json.dumps({"instances": [{"image_bytes": {"b64": base64.b64encode(JPEGS[0]).decode()}}]}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{ports['port']}/v1/models/fashion:predict", picture), timeout=60) as answer:
            named = json.load(answer)
        self.assertEqual((named["classes"], len(named["predictions"][0])), (answers["names"], 10))
        # the digests of the outputs are the same again, so trainings and what needs them do not run
        self.assertEqual({name for name in cluster.run() if name.startswith(("train", "offer", "select"))}, set())

    def test_none_is_good_enough(self):
        output = self.flow("--set", "at-least=0.99", status=1)
        self.assertRegex(output.stderr, r"select: other: .*no model has an accuracy of 0.99 \(train-\S+ 0\.\d+, train-\S+ 0\.\d+, train-\S+ 0\.\d+\)")
        self.assertFalse((self.folder / OUT / "report.html").exists())


if __name__ == "__main__":
    unittest.main()
