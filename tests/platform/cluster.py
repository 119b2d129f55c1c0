"""The Kubernetes cluster of three nodes (tools/kube-local.sh) for the tests, started once."""
import atexit
import functools
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time
import unittest

from bench import BUILD, HERE, absent

ROOT = HERE.parent.parent
LOCAL = ROOT / "tools/kube-local.sh"
PATIENCE = 180 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))
CACHE = pathlib.Path(os.environ.get("MUSTER_KUBE_CACHE", pathlib.Path.home() / ".cache/muster/kube"))
IMAGE = "muster.local/muster:1"
PROGRAMS = ["src/programs/muster-store", "src/programs/muster-info", "examples/logistic_regression", "examples/resnet", "tests/elastic/test_elastic_worker"]
RUNS = os.environ.get("MUSTER_TEST_KUBE", "")   # the folder of an active cluster; or "start"
FOLDER = pathlib.Path(RUNS if "/" in RUNS else f"{tempfile.gettempdir()}/muster-kube-{os.getpid()}")


def missing():
    if not RUNS:
        return "SKIPPED: MUSTER_TEST_KUBE is not set (start: a Kubernetes is started, and built the first time, for ten minutes on two quiet cores)"
    if os.getuid() != 0:
        return "SKIPPED: Kubernetes' nodes are started by root"
    return absent(*PROGRAMS)


@functools.lru_cache(maxsize=None)
def start():
    """Starts the cluster; used as setUpModule in files of tests."""
    if why := missing():
        print(why, flush=True)
        raise unittest.SkipTest(why)
    if "/" not in RUNS:
        atexit.register(subprocess.run, [LOCAL, "down", FOLDER], check=True, timeout=PATIENCE)
        subprocess.run([LOCAL, "up", FOLDER], check=True, timeout=20 * PATIENCE)
    subprocess.run([LOCAL, "image", FOLDER, IMAGE, *PROGRAMS], check=True, timeout=PATIENCE)
    for line in (FOLDER / "environment").read_text().splitlines():
        os.environ["KUBECONFIG"], os.environ["PATH"] = re.match(r"export KUBECONFIG=(\S+) PATH=(\S+?):", line).groups()[0], f"{CACHE}/bin:{os.environ['PATH']}"
    kubectl("apply", "-f", "-", given="""
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: muster-results}
spec: {accessModes: [ReadWriteMany], storageClassName: shared, resources: {requests: {storage: 10Gi}}}
""")
    if not items("secrets", "--field-selector=metadata.name=muster-token"):
        kubectl("create", "secret", "generic", "muster-token", "--from-literal=MUSTER_TOKEN=of the test")


def kubectl(*words, given=None, status=0, patience=PATIENCE):
    done = subprocess.run(["kubectl", *map(str, words)], input=given, capture_output=True, text=True, timeout=patience)
    if done.returncode != status:
        raise AssertionError(f"kubectl {words} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def items(kind, *words):
    return json.loads(kubectl("get", kind, "-o", "json", *words))["items"]


def inside(node):
    """Returns a process in the namespaces of a node ("node1") that lives as long as the node."""
    first = (FOLDER / f"{node}.pid").read_text().strip()
    return next(iter(pathlib.Path(f"/proc/{first}/task").glob("*/children"))).read_text().split()[0]


def is_ready(pod):
    """Returns true if the pod is in the group and replies."""
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in pod["status"].get("conditions", ()))


def left():
    """Returns every object that muster-bench has made."""
    return kubectl("get", "pods,services,statefulsets,jobs,pvc,pdb", "-l", "muster-bench/run", "-o", "name").split()


def await_until(condition, why):
    until = time.monotonic() + PATIENCE
    while not (found := condition()):
        if time.monotonic() > until:
            raise AssertionError(f"{why() if callable(why) else why}\n{kubectl('get', 'pods,jobs', '-o', 'wide')}{kubectl('get', 'events')[-2000:]}")
        time.sleep(0.3)
    return found


def processes(*parts):
    """Returns the processes on this machine that have these words in their command line and these variables:
    NAME=VALUE."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words, variables = (pathlib.Path("/proc", name, file).read_bytes().split(b"\0") for file in ("cmdline", "environ"))
        except OSError:
            continue
        if all(part.encode() in words or part.encode() in variables for part in parts):
            found.append(int(name))
    return found
