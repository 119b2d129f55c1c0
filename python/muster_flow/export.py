"""The same workflow for clusters: Argo Workflows, Kueue, KServe. The files are written, not run."""
import pathlib
import re
import shlex
import types
import urllib.parse

from muster_bench import clusters
from muster_bench.errors import Refusal
from muster_bench.files import digest_of, make_folder, write_whole
from muster_bench.text import fill, fill_words, value_text
from .ends import PEERS

QUEUE = "muster"
DIGEST = "/tmp/digest"       # digest of a step's outputs, which memoizes the steps that need it
DIGITS = 16                  # length of the digest
LONGEST_KEY = 253            # of an entry of a ConfigMap
AGE = 365 * 86400            # seconds that Argo keeps entries that are memoized by content
PLATFORM = "/opt/muster/share/muster/python"   # in the image: see packaging/Dockerfile
SENSOR = "operate-workflow-sa"   # the account of Argo Events' manual, which may submit workflows
FORMAT = "muster"            # format of models, as a serving runtime names the formats that it serves


def write(flow, kind, out, image, results):
    """Writes the files and returns their paths. `results` is a folder that all pods share."""
    folder, written = make_folder(pathlib.Path(out)), []
    for name, documents in KINDS[kind](flow, image, pathlib.Path(results)):
        write_whole(folder / name, clusters.documents(documents, "muster-flow"))
        written.append(folder / name)
    return written


class Exported:
    """A step in the form of a run for clusters.py, with the paths inside pods."""

    def __init__(self, flow, step, results):
        if step.launcher.kind not in ("local", "mpirun"):
            raise Refusal(f"step '{step.name}' is started by {step.launcher.kind} (pods have no such launcher); use local or mpirun")
        self._step, self._results, self.id, self.key, self.ranks = step, results, f"{flow.name}-{step.name}", digest_of([flow.name, step.name]), step.ranks
        self.template = types.SimpleNamespace(
            name=step.name, command=step.command, launcher=step.launcher, resources=step.resources, environment=step.environment,
            timeout=step.timeout, retries=types.SimpleNamespace(attempts=1 + step.retry["peer"]), needs=(), before=(), after=(), clean=())

    def _values(self):
        step, results = self._step, self._results
        return {**step.values(results / "store" / step.name), **{name: str(results / path) for name, path in step.outputs.items()}, "platform": PLATFORM,
                "python": "python3", "checkpoint": str(results / "checkpoints" / step.name), "resume": "--resume", "output": str(results / "logs" / step.name)}

    def words(self, words, *_):
        return fill_words(words, self._values(), f"step '{self._step.name}'")

    def text(self, text, *_):
        return fill(text, self._values(), f"step '{self._step.name}'")


# ---- Argo Workflows ----

def argo(flow, image, results):
    """Yields a DAG. A step is memoized by its inputs, as here: the digests of the outputs that it needs are
    parameters."""
    templates = [{"name": "main", "dag": {"tasks": [_task(flow, step) for step in flow.steps.values()]}}]
    templates += [_template(flow, step, image, results) for step in flow.steps.values()]
    spec = {"entrypoint": "main", "podGC": {"strategy": "OnPodSuccess"}, "volumes": clusters.volumes(), "templates": templates}
    yield "workflow.yaml", [_argo(flow, "Workflow", spec)]
    started = {"workflowTemplateRef": {"name": clusters.plain_name(flow.name)}}
    watch, sources = flow.watch, _event_sources(flow)
    if watch["schedule"] or sources:   # one at a time, for any trigger
        yield "template.yaml", [_argo(flow, "WorkflowTemplate", {**spec, "synchronization": {"mutexes": [{"name": clusters.plain_name(flow.name)}]}})]
    if watch["schedule"]:
        yield "cron.yaml", [_argo(flow, "CronWorkflow", {"schedules": [watch["schedule"]], "concurrencyPolicy": "Replace", "workflowSpec": started})]
    if sources:
        named = [(kind, name, clusters.plain_name(f"{flow.name}-{kind}")) for kind, events in sources.items() for name in events]
        filters = {"data": [{"path": "body.ref", "type": "string", "value": [f"refs/heads/{watch['revision'].get('branch')}"]}]}
        needs = [{"name": f"{kind}-{name}", "eventSourceName": source, "eventName": name, **({"filters": filters} if kind == "webhook" else {})}
                 for kind, name, source in named]
        resource = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"generateName": f"{clusters.plain_name(flow.name)}-"}, "spec": started}
        yield "sensor.yaml", [
            *(_argo(flow, "EventSource", {kind: events, **({"template": {"container": {"volumeMounts": [{"name": "results", "mountPath": str(results)}]},
                                                                         "volumes": clusters.volumes()}} if kind == "file" else {})}, f"-{kind}")
              for kind, events in sources.items()),
            _argo(flow, "Sensor", {"template": {"serviceAccountName": SENSOR}, "dependencies": needs, "triggers": [{"template": {
                "name": "run", "conditions": " || ".join(need["name"] for need in needs),
                "argoWorkflow": {"operation": "submit", "source": {"resource": resource}}}}]})]


def _argo(flow, kind, spec, suffix=""):
    return {"apiVersion": "argoproj.io/v1alpha1", "kind": kind, "metadata": {"name": clusters.plain_name(flow.name + suffix)}, "spec": spec}


def _event_sources(flow):
    """Returns {kind: {event: description}} of Argo Events: new files (a MANIFEST is renamed to its name), and the
    notification of a push by a forge."""
    sources = {}
    if flow.watch["data"]:
        paths = [pathlib.Path(path) for path in sorted(flow.sources())]
        sources["file"] = {f"data-{number}": {"eventType": "CREATE", "watchPathConfig": {"directory": str(path if not path.suffix else path.parent),
                                                                                       "path": "MANIFEST" if not path.suffix else path.name}}
                           for number, path in enumerate(paths)}
    if flow.watch["revision"]:
        sources["webhook"] = {"push": {"port": "12000", "endpoint": "/push", "method": "POST", "url": ""}}
    return {kind: events for kind, events in sources.items() if events}


def _given(flow, step):
    """Returns the parameters that a step receives from the steps that it needs: {parameter: the value of their
    tasks}."""
    return {f"{name}-{'digest' if flow.steps[name].wait else 'ip'}":
            f"{{{{tasks.{name}.{'outputs.parameters.digest' if flow.steps[name].wait else 'ip'}}}}}" for name in step.needs}


def _task(flow, step):
    given = [{"name": name, "value": value} for name, value in _given(flow, step).items()]
    return {"name": step.name, "template": step.name, **({"dependencies": step.needs, "arguments": {"parameters": given}} if step.needs else {})}


def _template(flow, step, image, results):
    run, given = Exported(flow, step, results), _given(flow, step)
    words = run.words(step.command)
    if step.launcher.kind == "mpirun":
        words = ["mpirun", "-n", str(step.ranks), *words]
    for server in (flow.steps[name] for name in step.needs if not flow.steps[name].wait):
        host = urllib.parse.urlsplit(server.ready).hostname
        words = [word.replace(host, f"{{{{inputs.parameters.{server.name}-ip}}}}") if host else word for word in words]
    ready = urllib.parse.urlsplit(step.ready)
    if not step.wait and ready.hostname:
        words = [word.replace(ready.hostname, "0.0.0.0") for word in words]
    outputs = [str(results / path) for path in step.outputs.values()]
    folders = sorted({str(pathlib.Path(path).parent) for path in outputs} | {run.text("{checkpoint}"), run.text("{output}")})
    lines = [f"mkdir -p {shlex.join(folders)}", f"cd {shlex.quote(run.text('{output}'))}", shlex.join(words)]
    if step.wait:
        lines.append(f"find {shlex.join(outputs)} -type f -exec sha256sum {{}} + | sort | sha256sum | cut -c 1-{DIGITS} > {DIGEST}" if outputs else f"date > {DIGEST}")
    cpus = {"cpu": value_text(step.ranks * step.resources.cpus_per_rank), **({"memory": f"{(step.resources.memory >> 20) * step.ranks}Mi"} if step.resources.memory else {})}
    container = {"image": image, "command": ["sh", "-ec"], "args": ["\n".join(lines)], "resources": {"requests": cpus, "limits": cpus},
                 "env": [{"name": name, "value": run.text(text)} for name, text in step.environment.items()],
                 "volumeMounts": [{"name": "results", "mountPath": str(results)}]}
    template = {"name": step.name, "container": container, "activeDeadlineSeconds": str(int(step.timeout))}
    if given:
        template["inputs"] = {"parameters": [{"name": name} for name in given]}
    if not step.wait:
        del template["activeDeadlineSeconds"]
        if ready.port:
            container["readinessProbe"] = {"httpGet": {"path": ready.path or "/", "port": ready.port}, "periodSeconds": 1}
        return {**template, "daemon": True}
    # A deleted or preempted pod has no exit status. The statuses of lost peers and of signals are retried, other
    # statuses are not.
    statuses = ", ".join(map(str, sorted(PEERS)))
    template["retryStrategy"] = {"limit": str(step.retry["peer"]), "retryPolicy": "Always", "expression":
                                 f"lastRetry.status == 'Error' || asInt(lastRetry.exitCode) > 128 || asInt(lastRetry.exitCode) in [{statuses}]"}
    template["outputs"] = {"parameters": [{"name": "digest", "valueFrom": {"path": DIGEST}}]}
    own = digest_of([step.command, {name: value_text(value) for name, value in step.parameters.items()}, step.environment, image])[:16]
    digests = [f"{{{{inputs.parameters.{name}}}}}" for name in given if name.endswith("-digest")] if "max-age" not in step.memoize else []
    key = "-".join([step.name, own, *digests])
    known = "max-age" in step.memoize or not flow.sources().intersection(path for paths in step.inputs.values() for path in paths)
    # else the cluster cannot know the input's digest, or the digests of many inputs exceed the name of an entry
    if known and len(step.name) + len(own) + 1 + len(digests) * (DIGITS + 1) <= LONGEST_KEY:
        template["memoize"] = {"key": key, "maxAge": f"{int(step.memoize.get('max-age', AGE))}s",
                               "cache": {"configMap": {"name": f"{clusters.plain_name(flow.name)}-cache"}}}
    return template


# ---- Kueue ----

def kueue(flow, image, results):
    """Yields steps with several ranks as MPIJobs, whose pods Kueue admits all or none, and their queue."""
    runs = [Exported(flow, step, results) for step in flow.steps.values() if step.ranks > 1]
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
    services = []
    for step in found.values():
        cpus = {"cpu": value_text(step.ranks * step.resources.cpus_per_rank)}
        name = clusters.plain_name(flow.name if len(found) == 1 else f"{flow.name}-{step.name}")
        services.append({"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": {"name": name}, "spec": {"predictor": {"model": {
            "modelFormat": {"name": FORMAT}, "runtime": FORMAT, "protocolVersion": "v2", "resources": {"requests": cpus, "limits": cpus},
            "storageUri": f"pvc://{clusters.CLAIM}/{re.sub('^/+', '', step.model)}"}}}})
    yield "inference.yaml", [runtime, *services]


KINDS = {"argo": argo, "kueue": kueue, "kserve": kserve}
