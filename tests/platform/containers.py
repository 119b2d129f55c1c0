"""Runs an exported Workflow of Argo in containers on this machine, task after task: a pod has the image's packages and files, its declared
volumes, variables and names of services, and nothing else of this machine."""
import contextlib
import graphlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import urllib.request

import yaml
from bench import BUILD, HERE

ROOT = HERE.parent.parent
PATIENCE = 300 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))
USER = 1000     # of the image
# An overlay of this machine's packages, without the checkout, the build and the folder of temporary files.
BEGIN = f"""
base=$1 root=$1/root; shift
mount -t tmpfs none "$base" && mkdir "$base/upper" "$base/work" "$root"
mount -t overlay none -o "lowerdir=/,upperdir=$base/upper,workdir=$base/work" "$root"
mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev"
while [ "$1" != -- ]; do mkdir -p "$root$2" && mount --rbind "$1" "$root$2"; shift 2; done; shift
while [ "$1" != -- ]; do [ ! -d "$root$1" ] || mount -t tmpfs none "$root$1"; shift; done; shift
chmod 1777 "$root/tmp"; echo "$1" >> "$root/etc/hosts"; shift
exec chroot --userspec={USER}:{USER} "$root" /usr/bin/env -i "$@"
"""


def missing():
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "chroot", "haproxy"))):
        return "SKIPPED: containers need root, unshare and HAProxy"
    probe = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False)
    return "" if probe.returncode == 0 else "SKIPPED: no namespaces can be made here"


class Workflow:
    """A cluster that runs one Workflow. `image` is {path in the image: folder here}, `volume` the folder of the claim that pods share."""

    def __init__(self, case, document, image, volume):
        self.case, self.image, self.volume, self.folder = case, image, volume, case.folder / "containers"
        self.templates = {template["name"]: template for template in document["spec"]["templates"]}
        self.volumes = {volume["name"] for volume in document["spec"]["volumes"]}
        self.hosts, self.ran, self.cache, self.applied, self.number = [], [], {}, {}, 0
        volume.mkdir(exist_ok=True)
        os.chown(volume, USER, USER)

    def run(self):
        """Runs the DAG; returns the names of the templates that ran."""
        self.ran = []
        self._dag(self.templates["main"]["dag"], {})
        return self.ran

    def _dag(self, dag, given):
        tasks, values = {task["name"]: task for task in dag["tasks"]}, dict(given)
        for name in graphlib.TopologicalSorter({name: task.get("dependencies", ()) for name, task in tasks.items()}).static_order():
            arguments = {f"inputs.parameters.{one['name']}": filled(one["value"], values) for one in tasks[name].get("arguments", {}).get("parameters", ())}
            for output, value in self._template(self.templates[tasks[name]["template"]], arguments).items():
                values[f"tasks.{name}.outputs.parameters.{output}"] = value
        return values

    def _template(self, template, given):
        declared = {f"inputs.parameters.{one['name']}" for one in template.get("inputs", {}).get("parameters", ())}
        self.case.assertEqual(set(given), declared, template["name"])
        key = filled(template["memoize"]["key"], given) if "memoize" in template else None
        if key in self.cache:
            return self.cache[key]
        outputs = {one["name"]: one["valueFrom"] for one in template.get("outputs", {}).get("parameters", ())}
        if "dag" in template:
            values = self._dag(template["dag"], given)
            found = {name: filled(value["parameter"], values) for name, value in outputs.items()}
        else:
            self.ran.append(template["name"])
            self.number += 1
            folder = self.folder / f"{self.number}-{template['name']}"
            if "resource" in template:
                self._resource(yaml.safe_load(filled(template["resource"]["manifest"], given)))
            else:
                self._wait([self._start(template["container"], given, folder)])
            found = {name: (folder / value["path"].lstrip("/")).read_text().strip() for name, value in outputs.items()}
        if key:
            self.cache[key] = found
        return found

    def _resource(self, document):
        """Applies an object as the cluster does."""
        kind, spec = document["kind"], document["spec"]
        if kind == "Service":
            self.hosts.append(document["metadata"]["name"])
            return
        pod = spec["template"]["spec"]
        container, = pod["containers"]
        self.case.assertLessEqual({mount["name"] for mount in container["volumeMounts"]}, {volume["name"] for volume in pod["volumes"]})
        if kind == "Job":
            name = f"{document['metadata']['generateName']}{self.number}"
            self._wait([self._start(container, {}, self.folder / name / str(index), {"JOB_COMPLETION_INDEX": str(index)}, {"job-name": name})
                        for index in range(spec["completions"])])
            return
        self.case.assertEqual(kind, "Deployment")
        self.case.assertLessEqual(spec["selector"]["matchLabels"].items(), spec["template"]["metadata"]["labels"].items())
        if self.applied.get(document["metadata"]["name"]) == document:
            return
        self.applied[document["metadata"]["name"]] = document
        process, probe = self._start(container, {}, self.folder / f"service-{self.number}"), container["readinessProbe"]["httpGet"]
        self.case.addCleanup(end, process)
        until = time.monotonic() + PATIENCE
        while not answers(f"http://127.0.0.1:{probe['port']}{probe['path']}"):
            self.case.assertIsNone(process.poll(), (self.folder / f"service-{self.number}" / "log").read_text() if process.poll() is not None else "")
            self.case.assertLess(time.monotonic(), until)
            time.sleep(0.1)

    def _start(self, container, given, folder, more=(), labels=()):
        (folder / "tmp").mkdir(parents=True)
        (folder / "mount").mkdir()
        os.chown(folder / "tmp", USER, USER)
        variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp"}
        for name, value in re.findall(r"(\w+)=(\S+)", re.search(r"^ENV (.*)$", (ROOT / "packaging" / "Dockerfile").read_text(), re.M).group(1)):
            variables[name] = value.replace("$PATH", variables["PATH"])
        variables.update(more)
        for one in container.get("env", ()):
            variables[one["name"]] = one["value"] if "value" in one else labels[re.search(r"'(.*)'", one["valueFrom"]["fieldRef"]["fieldPath"]).group(1)]
        mounts = [(path, inside) for inside, path in self.image.items()]
        mounts += [(self.volume, mount["mountPath"]) for mount in container["volumeMounts"] if mount["name"] in self.volumes]
        words = [filled(word, given) for word in (*container["command"], *container["args"])]
        line = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", BEGIN, "container", folder / "mount", *(word for mount in mounts for word in mount),
                folder / "tmp", "/tmp", "--", ROOT, BUILD, "--", f"127.0.0.1 {' '.join(self.hosts)}" if self.hosts else "", *(f"{name}={value}" for name, value in variables.items()), *words]
        with open(folder / "log", "wb") as log:
            return subprocess.Popen(list(map(str, line)), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, cwd="/")

    def _wait(self, processes):
        for process in processes:
            self.case.addCleanup(end, process)
        statuses = [process.wait(PATIENCE) for process in processes]
        said = "".join(log.read_text(errors="replace")[-2000:] for log in sorted(self.folder.glob("**/log"), key=os.path.getmtime)[-len(processes):]) if any(statuses) else ""
        self.case.assertEqual(statuses, [0] * len(statuses), f"{self.ran[-1]}: {said}")


def end(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def answers(address):
    try:
        with urllib.request.urlopen(address, timeout=2) as answer:
            return answer.status == 200
    except (OSError, ValueError):
        return False


def filled(text, values):
    """Returns the text with Argo's placeholders replaced; an unknown one is an error."""
    return re.sub(r"\{\{([\w.-]+)\}\}", lambda match: values[match.group(1)], text)
