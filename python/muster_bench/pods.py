"""A run as Kubernetes' own objects: a store, and a variable number of ranks (a Job) or a fixed number (Pods). No
operator is needed."""
import re

from .errors import Refusal
from .text import slug, value_text

PORT = 29500
CLAIM = "muster-results"          # the volume that all pods share
RUN = "muster-bench/run"          # labels: for the objects of a run,
FOLDER = "muster-bench/folder"    # for the objects of a folder of results,
PART = "muster-bench/part"        # and of the store or a rank
LOST = 15                         # seconds until a pod on an unreachable node is replaced
DEATHS = 100                      # deaths of ranks after which an elastic job fails


def plain_name(text):
    """Returns the text with only letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", slug(text).lower()).strip("-")


def name_of(run):
    """Returns a valid name for Kubernetes: letters, digits and dashes, at most 50, so that Kubernetes can append to
    it."""
    text = plain_name(run.id)
    short = text if len(text) <= 50 else f"{text[:41].rstrip('-')}-{run.key[:8]}"
    return short if short[0].isalpha() else f"m-{short}"[:50].rstrip("-")


def limits(resources, ranks=1):
    """Returns the requests and limits of a container: fractions of processors, memory, whole GPUs."""
    amounts = {"cpu": value_text(resources.cpus_per_rank * ranks)}
    if resources.memory >> 20:
        amounts["memory"] = f"{(resources.memory >> 20) * ranks}Mi"
    if resources.gpus_per_rank:
        amounts["nvidia.com/gpu"] = value_text(resources.gpus_per_rank * ranks)
    return {"requests": dict(amounts), "limits": amounts}


def servers_of(run):
    """Returns how many ranks, the last ones, serve parameters."""
    text = run.text(run.template.launcher.servers, "/")
    if not text.isdigit() or (int(text) and int(text) >= run.ranks):
        raise Refusal(f"template '{run.template.name}': '{text}' of {run.ranks} ranks cannot be servers (one at least works); change servers of its launcher")
    return int(text)


def variables(given):
    return [{"name": name, "value": value} for name, value in given.items()]


class Pods:
    """The common part of the pods of a run. `words` run in `output`, a folder of the volume `claim` that is mounted at
    `mount`. Without a claim each pod has its own temporary volume."""

    def __init__(self, run, image, words, environment, output, mount, claim=CLAIM, secret="", pull_secret="", labels=None, data="", data_mount=""):
        self.run, self.image, self.mount, self.claim = run, image, str(mount), claim
        self.words, self.environment, self.output = words, environment, str(output)
        self.secret, self.pull_secret, self.data, self.data_mount, self.servers = secret, pull_secret, data, data_mount, servers_of(run)
        self.name = name_of(run)
        self.labels = {RUN: self.name, **(labels or {})}

    def elastic(self):
        """Returns the ranks as pods of a Job. The Job ends when the training does and replaces lost pods. The number of
        ranks may be changed during the training: kubectl patch job NAME -p '{"spec":{"parallelism":N}}'. With
        servers each rank has its own Job, whose number decides whether the rank serves. Further workers are pods of
        the first Job, after the training has begun."""
        numbers = range(self.run.ranks if self.servers else 1)
        jobs = [self._object("batch/v1", "Job", self._name(number), {
            "parallelism": 1 if self.servers else self.run.ranks, "backoffLimit": DEATHS, "activeDeadlineSeconds": int(self.run.template.timeout),
            "template": {"metadata": {"labels": self._of("rank")}, "spec": self._rank_pod(
                {"MUSTER_ELASTIC": "on", "WORLD_SIZE": str(self.run.ranks), "RANK": str(number)}, elastic=True)}}) for number in numbers]
        # at least one rank has the state
        return [*self._store(), *jobs, self._object("policy/v1", "PodDisruptionBudget", self.name, {
            "minAvailable": 1, "selector": {"matchLabels": self._of("rank")}})]

    def fixed(self):
        """Returns ranks that connect once: a Pod each, with its number. Servers differ by their role."""
        workers = self.run.ranks - self.servers
        given = {"MUSTER_REMOTE_SERVERS": str(self.servers)} if self.servers else {}
        pods = [self._object("v1", "Pod", f"{self.name}-0" if number == 0 else self._name(number), self._rank_pod(
            {"WORLD_SIZE": str(workers), "RANK": str(number), **given} if number < workers else {"MUSTER_ROLE": "server"}), labels=self._of("rank"))
                for number in range(self.run.ranks)]
        return [*(self._store() if self.run.ranks > 1 else []), *pods]

    def _name(self, number):
        """Returns the name of a rank's object."""
        workers = self.run.ranks - self.servers
        return f"{self.name}-server-{number - workers}" if number >= workers else f"{self.name}-{number}" if number else self.name

    def _of(self, part):
        return {**self.labels, PART: part}

    def _object(self, version, kind, name, spec, labels=None):
        return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": labels or self.labels}, "spec": spec}

    def _pod(self, container, **more):
        """Returns a pod with the secrets that it needs: a secret whose keys become variables, such as MUSTER_TOKEN, and
        a secret for a private image."""
        if self.secret:
            container["envFrom"] = [{"secretRef": {"name": self.secret}}]
        return {"automountServiceAccountToken": False, "containers": [container], **({"imagePullSecrets": [{"name": self.pull_secret}]} if self.pull_secret else {}), **more}

    def _store(self):
        """Returns a muster-store whose table outlives its pod, at a fixed address."""
        name, labels = f"{self.name}-store", self._of("store")
        container = {"name": "store", "image": self.image, "command": ["muster-store"], "args": ["--listen", f":{PORT}" if self.secret else f"0.0.0.0:{PORT}", "--data", "/data"],
                     "ports": [{"name": "store", "containerPort": PORT}],
                     "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 2},
                     "livenessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 10},
                     "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}},
                     "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
        return [self._object("v1", "Service", name, {"selector": labels, "ports": [{"name": "store", "port": PORT}]}),
                self._object("apps/v1", "StatefulSet", name, {
                    "serviceName": name, "replicas": 1, "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": self._pod(
                        container, terminationGracePeriodSeconds=5, volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": name}}])}}),
                # Not by a template: a claim from a template has no owner, and may be made again during the removal.
                self._object("v1", "PersistentVolumeClaim", name, {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "512Mi"}}})]

    def _rank_pod(self, more, elastic=False):
        # Every cluster sets the address of an existing Service as a variable in pods, so no pod needs DNS.
        place = f"$({self.name.upper().replace('-', '_')}_STORE_SERVICE_HOST):{PORT}"
        given = {**self.environment, "LOCAL_RANK": "0", "MUSTER_JOB": self.name, **({"MUSTER_SERVERS": str(self.servers)} if self.servers else {}),
                 **({"MUSTER_RENDEZVOUS": f"tcp://{place}"} if elastic or self.run.ranks > 1 else {}), **more}
        container = {"name": "rank", "image": self.image, "command": ["sh", "-ec", 'mkdir -p "$0" && cd "$0" && exec "$@"', self.output], "args": self.words,
                     "env": variables(given), "terminationMessagePolicy": "FallbackToLogsOnError", "resources": limits(self.run.template.resources),
                     "volumeMounts": [{"name": "results", "mountPath": self.mount}]}
        volumes = [{"name": "results", **({"persistentVolumeClaim": {"claimName": self.claim}} if self.claim else {"emptyDir": {}})}]
        if self.data:
            container["volumeMounts"].append({"name": "data", "mountPath": self.data_mount, "readOnly": True})
            volumes.append({"name": "data", "persistentVolumeClaim": {"claimName": self.data, "readOnly": True}})
        if elastic:
            look = ["muster-info", "top", "--here"]
            container["readinessProbe"] = {"exec": {"command": look}, "periodSeconds": 2, "timeoutSeconds": 5}
            container["livenessProbe"] = {"exec": {"command": ["sh", "-c", f'{" ".join(look)} >/dev/null 2>&1; [ $? != 3 ]']}, "periodSeconds": 20, "timeoutSeconds": 10,
                                          "failureThreshold": 6}
        lost = [{"key": f"node.kubernetes.io/{condition}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST} for condition in ("unreachable", "not-ready")]
        spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": self._of("rank")}}
        return self._pod(container, restartPolicy="Never", terminationGracePeriodSeconds=30, tolerations=lost, topologySpreadConstraints=[spread], volumes=volumes)
