"""Converts a command to the command line that starts its ranks."""
import functools
import hashlib
import importlib.util
import json
import math
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys

from . import hosts, pods, simgrid
from .errors import Refusal
from .files import PRIVATE, write_whole
from .text import value_text

WORKER = pathlib.Path(__file__).with_name("worker.py")
KUBE = [sys.executable, "-I", str(pathlib.Path(__file__).with_name("kube.py"))]

TOPOLOGY = pathlib.Path("/sys/devices/system/cpu")
# a file beside the log, written by the script of a cluster's run: "running", or the exit status
EXIT_STATUS = "exit-status"


@functools.lru_cache(maxsize=None)
def is_open_mpi():
    try:
        text = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "Open MPI" in text or "OpenRTE" in text


def cores_here():
    return len(os.sched_getaffinity(0))


def slots_here():
    """Returns the number of ranks that Open MPI starts here by default: a rank for each physical core, which may have
    several processors."""
    try:
        return len({tuple((TOPOLOGY / f"cpu{cpu}" / "topology" / name).read_text() for name in ("physical_package_id", "core_id"))
                    for cpu in os.sched_getaffinity(0)})
    except OSError:
        return cores_here()


def launched(run, folder, attempt=1, watch=False):
    """Returns (words, variables) that start a run on this machine; with `watch` each rank runs under worker.py."""
    template = run.template
    if template.launcher.kind == "kubernetes":
        return [*KUBE, "run", template.launcher.namespace, str(objects_file(folder))], {}
    command = run.words(template.command, folder, attempt)
    if watch and template.launcher.kind != "simgrid":
        command = [sys.executable, "-I", "-S", str(WORKER), workers_folder(folder, attempt), str(template.limits.log), *command]
    options = run.words(template.launcher.options, folder, attempt)
    variables = {name: run.text(text, folder, attempt) for name, text in template.environment.items()}
    kind = template.launcher.kind
    if kind == "local":
        return [*options, *command], variables
    if kind == "mpirun":
        return _mpirun(run, options, command, variables)
    if kind == "simgrid":
        return [*simgrid.words(run.ranks, platform_file(folder)), *options, *command], variables
    if kind == "torchrun":
        return torchrun(run, options, command), variables
    if kind == "hosts":
        return [*_hosts(run, folder, attempt), *options, *command], variables
    return _srun(run, options, command), variables


def _hosts(run, folder, attempt):
    launcher = run.template.launcher
    texts = {name: run.text(getattr(launcher, name), folder, attempt) for name in ("bandwidth", "latency", "loss", "per_host")}
    words = [sys.executable, "-I", "-S", hosts.__file__, "--ranks", str(run.ranks)]
    if texts["bandwidth"]:
        words += ["--bandwidth", f"{simgrid.bits(texts['bandwidth']):.0f}"]
    for name, kind, low, high, unit in (("latency", float, 0, 10, "seconds of a link, up to 10"), ("loss", float, 0, 0.9, "a part of all packets, up to 0.9"),
                                        ("per_host", int, 1, 1000, "ranks, 1 or more")):
        try:
            value = kind(texts[name] or 0)
            if not low <= value <= high:
                raise ValueError
        except ValueError:
            raise Refusal(f"template '{run.template.name}': '{texts[name]}' is no {name.replace('_', '-')} ({unit}); change it") from None
        words += [f"--{name.replace('_', '-')}", value_text(value)]
    return [*words, "--"]


def workers_folder(folder, attempt):
    """Returns the folder in which worker.py stores the ranks' output and resources."""
    return str(pathlib.Path(folder) / "output" / str(attempt) / "workers")


def platform_file(folder):
    return pathlib.Path(folder) / "config" / "platform.xml"


def objects_file(folder):
    return pathlib.Path(folder) / "config" / "objects.json"


def labels(out):
    """Returns the labels for objects that belong to a folder of results."""
    return {pods.FOLDER: hashlib.sha256(f"{platform.node()} {out}".encode()).hexdigest()[:16]}


def _objects(run, folder, attempt):
    template, launcher, home = run.template, run.template.launcher, pathlib.Path(folder)
    if launcher.mount and not home.is_relative_to(launcher.mount):
        raise Refusal(f"template '{template.name}': the results in {home} are not on the volume at {launcher.mount} (pods could not write them); "
                      f"choose an --out below {launcher.mount}")
    environment = {name: run.text(text, folder, attempt) for name, text in template.environment.items()}
    objects = pods.Pods(run, run.text(launcher.image, folder, attempt), run.words(template.command, folder, attempt), environment, home / "output" / str(attempt),
                        launcher.mount or home, launcher.volume, launcher.secret, launcher.pull_secret, labels(home.parent.parent), launcher.data, launcher.data_mount)
    return objects.elastic() if launcher.elastic else objects.fixed()


def prepare(run, folder, attempt):
    """Writes the files that a launcher needs besides the command."""
    launcher = run.template.launcher
    if launcher.kind == "kubernetes":
        write_whole(objects_file(folder), json.dumps(_objects(run, folder, attempt), indent=1), mode=PRIVATE)
    if launcher.kind == "simgrid":
        network, bandwidth, latency = (run.text(text, folder, attempt) for text in
                                       (launcher.network, launcher.bandwidth, launcher.latency))
        write_whole(platform_file(folder), simgrid.platform(network, run.ranks, bandwidth, latency))


def _mpirun(run, options, command, variables):
    words = ["mpirun", "-n", str(run.ranks)]
    if is_open_mpi():
        if run.ranks > slots_here():
            words.append("--oversubscribe")
        for name in variables:
            words += ["-x", name]
        if os.geteuid() == 0:
            variables = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **variables}
    return [*words, *options, *command], variables


def torchrun(run, options, command):
    """Returns the command line of PyTorch's launcher, for all ranks on one machine."""
    return ["torchrun", "--standalone", f"--nproc-per-node={run.ranks}", "--no-python", *options, *command]


def _srun(run, options, command):
    cpus = math.ceil(run.template.resources.cpus_per_rank)
    words = ["srun", f"--ntasks={run.ranks}", f"--cpus-per-task={cpus}"]
    if run.template.resources.memory:
        words.append(f"--mem-per-cpu={run.template.resources.memory // cpus >> 20}M")
    if run.template.resources.gpus_per_rank:
        words.append(f"--gpus-per-task={run.template.resources.gpus_per_rank}")
    return [*words, *options, *command]


def shown(words, variables):
    """Returns the command as a line for a shell."""
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in variables.items()), shlex.join(words)])


def check_launcher(run):
    """Refuses a launcher that is not installed here."""
    if run.template.launcher.kind == "kubernetes":
        return _check_cluster(run.template.launcher.namespace)
    if run.template.launcher.kind == "tensorflow":
        raise Refusal(f"template '{run.template.name}' is started by TensorFlow's operator (its launcher is tensorflow); write its TFJob with muster-bench manifests")
    needed = {"mpirun": "mpirun", "srun": "srun", "torchrun": "torchrun", "simgrid": "smpirun"}.get(run.template.launcher.kind)
    if needed and shutil.which(needed) is None:
        raise Refusal(f"template '{run.template.name}' is started by {needed} (which is not here); install it, or only "
                      "write the files for a cluster with muster-bench manifests")
    return None


@functools.lru_cache(maxsize=None)
def _check_cluster(namespace):
    if importlib.util.find_spec("kubernetes") is None:
        raise Refusal(f"the launcher kubernetes needs its client ({sys.executable} cannot import kubernetes); apt-get install python3-kubernetes, or pip "
                      "install 'muster-bench[kubernetes]' in a venv")
    _kube("check", namespace)


def clear(out, plan, more=()):
    """Removes objects that an earlier start in this folder has left on a cluster; `more` are further labels that they
    must have."""
    for namespace in {run.template.launcher.namespace for run in plan if run.template.launcher.kind == "kubernetes"}:
        _kube("clear", namespace, ",".join(f"{name}={value}" for name, value in (*labels(out).items(), *more)))


def clear_run(out, run):
    """Removes objects that a run has left because it had no time to remove them."""
    clear(out, [run], [(pods.RUN, pods.name_of(run))])


def _kube(*words):
    done = subprocess.run([*KUBE, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise Refusal((done.stdout.splitlines() or done.stderr.splitlines() or ["it failed"])[-1].removeprefix("kubernetes: "))
