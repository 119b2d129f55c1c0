"""Applies objects of Kueue, KServe, Argo, Kubeflow and Knative to a real API server that knows them by
schemas/crds.json."""
import json
import subprocess
import unittest

import yaml
from bench import PROGRAM
from cluster import ROOT, kubectl, start as setUpModule  # noqa: F401
from flow import Case
from test_clusters import SCHEMAS
from test_export import FASHION, STEPS


def structural(schema):
    """Returns the schema in the form of CustomResourceDefinitions: a field without a schema may have any value, an
    unlisted field is an error."""
    if not schema:
        return {"x-kubernetes-preserve-unknown-fields": True}
    result = {name: schema[name] for name in ("type", "pattern", "required", "minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum") if name in schema}
    if "properties" in schema:
        result["properties"] = {name: structural(each) for name, each in schema["properties"].items()}
    elif isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = structural(schema["additionalProperties"])
    # this server was built with a later Go than it was written for, and treats an empty text as missing
    if result.get("type") == "string":
        result["nullable"] = True
    if "items" in schema:
        result["items"] = structural(schema["items"])
    if isinstance(result.get("type", []), list) and ("anyOf" in schema or "type" in result):
        result.pop("type", None)
        result.update({"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]})
    elif isinstance(schema.get("type"), str) and "enum" in schema:
        result["enum"] = schema["enum"]
    return result


def definitions():
    kinds = json.loads((SCHEMAS / "crds.json").read_text())["definitions"]
    job = json.loads((SCHEMAS / "mpijob-v2beta1.json").read_text())
    for kind, schema in [*kinds.items(), ("MPIJob", {**job, "type": "object"})]:
        group, version = schema["properties"]["apiVersion"].get("enum", ["kubeflow.org/v2beta1"])[0].split("/")
        plural = f"{kind.lower()}s"
        properties = {name: structural(each) for name, each in schema["properties"].items() if name not in ("apiVersion", "kind", "metadata")}
        yield {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
               "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"}},
               "spec": {"group": group, "scope": "Cluster" if kind in ("ClusterQueue", "ResourceFlavor") else "Namespaced",
                        "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
                        "versions": [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}}}]}}


class Exports(Case):
    @classmethod
    def setUpClass(cls):
        known = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(definitions())})
        kubectl("create", "-f", "-", given=known)
        cls.addClassCleanup(kubectl, "delete", "--ignore-not-found", "-f", "-", given=known)
        kubectl("wait", "--for=condition=established", "crd", "--all", "--timeout=60s")

    def accepted(self, documents):
        # a file of Kueue's manager
        documents = [document for document in documents if document["kind"] != "Configuration"]
        text = yaml.safe_dump_all(documents)
        lines = kubectl("apply", "--dry-run=server", "-f", "-", given=text).splitlines()
        self.assertEqual([line.rpartition(" ")[0].endswith("created (server dry") for line in lines], [True] * len(documents), lines)
        return {document["kind"] for document in documents}

    def exported(self, kind, file, *words):
        lines = self.bench("export", kind, file, "--out", "made", "--image", "registry/muster:1", *words).stdout.split()
        return [document for line in lines for document in yaml.safe_load_all((self.folder / line).read_text())]

    def test_workflows(self):
        places = ("--place", "here=/opt/muster/share/muster/examples/fashion")
        kinds = set().union(*(self.accepted(self.exported(kind, FASHION, *places)) for kind in ("argo", "kueue", "kserve")))
        steps = "  ingest: {command: [cp, '{rows}', '{made}'], inputs: {rows: /data/rows.csv}, outputs: {made: made}}"
        watched = self.workflow(steps, top="watch: {schedule: '0 3 * * *', data: true, revision: {repository: x, branch: main}}")
        kinds |= self.accepted(self.exported("argo", watched))
        made, = self.exported("argo", self.workflow(STEPS))
        kinds |= self.accepted([made])
        self.assertEqual(kinds, {"Workflow", "WorkflowTemplate", "CronWorkflow", "EventSource", "Sensor", "MPIJob", "ResourceFlavor", "ClusterQueue", "LocalQueue",
                                 "InferenceService", "ServingRuntime"})
        self.accepted(list(yaml.safe_load_all((ROOT / "packaging" / "argo-role.yaml").read_text())))
        manifests = [yaml.safe_load(template["resource"]["manifest"]) for document in (self.exported("argo", FASHION, *places)[0], made)
                     for template in document["spec"]["templates"] if "resource" in template]
        for document in manifests:   # Argo fills its placeholders
            document["metadata"].setdefault("name", "of-the-test")
            document["spec"].pop("completionMode", None)   # since Kubernetes 1.21
        self.assertEqual({document["kind"] for document in manifests}, {"Job", "Deployment", "Service"})
        self.accepted(manifests)
        made["spec"]["podGC"]["strategies"] = made["spec"]["podGC"].pop("strategy")
        kubectl("apply", "--dry-run=server", "-f", "-", given=json.dumps(made), status=1)

    def test_jobs_of_frameworks(self):
        file = self.write("jobs.yaml", """
muster-bench: 1
name: of the test
templates:
  torch: {command: train, launcher: torchrun, resources: {cpus-per-rank: 0.5, memory: 1G, gpus-per-rank: 1}}
  flow: {command: train, launcher: {kind: tensorflow, servers: 1}}
  mpi: {command: train, launcher: mpirun}
experiments:
  torch: {template: torch, sweep: {ranks: [3]}}
  flow: {template: flow, sweep: {ranks: [3]}}
  mpi: {template: mpi, sweep: {ranks: [3]}}
""")
        lines = subprocess.run([*PROGRAM, "manifests", file, "--out", "made", "--kind", "kubernetes", "--image", "i:1", "--queue", "short"], check=True,
                               cwd=self.folder, capture_output=True, text=True).stdout.split()
        kinds = self.accepted([document for line in lines for document in yaml.safe_load_all((self.folder / line).read_text())])
        self.assertEqual(kinds, {"PyTorchJob", "TFJob", "MPIJob"})

    def test_functions(self):
        for transfer in ("inline", "xdt"):
            text = subprocess.run(["sh", ROOT / "examples/stacking/knative.sh", transfer, "4", "i:1"], check=True, capture_output=True, text=True).stdout
            self.assertEqual(self.accepted(list(yaml.safe_load_all(text))), {"Service"})


if __name__ == "__main__":
    unittest.main()
