"""Files that start the runs of a plan on a cluster: Slurm, mpirun over ssh, Kubernetes. The files are written, not
run."""
import dataclasses
import math
import pathlib
import shlex

import yaml

from . import launchers, pods
from .errors import Refusal
from .files import make_folder, write_whole
from .pods import CLAIM, name_of, plain_name  # noqa: F401  (muster-flow imports them too)

KINDS = ("slurm", "ssh", "kubernetes")
SSH_HOME = "/home/mpiuser"        # of the image: see packaging/Dockerfile
SECRET = "muster-token"           # its keys are environment variables of the pods of elastic jobs: MUSTER_TOKEN


@dataclasses.dataclass(frozen=True)
class Share:
    """The account whose share of a cluster the runs take, the queue in which they wait, and their priority."""
    account: str = ""    # the account of Slurm
    queue: str = ""      # a partition of Slurm, a LocalQueue of Kueue
    priority: str = ""   # a quality of service of Slurm, a WorkloadPriorityClass of Kueue


class _Plain(yaml.SafeDumper):
    """A dumper that writes texts of several lines as blocks, without anchors and aliases."""

    def ignore_aliases(self, data):
        return True


_Plain.add_representer(str, lambda dumper, text: dumper.represent_scalar(
    "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None))


def plain(entry):
    """Returns the text of one document."""
    return yaml.dump(entry, Dumper=_Plain, sort_keys=False, default_flow_style=False, width=1000)


def documents(entries, program="muster-bench", untried=True):
    """Returns the text of a file with these documents."""
    text = yaml.dump_all(entries, Dumper=_Plain, sort_keys=False, default_flow_style=False, width=1000)
    return f"# Written by {program}{'; never run on a cluster' if untried else ''}.\n{text}"


def write(out, plan, kinds, image, elastic=False, results="/results", share=Share()):
    """Writes the files for every run and returns their paths. `results` is a folder that all nodes or pods share."""
    out, written = pathlib.Path(out), []
    for run in plan:
        if run.template.launcher.kind in ("simgrid", "hosts"):
            raise Refusal(f"template '{run.template.name}' has simulated hosts or namespaces (a cluster has real hosts); leave it out")
        if elastic and run.template.launcher.kind in ("local", "torchrun", "tensorflow"):
            raise Refusal(f"template '{run.template.name}' starts its own ranks (its launcher is {run.template.launcher.kind}), which a cluster cannot let "
                          "come and go; leave --elastic out, or give it the launcher mpirun")
        if run.template.launcher.kind == "tensorflow" and set(kinds) != {"kubernetes"}:
            raise Refusal(f"template '{run.template.name}' is started by TensorFlow's operator (its launcher is tensorflow); choose --kind kubernetes")
        for kind in kinds:
            folder = make_folder(out / kind)
            for name, text in FORMS[kind](run, pathlib.Path(results), image, elastic, share):
                if not (folder / name).exists() or (folder / name).read_text() != text:
                    write_whole(folder / name, text)
                written.append(folder / name)
    return list(dict.fromkeys(written))


def _command(run, results):
    """Returns (words, variables, output folder) for a rank."""
    home = results / "experiments" / run.id
    return run.words(run.template.command, home), {name: run.text(text, home) for name, text in run.template.environment.items()}, home / "output" / "1"


def _whole(run, words, results):
    """Returns the words where one process of a machine starts all ranks."""
    options = _options(run, results, run.template.launcher.kind)
    return launchers.torchrun(run, options, words) if run.template.launcher.kind == "torchrun" else [*options, *words]


def _options(run, results, launcher):
    """Returns the options that the template has for `launcher`; empty for a template with another launcher."""
    return run.words(run.template.launcher.options, results / "experiments" / run.id) if run.template.launcher.kind == launcher else []


def _starts_its_own(run):
    """Returns true if one process starts all ranks, on one machine."""
    return run.template.launcher.kind in ("local", "torchrun")


def _cpus(run):
    """Returns the cores that a started process needs: for all ranks if a single process starts them, else for a single
    rank."""
    return run.template.resources.cpus_per_rank * (run.ranks if _starts_its_own(run) else 1)


def _minutes(run):
    return max(1, -(-int(run.template.timeout) // 60))


def _megabytes(run):
    return (run.template.resources.memory >> 20) * (run.ranks if _starts_its_own(run) else 1)


def _sh(run, words, variables, output, first=True):
    """Returns the lines for a shell, with the steps around the command. In pods only the first one has these steps. The
    script leaves its exit status, which shows that a result is complete."""
    def step(commands):
        return "".join(f"{shlex.join(run.words(command, output.parent.parent))}\n" for command in commands if first)
    template = run.template
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    at_end = f"echo $? > {shlex.quote(str(output / launchers.EXIT_STATUS))}\n{step(template.clean)}"
    ends = f"echo running > {launchers.EXIT_STATUS}\ntrap {shlex.quote(at_end)} EXIT\ntrap 'exit 143' TERM\n" if first else ""
    log = "log.txt" if first else "log.$HOSTNAME.txt"
    return (f"mkdir -p {shlex.quote(str(output))}\ncd {shlex.quote(str(output))}\n{exports}{ends}{step(template.needs)}{step(template.before)}"
            f"{shlex.join(words)} > {log} 2>&1\n{step(template.after)}")


# ---- Slurm ----

def slurm(run, results, _, elastic, share):
    """Returns a batch script. Slurm starts all tasks of a job or none. srun provides PMIx, through which ranks find
    each other. The ranks of an elastic job continue when a rank dies. A launcher that starts its own ranks is one
    task. A preempted job waits in the queue again."""
    words, variables, output = _command(run, results)
    cpus, tasks = math.ceil(_cpus(run)), 1 if _starts_its_own(run) else run.ranks
    lines = ["#!/bin/sh", f"#SBATCH --job-name={run.id[:60]}", f"#SBATCH --ntasks={tasks}", f"#SBATCH --cpus-per-task={cpus}",
             f"#SBATCH --time={_minutes(run)}"]
    if _megabytes(run):
        lines.append(f"#SBATCH --mem-per-cpu={_megabytes(run) // cpus}M")
    if run.template.resources.gpus_per_rank:
        lines.append(f"#SBATCH --gpus-per-task={run.template.resources.gpus_per_rank * (run.ranks if _starts_its_own(run) else 1)}")
    lines += [f"#SBATCH --{flag}={value}" for flag, value in (("account", share.account), ("partition", share.queue), ("qos", share.priority)) if value]
    if share.priority:
        lines.append("#SBATCH --requeue")
    alive = []
    if elastic:
        lines.append("#SBATCH --no-kill")
        alive = ["--no-kill", "--kill-on-bad-exit=0"]
        variables["MUSTER_ELASTIC"] = "on"
    launch = _whole(run, words, results) if _starts_its_own(run) else ["srun", *alive, "--mpi=pmix", *_options(run, results, "srun"), *words]
    yield f"{run.id}.sbatch", "\n".join(lines) + "\nset -e\n" + _sh(run, launch, variables, output)


# ---- ssh ----

def ssh(run, results, *_):
    """Returns a script for a machine that reaches all hosts of `hosts` by ssh without a password."""
    words, variables, output = _command(run, results)
    if _starts_its_own(run):
        yield f"{run.id}.sh", f"#!/bin/sh\n# usage: {run.id}.sh   (on the host of all ranks)\nset -e\n{_sh(run, _whole(run, words, results), variables, output)}"
        return
    passed = [word for name in variables for word in ("-x", name)]
    launch = ["mpirun", "-n", str(run.ranks), "--hostfile", "HOSTS", "--map-by", f"slot:PE={math.ceil(run.template.resources.cpus_per_rank)}",
              *passed, *_options(run, results, "mpirun"), *words]
    text = _sh(run, launch, variables, output).replace("HOSTS", '"$hosts"')
    yield f"{run.id}.sh", ("#!/bin/sh\n# usage: " + f"{run.id}.sh [HOSTFILE]   (a line a host: name slots=N)\nset -e\n"
                           f'hosts=$(realpath "${{1:-hosts}}")\n{text}')


# ---- Kubernetes ----

def kubernetes(run, results, image, elastic, share):
    if not image:
        raise Refusal("pods need an image (--image is left out); build one with packaging/Dockerfile and name it")
    if elastic and share.queue:
        raise Refusal("the pods of an elastic job are not admitted together (--queue needs a job with a fixed size); leave --queue or --elastic out")
    if elastic:
        words, variables, output = _command(run, results)
        yield f"{run.id}.yaml", documents(pods.Pods(run, image, words, variables, output, results, secret=SECRET).elastic(), untried=False)
    else:
        yield f"{run.id}.yaml", documents([queued(job_of(run, results, image), share)])


def job_of(run, results, image):
    """Returns the object of a run with a fixed number of ranks."""
    return {"local": _job, "torchrun": _pytorch_job, "tensorflow": _tf_job}.get(run.template.launcher.kind, _mpi_job)(run, results, image)


def queued(job, share):
    """Returns the job as Kueue admits it: all its pods or none, by priority."""
    if share.queue:
        classes = {"kueue.x-k8s.io/priority-class": share.priority} if share.priority else {}
        job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": share.queue, **classes}
        job["spec"].get("runPolicy", job["spec"])["suspend"] = True   # until Kueue admits it
    return job


def _container(run, image, words, results, ranks=1, name="rank"):
    return {"name": name, "image": image, "command": words[:1], "args": words[1:],
            "resources": pods.limits(run.template.resources, ranks), "volumeMounts": [{"name": "results", "mountPath": str(results)}]}


def volumes():
    return [{"name": "results", "persistentVolumeClaim": {"claimName": CLAIM}}]


def _mpi_job(run, results, image):
    words, variables, output = _command(run, results)
    passed = [word for name in variables for word in ("-x", name)]
    line = _sh(run, ["mpirun", "-n", str(run.ranks), *passed, *_options(run, results, "mpirun"), *words], variables, output)
    launcher = _container(run, image, ["sh", "-ec", line], results, name="launcher")
    worker = _container(run, image, ["/usr/sbin/sshd", "-De", "-f", f"{SSH_HOME}/.sshd_config"], results)
    for each in (launcher, worker):
        each["securityContext"] = {"runAsUser": 1000}
    return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": name_of(run)},
            "spec": {"slotsPerWorker": 1, "sshAuthMountPath": f"{SSH_HOME}/.ssh", "mpiImplementation": "OpenMPI",
                     "runPolicy": _policy(run),
                     "mpiReplicaSpecs": {
                         "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": {"spec": {
                             "containers": [launcher], "volumes": volumes()}}},
                         "Worker": {"replicas": run.ranks, "template": {"spec": {
                             "containers": [worker], "volumes": volumes()}}}}}}


def _policy(run):
    return {"cleanPodPolicy": "Running", "backoffLimit": run.template.retries.attempts - 1, "activeDeadlineSeconds": int(run.template.timeout)}


def _pytorch_job(run, results, image):
    """Returns one pod for each rank. The operator sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun
    does."""
    return _operated("PyTorchJob", "pytorchReplicaSpecs", "pytorch", run, results, image, {"Master": 1, "Worker": run.ranks - 1})


def _tf_job(run, results, image):
    """Returns one pod for each task. The operator sets TF_CONFIG: the first rank is the chief, the last ranks are the
    servers."""
    servers = pods.servers_of(run)
    return _operated("TFJob", "tfReplicaSpecs", "tensorflow", run, results, image, {"Chief": 1, "Worker": run.ranks - 1 - servers, "PS": servers})


def _operated(kind, specs, container, run, results, image, replicas):
    """Returns an object of Kubeflow's training operator with a number of pods for each role. The first role has one
    pod."""
    words, variables, output = _command(run, results)

    def role(count, first):
        pod_container = _container(run, image, ["sh", "-ec", _sh(run, words, variables, output, first)], results, name=container)
        return {"replicas": count, "restartPolicy": "Never", "template": {"spec": {"containers": [pod_container], "volumes": volumes()}}}
    return {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": {"name": name_of(run)}, "spec": {
        "runPolicy": _policy(run), specs: {name: role(count, name != "Worker" and name != "PS") for name, count in replicas.items() if count}}}


def _job(run, results, image):
    """Returns one pod, in which the command starts its ranks."""
    words, variables, output = _command(run, results)
    container = _container(run, image, ["sh", "-ec", _sh(run, _whole(run, words, results), variables, output)], results, run.ranks, name="ranks")
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name_of(run)},
            "spec": {"backoffLimit": run.template.retries.attempts - 1, "activeDeadlineSeconds": int(run.template.timeout),
                     "template": {"spec": {"restartPolicy": "Never", "containers": [container], "volumes": volumes()}}}}


FORMS = {"slurm": slurm, "ssh": ssh, "kubernetes": kubernetes}
