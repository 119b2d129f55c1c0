"""Runs objects on a Kubernetes cluster and ends with the status of their ranks. The launcher of that name starts it once for each run:
    kube.py check NAMESPACE            fails if no cluster replies
    kube.py run NAMESPACE OBJECTS      applies the objects in that file (pods.py), prints the output of their ranks, removes them
    kube.py clear NAMESPACE SELECTOR   removes leftover objects with these labels
Reasons are Kubernetes' own. Needs the official client (python3-kubernetes)."""
import contextlib
import io
import json
import os
import signal
import sys
import threading
import time

import urllib3
from kubernetes import client, config

PART = "muster-bench/part"
KINDS = {"Job": ("/apis/batch/v1", "jobs"), "StatefulSet": ("/apis/apps/v1", "statefulsets"), "Pod": ("/api/v1", "pods"),
         "Service": ("/api/v1", "services"), "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims"),
         "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets")}
BEFORE_1_21 = {"/apis/policy/v1": "/apis/policy/v1beta1"}
LOOK = 0.3            # seconds between two checks of the pods
PATIENCE = 10.0       # for one reply; for ranks that should end after another rank has ended
HOPELESS = ("ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError", "RunContainerError")
REMEDIES = (("exceeded quota", "ask for less, or raise the ResourceQuota"), ("already exists", "another run has this name: wait, or kubectl delete it"),
            ("is forbidden", "apply kubernetes-role.yaml of muster-bench, and bind it to this user"), ("namespaces ", "kubectl create namespace"),
            ("Unauthorized", "log in again"), ("mage", "name an image that the nodes can pull (image, pull-secret)"),
            ("secret", "kubectl create secret generic NAME"), ("persistentvolumeclaim", "create the claim that the launcher names as its volume"),
            ("No space left on device", "make room on the volume, or claim a larger one"),
            ("nodes are available", "ask for less, or wait for room"))


class Failed(Exception):
    """An error with a text on a single line."""


class Busy(Exception):
    """The API server replies that it is overloaded."""


def say(text):
    os.write(1, f"kubernetes: {text}\n".encode())


def one_line(text):
    """Returns Kubernetes' reason with a suggestion, in one line."""
    text = " ".join(str(text).split())
    found = next((remedy for part, remedy in REMEDIES if part in text), "")
    return text + (f"; {found}" if found else "")


def reason_of(error):
    if isinstance(error, client.ApiException):
        try:
            return json.loads(error.body)["message"]
        except (TypeError, ValueError, KeyError):
            return f"{error.status} {error.reason}"
    return f"the API server does not answer ({str(getattr(error, 'reason', error)).rpartition(': ')[2]})"


NO_ANSWER = (urllib3.exceptions.HTTPError, OSError, Busy)


class Cluster:
    def __init__(self, namespace):
        try:
            with contextlib.redirect_stdout(io.StringIO()):   # the client prints to stdout
                config.load_config()
        except config.ConfigException as error:
            raise Failed(f"no cluster is known ({' '.join(str(error).split())}); set KUBECONFIG to a file that kubectl works with") from None
        configuration = client.Configuration.get_default_copy()
        configuration.retries = False
        self.api, self.namespace, self.kinds = client.ApiClient(configuration), namespace, dict(KINDS)

    def call(self, method, path, query=(), body=None, stream=False):
        try:
            return self._call(method, path, query, body, stream)
        except client.ApiException as error:
            if error.status != 429 and error.status < 500:
                raise
            raise Busy(f"{error.status} {error.reason}") from None

    def _call(self, method, path, query, body, stream):
        return self.api.call_api(path, method, query_params=list(query), body=body, header_params={"Accept": "application/json", "Content-Type": "application/json"},
                                 response_type=None if stream else "object", auth_settings=["BearerToken"], _return_http_data_only=True,
                                 _preload_content=not stream, _request_timeout=(PATIENCE, None if stream else PATIENCE))

    def of(self, kind, method, name="", **more):
        """Sends a request for an object with that kind. If the server has the kind only in an older version, the
        request uses that version."""
        group, plural = self.kinds[kind]
        if more.get("body", {}).get("kind") == kind:
            more["body"] = {**more["body"], "apiVersion": group.removeprefix("/apis/").removeprefix("/api/")}
        try:
            return self.call(method, f"{group}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else ""), **more)
        except client.ApiException as error:
            if group not in BEFORE_1_21 or "the server could not find the requested resource" not in reason_of(error):
                raise
            self.kinds[kind] = BEFORE_1_21[group], plural
            return self.of(kind, method, name, **more)

    def create(self, document):
        self.of(document["kind"], "POST", body=document)

    def listed(self, kind, selector):
        return self.of(kind, "GET", query=[("labelSelector", selector)])["items"]

    def remove(self, selector):
        """Removes the objects with these labels. Returns true if there were any."""
        found = False
        for kind in KINDS:
            for found_object in self.listed(kind, selector):
                found = True
                if "deletionTimestamp" not in found_object["metadata"]:
                    self.delete(kind, found_object["metadata"]["name"])
        return found

    def delete(self, kind, name):
        try:
            self.of(kind, "DELETE", name, body={"propagationPolicy": "Background"})
        except client.ApiException as error:
            if error.status != 404:
                raise

    def clear(self, selector):
        """Removes the objects with these labels and waits until none is left."""
        until = time.monotonic() + 60
        while self.remove(selector):
            if time.monotonic() > until:
                raise Failed(f"objects of an earlier start are not removed ({selector}); look with kubectl get all,pvc -l {selector}")
            time.sleep(LOOK)


class Run:
    """The objects of a run, from their creation to their end."""

    def __init__(self, cluster, documents):
        self.cluster, self.documents = cluster, documents
        self.selector = ",".join(f"{name}={value}" for name, value in documents[0]["metadata"]["labels"].items() if name != PART)
        self.jobs = sum(document["kind"] == "Job" for document in documents)   # elastic: the run ends when its jobs do
        self.ranks = sum(document["kind"] == "Pod" for document in documents)
        self.followed, self.said, self.pending, self.ended = {}, set(), "", {}

    def once(self, text):
        if text not in self.said:
            self.said.add(text)
            say(text)

    def whole(self):
        """Returns the exit status."""
        created = []
        try:
            for document in self.documents:
                self.cluster.create(document)
                created.append((document["kind"], document["metadata"]["name"]))
            return self.watch()
        except BaseException:
            if self.pending:
                say(self.pending)
            raise
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self.tidy(created)

    def tidy(self, created):
        """Removes the created objects and the objects that those created. If the server does not reply, the next start
        removes them."""
        try:
            for kind, name in created:
                self.cluster.delete(kind, name)
            if created:
                self.cluster.remove(self.selector)
        except (client.ApiException, *NO_ANSWER) as error:
            say(f"objects of {self.selector} may be left ({reason_of(error)}); the next start removes them")

    def watch(self):
        first_end, first_bad = None, 0
        while True:
            try:
                pods = self.cluster.listed("Pod", f"{self.selector},{PART}=rank")
                jobs = self.cluster.listed("Job", self.selector) if self.jobs else []
                self.look_at_events(pods)
            except NO_ANSWER as error:
                self.once(f"{reason_of(error)}; the run goes on, waiting")
                time.sleep(LOOK)
                continue
            self.said.discard("")
            for pod in pods:
                self.look_at(pod)
            bad = next((code for code in self.ended.values() if code), 0)
            if len(jobs) < self.jobs:
                raise Failed("the Job is gone (it was deleted)")
            if self.jobs:
                over = [self.over(job) for job in jobs]
                if None not in over or any(over):
                    return self.finish(next(filter(None, over), 0))
                if 0 in self.ended.values():
                    first_end = first_end or time.monotonic()
                elif 2 in self.ended.values():    # status 2: the arguments are wrong, so another start would fail too
                    return self.finish(2)
            else:
                gone = set(self.ended) | {pod["metadata"]["name"] for pod in pods}
                if len(self.ended) == self.ranks:
                    return self.finish(bad)
                if len(gone) < self.ranks:
                    raise Failed("a pod is gone (it was deleted, or its node)")
                if bad:
                    first_end, first_bad = first_end or time.monotonic(), first_bad or bad
            if first_end and time.monotonic() - first_end > PATIENCE:
                return self.finish(first_bad)
            time.sleep(LOOK)

    def over(self, job):
        """Returns the status of a Job that has ended, or None."""
        for condition in job.get("status", {}).get("conditions", ()):
            if condition["status"] == "True" and condition["type"] == "Complete":
                return 0
            if condition["status"] == "True" and condition["type"] == "Failed":
                say(f"{condition['reason']}: {condition['message']}")
                return next((code for code in self.ended.values() if code), 1)
        return None

    def finish(self, status):
        for thread in self.followed.values():
            thread.join(PATIENCE / 2)
        self.pending = ""
        return status

    def look_at(self, pod):
        name, status = pod["metadata"]["name"], pod.get("status", {})
        for state in (container["state"] for container in status.get("containerStatuses", ())):
            if "waiting" in state and state["waiting"].get("message"):
                reason, message = state["waiting"]["reason"], state["waiting"]["message"]
                self.pending = one_line(f"{name}: {reason}: {message}")
                self.once(self.pending)
                if reason in HOPELESS:
                    raise Failed(self.pending)
            if ("running" in state or "terminated" in state) and name not in self.followed:
                self.pending = ""
                say(f"{name} runs on {pod['spec'].get('nodeName')}")
                self.followed[name] = threading.Thread(target=self.follow, args=(name,), daemon=True)
                self.followed[name].start()
            if "terminated" in state and name not in self.ended:
                code = self.ended[name] = state["terminated"]["exitCode"]
                # The message is the end of the pod's output. Other lines may follow an error, because stderr has its
                # own pipe.
                if code:
                    printed = state["terminated"].get("message", "").strip().split("\n")
                    last = next((line for line in reversed(printed) if ": error: " in line), printed[-1])
                    say(one_line(f"{name} ended with {code} ({state['terminated'].get('reason', 'Error')}{': ' if last else ''}{last[:500]})"))
        if status.get("phase") == "Failed" and name not in self.ended:
            self.ended[name] = 1
            say(f"{name}: {status.get('reason', 'Failed')}: {status.get('message', '')}")
        for condition in status.get("conditions", ()):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                self.pending = one_line(f"{name}: {condition.get('reason')}: {condition.get('message')}")
                self.once(self.pending)

    def look_at_events(self, pods):
        """Reports events that keep pods from being made or started."""
        if len(self.followed) >= len(pods) > 0:
            return
        for event in self.cluster.call("GET", f"/api/v1/namespaces/{self.cluster.namespace}/events", [("fieldSelector", "type=Warning")])["items"]:
            about = event["involvedObject"]["name"]
            mine = any(about.startswith(document["metadata"]["name"]) for document in self.documents if document["kind"] != "Service")
            if mine and event["reason"] in ("FailedCreate", "FailedMount", "FailedAttachVolume", "ProvisioningFailed"):
                self.pending = one_line(f"{about}: {event['reason']}: {event['message']}")
                self.once(self.pending)

    def follow(self, name):
        """Prints the output of a pod, and continues at the same position after a broken connection."""
        done = 0
        while True:
            try:
                answer = self.cluster.of("Pod", "GET", f"{name}/log", query=[("follow", "true")], stream=True)
                skip, rest = done, b""
                for piece in answer.stream(1 << 16):
                    fresh, skip = piece[skip:], max(0, skip - len(piece))
                    *lines, rest = (rest + fresh).split(b"\n")
                    if lines:
                        text = b"".join(line + b"\n" for line in lines)
                        done += len(text)
                        os.write(1, text)
                if rest:
                    os.write(1, rest + b"\n")
                return
            except client.ApiException:
                return
            except NO_ANSWER:
                time.sleep(LOOK)


def main(words):
    command, namespace = words[:2]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        cluster = Cluster(namespace)
        if command == "check":
            cluster.call("GET", "/version")
            return 0
        if command == "clear":
            cluster.clear(words[2])
            return 0
        with open(words[2], encoding="utf-8") as file:
            run = Run(cluster, json.load(file))
        cluster.clear(run.selector)
        return run.whole()
    except Failed as failed:
        say(failed)
    except (client.ApiException, *NO_ANSWER) as error:
        say(one_line(reason_of(error)))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
