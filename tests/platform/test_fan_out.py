"""Tests fan-outs: steps whose number and parameters the result of another step decides."""
import json
import os
import re
import shutil
import subprocess
import unittest

from flow import Case
from test_export import checked, jsonschema
import yaml

STEPS = """
  split:
    command: [sh, -c, 'cp $1 $2; echo split >> {here}/log', x, '{given}', '{list}']
    inputs: {given: list.json}
    outputs: {list: parts.json}
    SPLIT
  train:
    each: "{split.list}"
    parameters: {width: 64, name: plain}
    ranks: "{width}"
    command: [sh, -c, 'echo "$1 $2 $3" > $4; echo train-$1 >> {here}/log; [ ! -e {here}/fails-$1 ]', x, '{each}', '{width}', '{name}', '{model}']
    outputs: {model: "models/{each}"}
  join:
    inputs: {models: "{train.model}"}
    command: [sh, -c, 'out=$1; shift; cat "$@" > $out; echo join >> {here}/log', x, '{all}', '{*models}']
    outputs: {all: joined}
"""
TRAIN = "  train: {each: '{split.list}', parameters: {n: 1}, command: [x, '{n}'], outputs: {m: 'm/{each}'}}\n"
SPLIT = "  split: {command: x, outputs: {list: l}}\n"


class Refused(Case):
    def test_one_line_that_names_the_fault(self):
        for steps, says in ((SPLIT + TRAIN.replace("{split.list}", "split"), ["'train'", "'each' cannot be 'split'"]),
                            (SPLIT + TRAIN.replace("{split.list}", "{split.lists}"), ["'train'", "{split.lists}", "split.list"]),
                            (SPLIT + TRAIN.replace("m/{each}", "m"), ["'train'", "'m'", "{each}"]),
                            (SPLIT + TRAIN.replace("m/{each}", "m/{each}-{n}"), ["'train'", "{each} alone"]),
                            (SPLIT + TRAIN.replace("n: 1", "each: 1"), ["'train'", "'each'", "rename"]),
                            (SPLIT + TRAIN + "  train-2: {command: x}\n", ["'train-2'", "'train'", "rename"]),
                            (SPLIT + TRAIN + "  use: {command: [x, '{v}'], parameters: {v: '{train.m}'}}\n", ["'use'", "{train.m}", "fan-out"]),
                            (SPLIT + TRAIN + "  more: {each: '{train.m}', command: x}\n", ["'more'", "{train.m}", "several"]),
                            (SPLIT.replace("split:", "split: {each: {a: {}},").replace("{command", "command").replace(": l}", ": 'l/{each}'}") + TRAIN, ["'train'", "several"]),
                            ("  one: {command: [x, '{each}']}\n", ["'one'", "{each}"])):
            with self.subTest(says=says):
                self.refused("status", self.workflow(steps), "--out", "out", says=says)

    def test_lists_that_cannot_be(self):
        """Checks that the step that made the list fails, with one line."""
        for content, says in (("[1]", "JSON object"), ("{}", "empty"), ("{", "no list of a fan-out"), ('{"a b": {}}', "'train-a b' is no name"), ('{"a": {"wide": 1}}', "'a' has 'wide'"),
                              ('{"a": {"width": "none"}}', "'ranks' cannot be 'none'"), ('{"a": 1}', "'a' is '1'"), ('{"a": {"name": "x\\ny"}}', "'name' of 'a'"), ('{"a": {"name": [1]}}', "'name' of 'a'")):
            with self.subTest(content=content):
                self.write("list.json", content)
                shutil.rmtree(self.folder / "out", ignore_errors=True)
                end, _, record = self.step(STEPS.replace("SPLIT", ""), name="split", status=1)
                self.assertEqual((end["state"], end["cause"], record), ("failed", "output", None))
                self.assertIn(says, end["why"])
                self.assertNotIn("Traceback", end["why"])


@unittest.skipIf(shutil.which("snakemake") is None, "SKIPPED: snakemake is not installed")
class Runs(Case):
    def run_flow(self, entries, status=0, split="", **more):
        """Runs the workflow with this list; returns the sorted names of the commands that ran, and the output."""
        self.write("list.json", entries if isinstance(entries, str) else json.dumps(entries))
        self.write("log", "")
        done = self.bench("run", self.workflow(STEPS.replace("SPLIT", split)), "--out", "out", timeout=300, status=status, **more)
        return sorted((self.folder / "log").read_text().split()), done.stdout + done.stderr

    def joined(self):
        return (self.folder / "out" / "joined").read_text().splitlines()

    def test_the_list_decides_the_steps(self):
        ran, said = self.run_flow({"a": {"width": 2}, "b": {"name": "it's $HOME; x"}})
        self.assertEqual((ran, self.joined()), (["join", "split", "train-a", "train-b"], ["a 2 plain", "b 64 it's $HOME; x"]))
        self.assertIn("join: ", said)
        self.assertNotIn("\nsplit: /", said)   # the list is no result of its own
        self.assertEqual(self.run_flow({"a": {"width": 2}, "b": {"name": "it's $HOME; x"}})[0], [])
        # the same list in other words runs the step that makes it alone
        self.assertEqual(self.run_flow('{"b": {"name": "it\'s $HOME; x"},\n "a": {"width": 2}}')[0], ["join", "split"])
        self.assertEqual(self.joined(), ["b 64 it's $HOME; x", "a 2 plain"])
        # a longer list runs its new steps, a shorter one none
        self.assertEqual(self.run_flow({"a": {"width": 2}, "c": {}, "d": {"width": 1}})[0], ["join", "split", "train-c", "train-d"])
        self.assertEqual(self.joined(), ["a 2 plain", "c 64 plain", "d 1 plain"])
        said = self.bench("status", self.folder / "workflow.yaml", "--out", "out").stdout
        self.assertEqual([line.split(",")[0] for line in said.splitlines()], ["split: done", "train-a: done", "train-c: done", "train-d: done", "join: done"])
        self.assertIn("train-c is up to date", self.bench("explain", self.folder / "workflow.yaml", "train-c", "--out", "out").stdout)
        # results of steps that the list still has are in use
        self.bench("gc", self.folder / "workflow.yaml", "--out", "out", "--unused", "0s")
        self.assertEqual(self.run_flow({"a": {"width": 2}, "c": {}, "d": {"width": 1}})[0], [])

    def test_a_step_that_fails(self):
        self.write("fails-b", "")
        ran, said = self.run_flow({"a": {}, "b": {}}, status=1)
        self.assertEqual(ran, ["split", "train-a", "train-b"])
        self.assertRegex(said, "muster-flow: train-b: other: ")
        self.assertIn("muster-flow: join: not run", said)
        (self.folder / "fails-b").unlink()
        self.assertEqual(self.run_flow({"a": {}, "b": {}})[0], ["join", "train-b"])

    def test_a_list_that_is_left_out(self):
        ran, said = self.run_flow({"a": {}}, split="when: '1 == 2'")
        self.assertEqual(ran, [])
        self.assertIn("train: abandoned (needs", said)
        self.assertIn("nothing to run", self.run_flow({"a": {}}, split="when: '1 == 2'")[1])


class Exports(Case):
    def setUp(self):
        super().setUp()
        if jsonschema is None:
            self.skipTest("SKIPPED: python3-jsonschema is not installed")

    def exported(self, steps):
        self.bench("export", "argo", self.workflow(steps), "--out", "made", "--image", "i", "--results", self.folder / "results", "--place", f"here={self.folder}")
        workflow, = yaml.safe_load_all((self.folder / "made" / "workflow.yaml").read_text())
        checked(workflow)
        return {one["name"]: one for one in workflow["spec"]["templates"]}

    def pod(self, template, parameters=(), status=0):
        """Runs the line of a pod with its variables, in which parameters are filled in; returns its output parameters."""
        text = json.dumps(template["container"]) if "container" in template else json.dumps(yaml.safe_load(template["resource"]["manifest"])["spec"]["template"]["spec"]["containers"][0])
        for name, value in dict(parameters).items():
            text = text.replace(f"{{{{inputs.parameters.{name}}}}}", value)
        container = json.loads(re.sub("/tmp/(?=digest|items-)", f"{self.folder}/tmp/", text))
        (self.folder / "tmp").mkdir(exist_ok=True)
        done = subprocess.run([*container["command"], *container["args"]], env={**os.environ, "JOB_COMPLETION_INDEX": "0", **{one["name"]: one.get("value", "") for one in container["env"]}},
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return {path.name: path.read_text() for path in (self.folder / "tmp").iterdir()} if not status else done.stderr

    def test_a_task_with_a_parameter_for_its_items(self):
        """Runs the lines of the pods in the order of the DAG, with the items that the first pod has made."""
        self.write("list.json", json.dumps({"a": {"width": 2}, "b_1": {"name": "it's $(touch broken); `touch broken`", "width": 3.0}, "c": {"name": True}}))
        self.write("log", "")
        job = "    launcher: mpirun\n    ranks: 2\n"
        for ranks in ("    ranks: 1\n", job):
            templates = self.exported(STEPS.replace("SPLIT", "").replace('    ranks: "{width}"\n', ranks))
            task = next(task for task in templates["main"]["dag"]["tasks"] if task["name"] == "train")
            self.assertEqual(task["withParam"], "{{tasks.split.outputs.parameters.items-list}}")
            self.assertEqual(task["dependencies"], ["split"])
            given = {one["name"]: one["value"] for one in task["arguments"]["parameters"]}
            self.assertEqual(given, {"each": "{{item.each}}", "digest-each": "{{item.key}}"})
            self.assertNotIn("memoize", templates["join"])    # its digests would be a list
            self.assertIn("{{inputs.parameters.digest-each}}", templates["train"]["memoize"]["key"])
            self.assertIn({"name": "items-list", "valueFrom": {"path": "/tmp/items-list"}}, templates["split"]["outputs"]["parameters"])
            items = json.loads(self.pod(templates["split"])["items-list"])
            self.assertEqual([item["each"] for item in items], ["a", "b_1", "c"])
            for item in items:
                self.assertRegex(item["key"], "[0-9a-f]{16}")
                self.pod(templates["train-ranks" if ranks == job else "train"], {"each": item["each"], "digest-each": item["key"]})
            if ranks == job:
                self.assertRegex(self.pod(templates["train-digest"], {"each": "a"})["digest"], "[0-9a-f]{16}")
            self.pod(templates["join"])
            self.assertEqual((self.folder / "results" / "joined").read_text().splitlines(), ["a 2 plain", "b_1 3 it's $(touch broken); `touch broken`", "c 64 true"])
            self.assertEqual(sorted(path.name for path in (self.folder / "results" / "logs").iterdir()), ["join", "split", "train-a", "train-b_1", "train-c"])
            self.assertEqual(list(self.folder.glob("**/broken")), [])
            shutil.rmtree(self.folder / "results")
        for content, says in (("{}", "empty"), ('{"a;b": {}}', "a;b"), ('{"a": {"wide": 1}}', "other parameters")):
            self.write("list.json", content)
            self.assertIn(says, self.pod(templates["split"], status=1))

    def test_the_key_of_an_item_is_that_of_its_parameters(self):
        templates = self.exported(STEPS.replace("SPLIT", "").replace('    ranks: "{width}"\n', ""))
        keys = []
        for entries in ({"a": {"width": 1}, "b": {}}, {"b": {}, "a": {"width": 2}}):
            self.write("list.json", json.dumps(entries))
            keys.append({item["each"]: item["key"] for item in json.loads(self.pod(templates["split"])["items-list"])})
        self.assertEqual(keys[0]["b"], keys[1]["b"])
        self.assertNotEqual(keys[0]["a"], keys[1]["a"])

    def test_refused(self):
        for steps, says in ((STEPS, ["'train'", "'ranks'", "Argo"]), (STEPS.replace('    ranks: "{width}"\n', "    when: '{width} > 1'\n"), ["'train'", "'when'"]),
                            (STEPS.replace('    ranks: "{width}"\n', "").replace("{*models}", "{models}"), ["'join'", "{*models}"])):
            self.refused("export", "argo", self.workflow(steps.replace("SPLIT", "")), "--out", "made", "--image", "i", says=says)


if __name__ == "__main__":
    unittest.main()
