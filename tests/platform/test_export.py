"""Tests the exports of a workflow for clusters: against schemas, and by running its pods' shell lines one after
another."""
import importlib.util
import json
import os
import random
import re
import subprocess
import types
import unittest

import yaml
from bench import HERE
from flow import Case
from muster_bench.errors import Refusal
from muster_flow import conditions
from muster_flow.expression import condition
from muster_flow.workflow import read_file
from test_clusters import SCHEMAS, check, jsonschema

FASHION = HERE.parent.parent / "examples" / "fashion" / "workflow.yaml"
STEPS = """
  make: {command: [sh, -c, 'echo one > $1', x, '{made}'], outputs: {made: data/made}, memoize: {max-age: 2h}}
  serve: {command: [sh, -c, 'exit 0', '127.0.0.1:8500'], wait: false, ready: 'http://127.0.0.1:8500/live', model: models}
  join:
    command: [sh, -c, 'cat $1 $1 > $2', "it's", '{made}', '{all}', '127.0.0.1:8500']
    inputs: {made: '{make.made}'}
    outputs: {all: joined}
    needs: [serve]
    retry: {peer: 5}
"""


def checked(document):
    """Throws if a document does not fit its kind."""
    if document["kind"] in ("MPIJob", "Job", "Configuration"):
        return check(document)
    return jsonschema.validate(document, json.loads((SCHEMAS / "crds.json").read_text())["definitions"][document["kind"]])


def holds(when, results):
    """Returns the value of an exported condition, with the content of results by their task and parameter. The expressions
    are those of Python but for their operators; their texts have the same escapes."""
    class Text(str):
        def __matmul__(self, pattern):
            return re.search(pattern, self)

        def __add__(self, other):
            return Text(str(self) + other)

        def __radd__(self, other):
            return Text(other + str(self))

    def as_float(text):
        if "_" in text:   # of Python alone
            raise ValueError(text)
        return float(text)
    tasks = {}
    for (task, name), text in results.items():
        tasks.setdefault(task, types.SimpleNamespace(outputs=types.SimpleNamespace(parameters={}))).outputs.parameters[name] = Text(text)
    expression = re.fullmatch(r"\{\{=(.*)\}\}", when).group(1)
    for operator, python in (("!=", "\0"), ("!", " not "), ("\0", "!="), ("&&", " and "), ("||", " or "), ("matches", "@")):
        expression = expression.replace(operator, python)
    return bool(eval(expression, {"__builtins__": {}, "asFloat": as_float, "tasks": tasks}))


class Exports(Case):
    def setUp(self):
        super().setUp()
        if jsonschema is None:
            self.skipTest("SKIPPED: python3-jsonschema is not installed")

    def made(self, kind, file, *words):
        done = self.bench("export", kind, file, "--out", "made", "--image", "registry/muster:1", *words)
        found = {line: list(yaml.safe_load_all((self.folder / line).read_text())) for line in done.stdout.split()}
        for documents in found.values():
            for document in documents:
                checked(document)
        return found

    def test_the_project(self):
        """Checks that each kind of export fits its schema and matches the file."""
        places = ("--place", "here=/opt/muster/share/muster/examples/fashion")
        (workflow,), = self.made("argo", FASHION, *places).values()
        templates = {each["name"]: each for each in workflow["spec"]["templates"]}
        tasks = {each["name"]: each for each in templates["main"]["dag"]["tasks"]}
        self.assertEqual(set(tasks["train-plain"]["dependencies"]), {"ingest-train", "ingest-test"})
        # a job of two worker pods inside the DAG
        self.assertEqual([(task["template"], task.get("dependencies")) for task in templates["train-plain"]["dag"]["tasks"]],
                         [("train-plain-ranks", None), ("train-plain-digest", ["ranks"])])
        resource = templates["train-plain-ranks"]["resource"]
        job = yaml.safe_load(resource["manifest"])
        checked({**job, "metadata": {"name": job["metadata"]["generateName"] + "x"}})
        self.assertEqual((resource["action"], resource["successCondition"], job["spec"]["completions"], job["spec"]["parallelism"]), ("create", "status.succeeded == 2", 2, 2))
        self.assertEqual(job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"], {"cpu": "0.33"})   # of a rank
        self.assertNotIn("mpirun", resource["manifest"])
        # a service that lives when the workflow has ended
        self.assertEqual(set(tasks["serve"]["dependencies"]), {"service", "serve-address"})
        address, deployment = (yaml.safe_load(templates[name]["resource"]["manifest"]) for name in ("serve-address", "serve"))
        check(address)
        self.assertEqual((deployment["kind"], address["metadata"]["name"], address["spec"]["selector"]), ("Deployment", "fashion-serve", {"app": "fashion-serve"}))
        self.assertEqual([port["port"] for port in address["spec"]["ports"]], [8500, 8501])
        self.assertIn("--server fashion-serve:8500", templates["load"]["container"]["args"][0])
        self.assertNotIn("daemon", json.dumps(workflow))
        made = self.made("kueue", FASHION, *places)
        jobs = [document for documents in made.values() for document in documents if document["kind"] == "MPIJob"]
        self.assertEqual([job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] for job in jobs], [2, 2, 2])
        self.assertTrue(all(job["spec"]["runPolicy"]["suspend"] and "kueue.x-k8s.io/queue-name" in job["metadata"]["labels"] for job in jobs))
        (configuration,) = made["made/configuration.yaml"]
        self.assertTrue(configuration["waitForPodsReady"]["enable"])
        (runtime, service), = self.made("kserve", FASHION, *places).values()
        self.assertEqual(service["spec"]["predictor"]["model"]["modelFormat"]["name"], runtime["spec"]["supportedModelFormats"][0]["name"])
        self.assertEqual(service["spec"]["predictor"]["model"]["storageUri"], "pvc://muster-results/repository")
        own = yaml.safe_load((FASHION.parent / "service.yaml").read_text())["spec"]["predictor"]
        self.assertEqual((service["spec"]["predictor"]["model"]["args"], service["spec"]["predictor"]["maxReplicas"]), (own["model"]["args"], own["maxReplicas"]))

    def test_dag_memoize_retry(self):
        (workflow,), = self.made("argo", self.workflow(STEPS)).values()
        templates = {each["name"]: each for each in workflow["spec"]["templates"]}
        self.assertEqual(workflow["spec"]["podGC"], {"strategy": "OnPodSuccess"})
        self.assertEqual(templates["make"]["memoize"]["maxAge"], "7200s")
        self.assertIn("{{inputs.parameters.digest-make}}", templates["join"]["memoize"]["key"])
        self.assertEqual(templates["join"]["retryStrategy"]["limit"], "5")
        self.assertRegex(templates["join"]["retryStrategy"]["expression"], r"in \[4, 5, 8, 10,.*143\]")
        service, = yaml.safe_load(templates["serve"]["resource"]["manifest"])["spec"]["template"]["spec"]["containers"]
        self.assertEqual(service["readinessProbe"]["httpGet"], {"path": "/live", "port": 8500})
        self.assertIn("0.0.0.0:8500", service["args"][0])
        self.assertIn("of-the-test-serve:8500", templates["join"]["container"]["args"][0])
        self.assertNotIn("memoize", templates["serve"])

    def test_conditions_and_results_as_parameters(self):
        steps = """
  measure: {command: [sh, -c, 'echo 7 > $1', x, '{value}'], outputs: {value: value}}
  good: {when: "{v} >= 5 && {kind} == a", parameters: {v: '{measure.value}', kind: a}, command: [sh, -c, 'echo $1 > $2', x, '{v}', '{made}'], outputs: {made: good}}
  after: {command: [cat, '{made}'], inputs: {made: '{good.made}'}}
  last: {command: [echo, '{v}'], parameters: {v: '{measure.value}'}, needs: [good]}
"""
        (workflow,), = self.made("argo", self.workflow(steps)).values()
        templates = {each["name"]: each for each in workflow["spec"]["templates"]}
        tasks = {task["name"]: task for task in templates["main"]["dag"]["tasks"]}
        value = "{{tasks.measure.outputs.parameters.value-value}}"
        self.assertEqual([holds(tasks["good"]["when"], {("measure", "value-value"): text}) for text in ("7", "4.9")], [True, False])
        self.assertIn({"name": "value-v", "value": value}, tasks["good"]["arguments"]["parameters"])
        self.assertIn({"name": "value-value", "valueFrom": {"path": "/tmp/value-value"}}, templates["measure"]["outputs"]["parameters"])
        self.assertIn("cp /results/value /tmp/value-value", templates["measure"]["container"]["args"][0])
        self.assertNotIn("parameters.value", templates["good"]["container"]["args"][0])
        self.assertIn({"name": "VALUE_v", "value": "{{inputs.parameters.value-v}}"}, templates["good"]["container"]["env"])
        self.assertEqual(tasks["after"]["depends"], "good.Succeeded")
        self.assertIn("good.Skipped", tasks["last"]["depends"])
        self.assertNotIn("digest-good", json.dumps(tasks["last"]))   # it may not exist
        self.assertNotIn("memoize", templates["last"])
        self.assertIn("memoize", templates["good"])
        several = steps.replace("after: {command: [cat, '{made}'], inputs: {made: '{good.made}'}}", "after: {command: 'true', inputs: {made: ['{good.made}', '{measure.value}']}}")
        self.refused("export", "argo", self.workflow(several), "--image", "x", "--out", "other", says=["'after'", "'good'", "condition"])

    def test_a_result_is_no_code_of_the_next_pod(self):
        """Runs the line of a pod with a result that a shell could execute; also where the pod is in a manifest."""
        results = self.folder / "results"
        steps = """
  measure: {command: [sh, -c, 'true', x, '{value}'], outputs: {value: value}}
  use:
    command: [sh, -c, 'printf "<%s>" "$@" "$MORE"', x, '{my-v}', 'a {my-v}', "it's", '{my-v}']
    parameters: {my-v: '{measure.value}'}
    environment: {MORE: 'with {my-v}'}
"""
        manifest = "\n    wait: false\n    ready: 'http://127.0.0.1:8500/'\n"
        job = "\n    launcher: mpirun\n    ranks: 2\n"
        for more in ("", manifest, job):
            (workflow,), = self.made("argo", self.workflow(steps.rstrip() + more), "--results", results).values()
            template = next(each for each in workflow["spec"]["templates"] if each["name"] == ("use-ranks" if more == job else "use"))
            if more:
                self.assertNotIn("inputs.parameters.value", template["resource"]["manifest"])
                pod = yaml.safe_load(template["resource"]["manifest"])["spec"]["template"]
                container, = pod["spec"]["containers"]
            else:
                container = template["container"]
            if more == manifest:   # a changed result replaces the pods
                self.assertEqual(pod["metadata"]["annotations"], {"digest-measure": "{{inputs.parameters.digest-measure}}"})
            self.assertNotIn("parameters.value", container["args"][0])
            for value in ("7", f"'; touch {self.folder}/broken; '", f"$(touch {self.folder}/broken)", f'" `touch {self.folder}/broken` $HOME \\', ""):
                with self.subTest(more=more, value=value):
                    results.mkdir(exist_ok=True)
                    (results / "value").write_text(value + "\n")
                    variables = {one["name"]: one["value"].replace("{{inputs.parameters.value-my-v}}", value) for one in container["env"] if "value" in one}
                    done = subprocess.run([*container["command"], *container["args"]], env={**os.environ, "JOB_COMPLETION_INDEX": "0", **variables}, timeout=60,
                                          capture_output=True, text=True)
                    alone = f"<{value}>" if value else ""   # as without an export
                    self.assertEqual(done.stdout + done.stderr, f"{alone}<a {value}><it's>{alone}<with {value}>")
                    self.assertFalse((self.folder / "broken").exists())
        self.refused("export", "argo", self.workflow(steps.replace("'{my-v}',", "'{*my-v}',")), "--image", "x", "--out", "other", says=["'use'", "{*my-v}", "one word"])

    def test_conditions_mean_the_same_in_argo(self):
        """Compares exported conditions with those of a run, for texts that end texts, expressions or templates, and for
        texts that are numbers or nearly."""
        steps = """
  measure: {command: [sh, -c, 'true', x, '{a_b}', '{b-1}'], outputs: {a_b: a, b-1: b}}
  good: {when: WHEN, parameters: {learning.rate: '{measure.a_b}', w: '{measure.b-1}', k: CONSTANT}, command: [echo, '{learning.rate}', '{w}']}
"""
        texts = ["7", "7.0", "-.5e1", "07", "a b", "it's", "a' || 'a' == 'a", '"', "\\", "\\u0041", "}}", "{{=1}}", "x ? y : z", "ä", "\U0001f600", "", "nan", "1_0", "inf", "== 7"]
        seed = int(os.environ.get("MUSTER_TEST_SEED", "20261201"))
        draw, seen = random.Random(seed), set()
        for when in ("{learning.rate} == {k}", "{k} != {learning.rate}", "{learning.rate} == {w}", "x{w}y != xz{learning.rate}y", "{learning.rate} < 7 || {w} >= 6.9",
                     "{k} == 7 && {learning.rate} == {w} || {w} == {k}"):
            for constant in texts:
                constant = constant or "empty"
                file = self.workflow(steps.replace("WHEN", json.dumps(when)).replace("CONSTANT", json.dumps(constant, ensure_ascii=False)))
                step = read_file(file).steps["good"]
                exported = condition(step, lambda path: f"tasks['measure'].outputs.parameters['{path}']")
                self.assertEqual(re.findall("[?:]|}}", exported[:-2]), [])   # Argo takes expressions with these apart
                for _ in range(20):
                    one, other = draw.choice(texts), draw.choice(texts)
                    with self.subTest(when=when, constant=constant, one=one, other=other, seed=seed):
                        try:
                            expected = conditions.holds(when, "x", {"learning.rate": one, "w": other, "k": constant})
                        except Refusal:
                            self.assertRaises(ValueError, holds, exported, {("measure", "a"): one, ("measure", "b"): other})
                            continue
                        seen.add(expected)
                        self.assertEqual(holds(exported, {("measure", "a"): one, ("measure", "b"): other}), expected, exported)
        self.assertEqual(seen, {True, False})
        self.refused("export", "argo", self.workflow(steps.replace("WHEN", "'{w} < {k}'").replace("CONSTANT", "a")), "--image", "x", "--out", "other",
                     says=["'good'", "cannot compare 'a'", "no number"])

    def test_names_that_argo_has_not(self):
        steps = """
  mea_sure: {command: [sh, -c, 'true', x, '{a_b}'], outputs: {a_b: value}}
  use_it: {when: '{learning.rate} == 7', parameters: {learning.rate: '{mea_sure.a_b}'}, command: [echo, '{learning.rate}']}
"""
        (workflow,), = self.made("argo", self.workflow(steps)).values()
        names = [template["name"] for template in workflow["spec"]["templates"]]
        tasks = workflow["spec"]["templates"][0]["dag"]["tasks"]
        self.assertEqual(([task["name"] for task in tasks], names), (["mea-sure", "use-it"], ["main", "mea-sure", "use-it"]))
        parameters = [one["name"] for template in workflow["spec"]["templates"][1:] for kind in ("inputs", "outputs") for one in template.get(kind, {}).get("parameters", ())]
        self.assertEqual(parameters, ["digest", "value-a_5f_b", "digest-mea-sure", "value-learning_2e_rate", "digest"])
        self.assertTrue(all(re.fullmatch("[-a-zA-Z0-9_]+", name) for name in parameters))   # of Argo's validation
        self.assertTrue(holds(tasks[1]["when"], {("mea-sure", "value-a_5f_b"): "7.0"}))
        self.refused("export", "argo", self.workflow(steps + "  use-it: {command: 'true'}\n"), "--image", "x", "--out", "other", says=["'use-it'", "same name", "rename"])

    def test_an_exported_result_is_another_key(self):
        make = "  make: {command: [sh, -c, 'echo 1 > $1', x, '{made}'], outputs: {made: MADE}}\n"
        keys = set()
        for steps in (make, make + "  use: {command: [echo, '{v}'], parameters: {v: '{make.made}'}}\n", make.replace("MADE", "elsewhere")):
            (workflow,), = self.made("argo", self.workflow(steps)).values()
            keys.add(workflow["spec"]["templates"][1]["memoize"]["key"])
        self.assertEqual(len(keys), 3)

    def test_what_starts_it(self):
        steps = """
  ingest: {command: [cp, '{rows}', '{made}'], inputs: {rows: /data/rows.csv, more: /data/set}, outputs: {made: made}}
  train: {command: [cp, '{made}', '{model}'], inputs: {made: made}, outputs: {model: model}}
"""
        watch = "{schedule: '0 3 * * *', data: true, revision: {repository: x, branch: main}}"
        if importlib.util.find_spec("croniter") is None:
            watch = watch.replace("schedule: '0 3 * * *', ", "")
        made = self.made("argo", self.workflow(steps, top=f"watch: {watch}"))
        if "schedule" in watch:
            (cron,) = made["made/cron.yaml"]
            self.assertEqual(cron["spec"], {"schedules": ["0 3 * * *"], "concurrencyPolicy": "Replace", "workflowSpec": {"workflowTemplateRef": {"name": "of-the-test"}}})
        (template,) = made["made/template.yaml"]
        files, webhook, sensor = made["made/sensor.yaml"]
        self.assertEqual([one["watchPathConfig"] for one in files["spec"]["file"].values()],
                         [{"directory": "/data", "path": "rows.csv"}, {"directory": "/data/set", "path": "MANIFEST"}])
        self.assertEqual({need["eventSourceName"] for need in sensor["spec"]["dependencies"]}, {files["metadata"]["name"], webhook["metadata"]["name"]})
        self.assertEqual(sensor["spec"]["triggers"][0]["template"]["conditions"], "file-data-0 || file-data-1 || webhook-push")
        # steps that read the data run each time, later steps run if an earlier output changed
        templates = {one["name"]: one for one in template["spec"]["templates"]}
        self.assertNotIn("memoize", templates["ingest"])
        self.assertIn("{{inputs.parameters.digest-ingest}}", templates["train"]["memoize"]["key"])
        sensor["spec"]["triggers"][0]["template"]["argoWorkflow"]["operations"] = "submit"
        self.assertRaises(jsonschema.ValidationError, checked, sensor)
        self.assertEqual(list(self.made("argo", self.workflow(steps))), ["made/workflow.yaml"])

    def test_a_changed_parameter_is_another_key(self):
        keys = []
        for n in (1, 2):
            file = self.workflow("  make: {command: [sh, -c, 'echo {n} > $1', x, '{made}'], outputs: {made: made}}", top=f"parameters: {{n: {n}}}")
            (workflow,), = self.made("argo", file).values()
            keys.append(workflow["spec"]["templates"][1]["memoize"]["key"])
        self.assertNotEqual(*keys)

    def test_the_lines_of_the_pods_run(self):
        results = self.folder / "results"
        (workflow,), = self.made("argo", self.workflow(STEPS), "--results", results).values()
        templates = {each["name"]: each for each in workflow["spec"]["templates"]}
        digests = []
        for name in ("make", "join", "make"):
            line = templates[name]["container"]["args"][0].replace("/tmp/digest", str(self.folder / "digest"))
            subprocess.run([*templates[name]["container"]["command"], line], check=True, timeout=60)
            digests.append((self.folder / "digest").read_text())
        self.assertEqual((results / "joined").read_text(), "one\none\n")
        self.assertTrue(re.fullmatch(r"[0-9a-f]{16}\n", digests[0]))
        self.assertEqual(digests[0], digests[2])
        self.assertNotEqual(digests[0], digests[1])
        # the same line once more, over the outputs of the first time
        self.assertIn(f"rm -rf {results}/data/made", templates["make"]["container"]["args"][0])

    def test_the_schemas_refuse_what_is_wrong(self):
        (workflow,), = self.made("argo", self.workflow(STEPS)).values()
        template = workflow["spec"]["templates"][1]
        for change in (lambda: template.update(retryStrategy={"limits": "3"}), lambda: template.update(memoize={"key": "k"}),
                       lambda: workflow["spec"].update(podGC={"strategy": "Never"}), lambda: workflow["spec"].pop("templates") and workflow.pop("metadata")):
            before = json.dumps(workflow)
            change()
            with self.assertRaises(jsonschema.ValidationError):
                checked(workflow)
            workflow = json.loads(before)
            template = workflow["spec"]["templates"][1]
        (runtime, service), = self.made("kserve", FASHION).values()
        queues = self.made("kueue", FASHION)["made/queue.yaml"]
        for document, keys, value in ((service, ("spec", "predictor", "model", "modelFormats"), {}), (service, ("spec", "predictor", "model", "modelFormat"), {}),
                                      (service, ("spec", "predictor", "model", "resources", "limits", "cpu"), "two"),
                                      (runtime, ("spec", "containers", 0, "readinessProbe", "httpGet", "port"), []), (runtime, ("spec", "protocolVersions"), "v2"),
                                      (queues[1], ("spec", "resourceGroups", 0, "flavors", 0, "name"), "A_b"), (queues[1], ("spec", "resourceGroups", 0, "coveredResources"), []),
                                      (queues[2], ("spec", "clusterQueues"), "a")):
            with self.subTest(keys=keys, value=value):
                wrong = at = json.loads(json.dumps(document))
                for key in keys[:-1]:
                    at = at[key]
                at[keys[-1]] = value
                with self.assertRaises(jsonschema.ValidationError):
                    checked(wrong)

    def test_refused(self):
        file = self.workflow("  make: {command: 'true'}")
        self.refused("export", "kueue", file, "--out", "made", "--image", "i", says=["no step of several ranks", "argo"])
        self.refused("export", "kserve", file, "--out", "made", "--image", "i", says="no step with a model")
        file = self.workflow("  make: {command: 'true'}\n  serve: {command: 'true', wait: false}")
        self.refused("export", "argo", file, "--out", "made", "--image", "i", says=["step 'serve'", "no address"])
        file = self.workflow("  make: {command: 'true'}\n  serve: {command: 'true', wait: false, model: {folder: m, service: workflow.yaml}}")
        self.refused("export", "kserve", file, "--out", "made", "--image", "i", says=["step 'serve'", "no InferenceService"])
        file = self.workflow("  make: {command: 'true', launcher: srun}")
        self.refused("export", "argo", file, "--out", "made", "--image", "i", says=["step 'make'", "srun"])


if __name__ == "__main__":
    unittest.main()
