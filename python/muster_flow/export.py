"""The same workflow for clusters: Argo Workflows (argo.py), Kueue, KServe. The files are written, not run."""
import pathlib
import re

from muster_bench import clusters
from muster_bench.document import load
from muster_bench.errors import Refusal
from muster_bench.files import make_folder, write_whole
from muster_bench.text import value_text
from .argo import argo
from .exported import Exported

QUEUE = "muster"
FORMAT = "muster"            # format of models, as a serving runtime names the formats that it serves


def write(flow, kind, out, image, results):
    """Writes the files and returns their paths. `results` is a folder that all pods share."""
    folder, written = make_folder(pathlib.Path(out)), []
    for name, documents in KINDS[kind](flow, image, pathlib.Path(results)):
        write_whole(folder / name, clusters.documents(documents, "muster-flow"))
        written.append(folder / name)
    return written


# ---- Kueue ----

def kueue(flow, image, results):
    """Yields steps with several ranks as MPIJobs, whose pods Kueue admits all or none, and their queue."""
    runs = [Exported(flow, step, results) for step in flow.steps.values() if step.ranks > 1]
    if bound := [step.name for step in flow.steps.values() if step.ranks > 1 and (step.when or step.taken or step.each)]:
        raise Refusal(f"step '{bound[0]}' has a condition or takes a result of another step, or is a fan-out (a job alone does not know results); export it to argo")
    if not runs:
        raise Refusal(f"'{flow.name}' has no step of several ranks (a gang is of several pods); export it to argo")
    cpus = sum(run.ranks * run.template.resources.cpus_per_rank for run in runs)
    memory = sum(run.ranks * run.template.resources.memory for run in runs) >> 20
    quotas = [{"name": "cpu", "nominalQuota": value_text(cpus)}] + ([{"name": "memory", "nominalQuota": f"{memory}Mi"}] if memory else [])
    yield "configuration.yaml", [{"apiVersion": "config.kueue.x-k8s.io/v1beta1", "kind": "Configuration",
                                  "waitForPodsReady": {"enable": True, "timeout": "5m", "blockAdmission": True},
                                  "integrations": {"frameworks": ["batch/job", "kubeflow.org/mpijob"]}}]
    yield "queue.yaml", [
        {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ResourceFlavor", "metadata": {"name": QUEUE}},
        {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ClusterQueue", "metadata": {"name": QUEUE}, "spec": {"namespaceSelector": {}, "resourceGroups": [
            {"coveredResources": [quota["name"] for quota in quotas], "flavors": [{"name": QUEUE, "resources": quotas}]}]}},
        {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue", "metadata": {"name": QUEUE}, "spec": {"clusterQueue": QUEUE}}]
    for run in runs:
        yield f"{clusters.name_of(run)}.yaml", [clusters.queued(clusters.job_of(run, results, image), clusters.Share(queue=QUEUE))]


# ---- KServe ----

def kserve(flow, image, _):
    """Yields the models that the steps with `model` serve, from the folder that the workflow writes them to."""
    found = {step.name: step for step in flow.steps.values() if step.model}
    if not found:
        raise Refusal(f"'{flow.name}' has no step with a model (there is nothing to serve); add model: FOLDER to the step that serves")
    runtime = {"apiVersion": "serving.kserve.io/v1alpha1", "kind": "ServingRuntime", "metadata": {"name": FORMAT}, "spec": {
        "supportedModelFormats": [{"name": FORMAT, "version": "1", "autoSelect": True}], "protocolVersions": ["v1", "v2"],
        "containers": [{"name": "kserve-container", "image": image, "command": ["/opt/muster/libexec/muster/serve"],
                        "args": ["--models", "/mnt/models", "--listen", "0.0.0.0:8080"], "ports": [{"containerPort": 8080, "protocol": "TCP"}],
                        "readinessProbe": {"httpGet": {"path": "/v2/health/ready", "port": 8080}}}]}}
    yield "inference.yaml", [runtime, *(_inference_service(flow, step, len(found) == 1) for step in found.values())]


def _inference_service(flow, step, alone):
    """Returns the service of muster-pool that the step names, with the place of the models in the cluster."""
    cpus = {"cpu": value_text(step.ranks * step.resources.cpus_per_rank)}
    described = {"metadata": {"name": clusters.plain_name(flow.name if alone else f"{flow.name}-{step.name}")}, "spec": {"predictor": {"model": {}}}}
    if step.service:
        described = load(pathlib.Path(flow.path).parent / step.service, "describes a service")
        if described.get("kind") != "InferenceService" or not isinstance(described.get("spec", {}).get("predictor", {}).get("model"), dict):
            raise Refusal(f"step '{step.name}': '{step.service}' is no InferenceService with a model (it is exported for KServe); name the file of muster-pool")
    predictor = described["spec"]["predictor"]
    model = {"resources": {"requests": cpus, "limits": cpus}, **predictor["model"], "modelFormat": {"name": FORMAT}, "runtime": FORMAT, "protocolVersion": "v2",
             "storageUri": f"pvc://{clusters.CLAIM}/{re.sub('^/+', '', step.model)}"}
    return {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": described["metadata"],
            "spec": {**described["spec"], "predictor": {**predictor, "model": model}}}


KINDS = {"argo": argo, "kueue": kueue, "kserve": kserve}
