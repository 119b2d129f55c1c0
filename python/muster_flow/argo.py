"""A workflow as a Workflow of Argo, with the objects that start it. A step with several ranks is a Job of as many pods, a step without `wait` is a
Deployment and a Service that outlive the workflow."""
import pathlib
import shlex
import urllib.parse

from muster_bench import clusters, pods
from muster_bench.errors import Refusal
from muster_bench.files import digest_of
from muster_bench.text import value_text
from .ends import PEERS, SOURCE
from .exported import MARK, Exported, line_of, variable_of
from .expression import condition, parameter_name, with_task_names
from .remote import is_remote

DIGEST = "/tmp/digest"       # digest of a step's outputs, which memoizes the steps that need it
DIGITS = 16                  # length of the digest
LONGEST_KEY = 253            # of an entry of a ConfigMap
AGE = 365 * 86400            # seconds that Argo keeps entries that are memoized by content
SENSOR = "operate-workflow-sa"   # the account of Argo Events' manual, which may submit workflows
ACCOUNT = "muster-flow"          # of the workflow's pods: see packaging/argo-role.yaml
USER = 1000                      # of the image
# Programs of pods that read the list of a fan-out: its items for withParam, a value, and the paths of an output.
ITEMS = """import hashlib, json, re, sys
entries = json.load(open(sys.argv[1]))
wrong = [name for name, values in entries.items() if not re.fullmatch("[A-Za-z0-9_-]+", name) or set(values) - set(sys.argv[2:])]
if wrong or not entries:
    sys.exit(f"{sys.argv[1]} is no list of the fan-out ({wrong[0] + ' has other parameters, or is no name' if wrong else 'it is empty'})")
print(json.dumps([{"each": name, "key": hashlib.sha256(json.dumps([name, entries[name]], sort_keys=True).encode()).hexdigest()[:16]} for name in entries]))"""
VALUE = """import json, sys
value = json.load(open(sys.argv[1]))[sys.argv[2]].get(sys.argv[3], sys.argv[4])
print(str(value).lower() if isinstance(value, bool) else "" if value is None else int(value) if isinstance(value, float) and value.is_integer() else value)"""
EACH = [{"name": variable_of("each"), "value": "{{inputs.parameters.each}}"}]   # the name of a step of a fan-out, of signs that are none of a shell
PATHS = """import json, sys
print(*(sys.argv[2].replace("{each}", name) for name in json.load(open(sys.argv[1]))), sep="\\n")"""


def argo(flow, image, results):
    """Yields a DAG. A step is memoized by its inputs, as here: the digests of the outputs that it needs are
    parameters."""
    flow = with_task_names(flow)
    tasks = [task for step in flow.steps.values() for task in _tasks(flow, step)]
    templates = [{"name": "main", "dag": {"tasks": tasks}}]
    templates += [template for step in flow.steps.values() for template in _templates(flow, step, image, results)]
    spec = {"entrypoint": "main", "serviceAccountName": ACCOUNT, "securityContext": {"fsGroup": USER}, "podGC": {"strategy": "OnPodSuccess"},
            "volumes": clusters.volumes(), "templates": templates}
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
        paths = [pathlib.Path(path) for path in sorted(flow.sources()) if not is_remote(path)]
        sources["file"] = {f"data-{number}": {"eventType": "CREATE", "watchPathConfig": {"directory": str(path if not path.suffix else path.parent),
                                                                                       "path": "MANIFEST" if not path.suffix else path.name}}
                           for number, path in enumerate(paths)}
    if flow.watch["revision"]:
        sources["webhook"] = {"push": {"port": "12000", "endpoint": "/push", "method": "POST", "url": ""}}
    return {kind: events for kind, events in sources.items() if events}


def _given(flow, step):
    """Returns the parameters that a step receives from the steps that it needs: {parameter: the value of their
    tasks}."""
    unsure = _uncertain(flow)
    makers = _makers(flow, step)
    known = [name for name in step.needs if flow.steps[name].wait and (name not in unsure or name in makers) and not flow.steps[name].each and (not step.each or name in makers)]
    return {**({"each": "{{item.each}}", "digest-each": "{{item.key}}"} if step.each else {}),
            **{f"digest-{name}": f"{{{{tasks.{name}.outputs.parameters.digest}}}}" for name in known},
            **{f"value-{parameter_name(name)}": _value(flow, path) for name, path in step.taken.items()}}


def _makers(flow, step):
    """Returns the names of the steps whose outputs the step takes."""
    return {maker.name for paths in (*step.inputs.values(), step.taken.values()) for path in paths if (maker := flow.maker(path))}


def _uncertain(flow):
    """Returns the names of the steps that a condition may leave out."""
    found = set()
    for step in flow.steps.values():
        makers = _makers(flow, step)
        for name, paths in step.inputs.items():
            of_input = {maker.name for path in paths if (maker := flow.maker(path))}
            if of_input & found and of_input - found:
                raise Refusal(f"step '{step.name}' takes the outputs of several steps as '{name}', and a condition may leave out '{min(of_input & found)}' (a task of Argo "
                              "takes all outputs or none); give all of them the condition, or none")
        if step.when or makers & found:
            found.add(step.name)
    return found


def _value(flow, path):
    """Returns the parameter of a task with the content of an output."""
    maker = flow.maker(path)
    return f"{{{{tasks.{maker.name}.outputs.parameters.{_parameter(maker, path)}}}}}"


def _result(flow, path):
    """Returns the expression for the content of an output."""
    maker = flow.maker(path)
    return f"tasks['{maker.name}'].outputs.parameters['{_parameter(maker, path)}']"


def _parameter(maker, path):
    return f"value-{parameter_name(next(name for name, made in maker.outputs.items() if made == path))}"


def _items(flow, path):
    """Returns the parameter of a task with the items of the list at a path."""
    return _parameter(flow.maker(path), path).replace("value-", "items-", 1)


def _tasks(flow, step):
    """Yields the tasks of a step. A service has one for its address, which exists before its pods."""
    given = [{"name": name, "value": value} for name, value in _given(flow, step).items()]
    needs = list(step.needs)
    if not step.wait:
        yield {"name": f"{step.name}-address", "template": f"{step.name}-address"}
        needs.append(f"{step.name}-address")
    order = {"dependencies": needs} if needs else {}
    if needs and any(other.when for other in flow.steps.values()):   # a step that was left out holds up only steps that take its outputs
        makers = _makers(flow, step)
        ended = [f"{name}.Succeeded" if name in makers else f"({' || '.join(f'{name}.{state}' for state in ('Succeeded', 'Skipped', 'Omitted', 'Daemoned'))})" for name in needs]
        order = {"depends": " && ".join(ended)}
    when = {"when": condition(step, lambda path: _result(flow, path))} if step.when else {}
    fan = {"withParam": f"{{{{tasks.{flow.maker(step.each).name}.outputs.parameters.{_items(flow, step.each)}}}}}"} if step.each else {}
    yield {"name": step.name, "template": step.name, **order, **when, **fan, **({"arguments": {"parameters": given}} if given else {})}


def _templates(flow, step, image, results):
    """Yields the templates of a step; the last one has its name."""
    run, given = Exported(flow, step, results), _given(flow, step)
    key = _key(flow, step, given, image)
    run.checkpoint = str(results / "checkpoints" / key)   # a training with other inputs begins anew
    inputs = {"inputs": {"parameters": [{"name": name} for name in given]}} if given else {}
    if not step.wait:
        yield from _service(flow, step, _container(flow, step, run, image, results, in_manifest=True), inputs)
        return
    outputs = [run.place(path) for path in step.outputs.values()]
    # a part of the names of record files is random (files.Digests)
    found = f"find {line_of(outputs)} -type f"
    digest = (f"{{ {found} ! -name MANIFEST -exec sha256sum {{}} + | sed 's/-[0-9a-f]*[.]muster$//' | sort; {found} -name MANIFEST -exec cut -d ' ' -f 3- {{}} +; }} "
              f"| sha256sum | cut -c 1-{DIGITS} > {DIGEST}" if outputs else f"date > {DIGEST}")
    said = [{"name": "digest", "valueFrom": {"path": DIGEST}}]
    for path in _shown(flow, step):
        name = _parameter(step, path)
        digest += f"; cp {shlex.quote(str(results / path))} /tmp/{name}"
        said.append({"name": name, "valueFrom": {"path": f"/tmp/{name}"}})
    for other in (other for other in flow.steps.values() if other.each in step.outputs.values()):
        name = _items(flow, other.each)
        digest += f"; python3 -c {shlex.join([ITEMS, str(results / other.each), *other.free])} > /tmp/{name}"
        said += [{"name": name, "valueFrom": {"path": f"/tmp/{name}"}}] if {"name": name, "valueFrom": {"path": f"/tmp/{name}"}} not in said else []
    said = {"outputs": {"parameters": said}}
    limit = {"activeDeadlineSeconds": str(int(step.timeout))}
    # else the cluster cannot know the input's digest, or the digests of many inputs exceed the name of an entry
    known = "max-age" in step.memoize or not flow.sources().intersection(path for paths in step.inputs.values() for path in paths)
    memoized = {"memoize": {"key": key, "maxAge": f"{int(step.memoize.get('max-age', AGE))}s", "cache": {"configMap": {"name": f"{clusters.plain_name(flow.name)}-cache"}}}}
    unknown = _uncertain(flow).intersection(step.needs) - _makers(flow, step)
    if not known or unknown or any(flow.steps[name].each for name in step.needs) or len(step.name) + 1 + DIGITS + len(given) * (DIGITS + 1) > LONGEST_KEY:
        memoized = {}
    # growing pauses, because a source of data may be away
    pauses = {"duration": "2s", "factor": "2", "maxDuration": "1h"}
    retry = {"limit": str(max(step.retry["peer"], step.retry["source"])), "retryPolicy": "Always", "backoff": pauses}
    if step.ranks > 1 and step.launcher.kind == "mpirun":
        yield {"name": f"{step.name}-ranks", **inputs, "resource": _job(flow, step, run, image, results), "retryStrategy": retry}
        digests = _plain(run, image, results, [digest])
        digests["env"] += EACH if step.each else []
        yield {"name": f"{step.name}-digest", **inputs, "container": digests, **said, **limit}
        passed = {"arguments": {"parameters": [{"name": name, "value": f"{{{{inputs.parameters.{name}}}}}"} for name in given]}} if given else {}
        yield {"name": step.name, **inputs, **memoized, "dag": {"tasks": [
            {"name": "ranks", "template": f"{step.name}-ranks", **passed},
            {"name": "digest", "template": f"{step.name}-digest", "dependencies": ["ranks"], **passed}]},
            "outputs": {"parameters": [{"name": one["name"], "valueFrom": {"parameter": f"{{{{tasks.digest.outputs.parameters.{one['name']}}}}}"}}
                                       for one in said["outputs"]["parameters"]]}}
        return
    # A deleted or preempted pod has no exit status. The statuses of lost peers and of signals are retried, other
    # statuses are not.
    statuses = ", ".join(map(str, sorted({*PEERS, SOURCE})))
    retry["expression"] = f"lastRetry.status == 'Error' || asInt(lastRetry.exitCode) > 128 || asInt(lastRetry.exitCode) in [{statuses}]"
    container = _container(flow, step, run, image, results, [digest])
    yield {"name": step.name, **inputs, **memoized, "container": container, **said, **limit, "retryStrategy": retry}


def _shown(flow, step):
    """Returns the outputs whose content other steps take."""
    return sorted({path for other in flow.steps.values() for path in other.taken.values() if flow.maker(path) is step})


def _key(flow, step, given, image):
    """Returns the name of a result: the step's own digest, and the digests of the outputs that it needs. An entry of
    Argo's cache has no outputs that were added later."""
    servers = [[flow.steps[name].command, flow.steps[name].environment] for name in step.needs if not flow.steps[name].wait]
    own = digest_of([step.command, {name: value_text(value) for name, value in step.parameters.items()}, step.environment, step.ranks, servers, image, step.outputs, _shown(flow, step)])[:DIGITS]
    digests = [f"{{{{inputs.parameters.{name}}}}}" for name in given if name.startswith("digest-")] if "max-age" not in step.memoize else []
    return "-".join([step.name, own, *digests])


def host_of(flow, server):
    """Returns the name of a service in the cluster."""
    return clusters.plain_name(f"{flow.name}-{server.name}")


def _words(flow, step, run):
    """Returns the command, which meets services by their names and, as a service, listens at all interfaces."""
    words = run.words(step.command)
    for server in (flow.steps[name] for name in step.needs if not flow.steps[name].wait):
        host = urllib.parse.urlsplit(server.ready).hostname
        words = [word.replace(host, host_of(flow, server)) if host else word for word in words]
    own = urllib.parse.urlsplit(step.ready).hostname
    return [word.replace(own, "0.0.0.0") if not step.wait and own else word for word in words]


def _plain(run, image, results, lines, ranks=1):
    """Returns a container that runs lines of a shell."""
    step = run.template
    return {"image": image, "command": ["sh", "-ec"], "args": ["\n".join(lines)], "resources": pods.limits(step.resources, ranks),
            "env": [{"name": name, "value": value} for name, text in step.environment.items() if MARK not in (value := run.text(text))],
            "volumeMounts": [{"name": "results", "mountPath": str(results)}]}


def _container(flow, step, run, image, results, after=(), before=(), in_manifest=False):
    """Returns the container of a step. Results of other steps are variables: Argo fills them in, except in a manifest,
    which their content could change."""
    taken = {variable_of(name): (f"{{{{inputs.parameters.value-{parameter_name(name)}}}}}", str(results / path)) for name, path in step.taken.items()}
    read = [f'{name}="$(cat {shlex.quote(path)})"; export {name}' for name, (_, path) in taken.items()] if in_manifest else []
    read += [f'{variable_of(name)}="$(python3 -c {shlex.join([VALUE, str(results / step.each)])} "${variable_of("each")}" {shlex.join([name, value_text(step.parameters[name])])})"; '
             f"export {variable_of(name)}" for name in step.free]
    read += [f'{name}="$(python3 -c {shlex.join([PATHS, str(results / flow.maker(path).each), str(results / path)])})"' for path, name in run.fans.items()]
    derived = [f"export {line_of([f'{name}={value}'])}" for name, text in step.environment.items() if MARK in (value := run.text(text))]
    outputs = [run.place(path) for path in step.outputs.values()]
    folders = sorted({str(pathlib.Path(path).parent) for path in outputs} | {run.text("{checkpoint}"), run.text("{output}")})
    emptied = [f'[ "${{RANK:-0}}" != 0 ] || rm -rf {line_of(outputs)}'] if outputs else []   # of an earlier attempt or workflow
    lines = [*before, *read, *derived, *emptied, f"mkdir -p {line_of(folders)}", f"cd {line_of([run.text('{output}')])}", line_of(_words(flow, step, run)), *after]
    container = _plain(run, image, results, lines, step.ranks if step.launcher.kind == "local" else 1)
    container["env"] += [] if in_manifest else [{"name": name, "value": value} for name, (value, _) in taken.items()]
    container["env"] += EACH if step.each else []
    return container


def _job(flow, step, run, image, results):
    """Returns a template that creates a Job with a pod for each rank and waits for it. Ranks of muster find each other through a file on the volume
    that all pods share. A pod that fails ends the Job, which the workflow repeats."""
    meeting = str(results / "rendezvous")
    container = _container(flow, step, run, image, results, before=[f"mkdir -p {shlex.quote(meeting)}", "export RANK=$JOB_COMPLETION_INDEX"], in_manifest=True)
    container["name"] = "rank"
    container["env"] += [{"name": "WORLD_SIZE", "value": str(step.ranks)}, {"name": "LOCAL_RANK", "value": "0"},
                         {"name": "MUSTER_RENDEZVOUS", "value": f"file:{meeting}"},
                         {"name": "MUSTER_JOB", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['job-name']"}}}]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"generateName": f"{clusters.plain_name(run.id)[:40]}-"}, "spec": {
        "completionMode": "Indexed", "completions": step.ranks, "parallelism": step.ranks, "backoffLimit": 0, "activeDeadlineSeconds": int(step.timeout),
        "template": {"spec": {"restartPolicy": "Never", "securityContext": {"fsGroup": USER}, "containers": [container], "volumes": clusters.volumes()}}}}
    return {"action": "create", "setOwnerReference": True, "successCondition": f"status.succeeded == {step.ranks}", "failureCondition": "status.failed > 0",
            "manifest": clusters.plain(job)}


def _service(flow, step, container, inputs):
    """Yields the templates that apply a Service and a Deployment. Both stay when the workflow has ended, and the next workflow changes them."""
    name, ready = host_of(flow, step), urllib.parse.urlsplit(step.ready)
    labels = {"app": name}
    made = sorted({flow.maker(path).name for path in step.taken.values()})   # a changed result replaces the pods
    noted = {"annotations": {f"digest-{maker}": f"{{{{inputs.parameters.digest-{maker}}}}}" for maker in made}} if made else {}
    ports = sorted({port for address in (step.ready, step.address) if (port := urllib.parse.urlsplit(address).port)})
    if not ports:
        raise Refusal(f"step '{step.name}' is not waited for and has no address (a Service needs a port); add ready: http://HOST:PORT/ or address")
    container["name"] = "service"
    container["ports"] = [{"containerPort": port} for port in ports]
    if ready.port:
        container["readinessProbe"] = {"httpGet": {"path": ready.path or "/", "port": ready.port}, "periodSeconds": 1}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"selector": labels, "ports": [{"name": f"p{port}", "port": port} for port in ports]}}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "replicas": 1, "strategy": {"type": "Recreate"}, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels, **noted}, "spec": {
            "securityContext": {"fsGroup": USER}, "containers": [container], "volumes": clusters.volumes()}}}}
    yield {"name": f"{step.name}-address", "resource": {"action": "apply", "manifest": clusters.plain(service)}}
    yield {"name": step.name, **inputs, "resource": {"action": "apply", "successCondition": "status.readyReplicas > 0", "manifest": clusters.plain(deployment)}}
