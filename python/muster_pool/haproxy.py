"""HAProxy: its configuration, its processes, and the commands and queries to it at run time."""
import asyncio
import contextlib
import csv
import os
import re
import signal
import socket

from muster_bench.errors import Refusal
from muster_bench.files import write_whole, writing

from .processes import FIRST_PASSED, Process, accept_no_more, listening

DEADLINE = 5.0          # seconds for a reply of HAProxy
STARTS = 30.0           # seconds for its start
ACCEPTED = 0.2          # longer than the third packet of a connection takes, and HAProxy's accept
WHOLE = "  option http-buffer-request"   # not for gRPC: a stream may wait for a reply before it continues

HEAD = """# Written by muster-pool at each start of HAProxy.
global
  nbthread 1
  stats socket {folder}/haproxy.sock mode 600 level admin
  hard-stop-after {longest}s
  tune.bufsize {buffer}
defaults
  mode http
  timeout connect 1s
  timeout client 75s
  timeout http-request 30s
  timeout check 300ms
  option abortonclose
  option idle-close-on-response
  option redispatch 1
  retries 10
  retry-on conn-failure empty-response
  option httpchk GET /v2/health/ready
  hash-type consistent
  http-error status 503 content-type application/json string '{{"error":"request: no replica takes it; send it again later"}}' hdr Retry-After 1
  http-error status 504 content-type application/json string '{{"error":"request: no replica answered in time"}}'
  default-server inter 200ms fastinter 50ms downinter 200ms fall 2 rise 1 observe layer4 error-limit 1 on-error mark-down
frontend metrics
  bind fd@{metrics}
  http-request use-service prometheus-exporter if {{ path /metrics }}
  http-request deny deny_status 404
"""


def configuration(folder, buffer, deployments):
    """Returns the configuration. Requests pass from `outside` through the limits of their caller, if the service has
    limits, and through `inside` to the replicas of the first service that matches. muster-pool's own socket
    (activator.py) is the server if there is no replica."""
    services, folder = [each.service for each in deployments], _word(folder)
    lines = [HEAD.format(folder=folder, buffer=buffer, metrics=FIRST_PASSED + 1, longest=max(each.timeout for each in services) + 5)]
    routes = []
    for each in services:
        routes += [f"acl is-{each.name} req.hdr(host),field(1,:),field(1,.) -i -m str {each.name}",
                   f"acl is-{each.name} path_reg ^/v[12]/models/{each.name}([/:]|$)"]
        routes += [f"acl is-{each.name} path_beg {each.path}"] if each.path else []
    names = [each.name for each in services]
    routes += [f"acl is-{name} always_true" for name in names if len(names) == 1]
    for name in names:
        routes += [f"http-request set-var(txn.service) str({name}) if is-{name} !{{ var(txn.service) -m found }}", f"acl of-{name} var(txn.service) -m str {name}"]
    unknown = _error(f"path: is of no service (known: {', '.join(names)})")
    routes.append(f"http-request return status 404 {unknown} if !{{ var(txn.service) -m found }}")
    to_replicas = [f"use_backend {name} if of-{name}" for name in names]
    lines += [f"frontend outside\n  bind fd@{FIRST_PASSED}", *_indented(routes)]
    for each in filter(lambda service: service.anonymous or service.keys or service.anonymous_rate, services):
        lines += _indented(_callers(folder, each))
    lines += [*_indented(to_replicas), f"frontend inside\n  bind fd@{FIRST_PASSED + 2}", *_indented(routes + to_replicas)]
    for deployment in deployments:
        lines += [*_classes(folder, deployment.service), *_tables(deployment.service), *_replicas(folder, deployment)]
    return "\n".join(lines) + "\n"


def _word(path):
    return re.sub(r"([ #\"'\\])", r"\\\1", str(path))


def _indented(lines):
    return ["  " + line for line in lines]


def _error(text):
    return f"content-type application/json string '{{\"error\":\"{text}\"}}'"


def _full(name, most, is_grpc=False):
    text = "as many as may wait do; send it again later"
    error = f"hdr content-type application/grpc hdr grpc-status 14 hdr grpc-message '{text}'" if is_grpc else _error(f"request: {text}")
    return f"  http-request return status 429 {error} hdr Retry-After 1 if {{ queue({name}) ge {most} }}"


def _callers(folder, service):
    """Returns the rules that map a caller's key to a class. A request with an unknown key is refused with status 401."""
    name, limited = service.name, f"{service.name}.anonymous" if service.anonymous else service.name
    if not service.anonymous and not service.keys:   # a rate alone
        return _rate(f"{name}.anonymous-rate", "src", f"of-{name}", service.anonymous_rate, 0, "this address")
    has_key, known = "{ req.hdr(authorization) -m found }", "{ var(txn.caller) -m found }"
    lines = [f"http-request set-var(txn.caller) str({limited}) if of-{name} !{has_key}"]
    if service.keys:
        lines += [f"http-request set-var(txn.caller) http_auth_bearer,map({folder}/{name}.keys) if of-{name} {has_key}",
                  f"http-request return status 401 {_error('authorization: this service has no such key')} if of-{name} !{known}"]
    if service.anonymous_rate:
        lines += _rate(f"{name}.anonymous-rate", "src", f"of-{name} !{has_key}" if service.keys else f"of-{name}", service.anonymous_rate, 0, "this address")
    if service.key_rate:
        lines += _rate(f"{name}.key-rate", "var(txn.caller)", f"of-{name} {has_key}", service.key_rate, 1, "this key")
    return lines + [f"use_backend %[var(txn.caller)] if of-{name} {known}"]


def _rate(table, caller, condition, limit, counter, who):
    """Returns the rules of a rate. A refused request is not counted, so a caller that asks too often is answered again after the time."""
    most, seconds = limit
    text = _error(f"request: {who} has sent its {most} requests of {seconds} s; send it again later")
    return [f"http-request return status 429 {text} hdr Retry-After {seconds} if {condition} {{ {caller},table_http_req_rate({table}) ge {most} }}",
            f"http-request track-sc{counter} {caller} table {table} if {condition}"]


def _tables(service):
    """Returns the tables of a service's rates: the requests of each address, and of each key."""
    for kind, limit, form in (("anonymous", service.anonymous_rate, "ipv6 size 1m"), ("key", service.key_rate, "string len 128 size 10k")):
        if limit:
            yield f"backend {service.name}.{kind}-rate\n  stick-table type {form} expire {2 * limit[1]}s store http_req_rate({limit[1]}s)"


def _classes(folder, service):
    """Returns the classes, each with a few connections to `inside` for its requests."""
    limits = {f"{service.name}.anonymous": service.anonymous} if service.anonymous else {}
    limits.update((f"{service.name}.key.{name}", service.key_holder) for name, _ in service.keys)
    lines = []
    for name, most in limits.items():
        lines += [f"backend {name}", _full(name, service.queue), f"  timeout queue {service.timeout}s\n  timeout server {service.timeout + 5}s",
                  "  retry-on conn-failure", f"  server inside unix@{folder}/inside.sock maxconn {most}"]
    return lines


def _replicas(folder, deployment):
    service = deployment.service
    lines = [f"backend {service.name}\n  balance {deployment.balance}\n  timeout queue {service.timeout}s\n  timeout server {service.timeout}s"]
    if service.at_once:
        lines.append(_full(service.name, service.queue, service.is_grpc))
    if service.is_grpc:
        lines += [f"  http-error status {status} hdr content-type application/grpc hdr grpc-status 14 hdr grpc-message '{why}'"
                  for status, why in ((503, "no replica takes it"), (504, "no replica answered in time"))]
        # Any reply of gRPC counts as healthy, also for an unknown method.
        lines.append("  http-check send meth POST uri /grpc.health.v1.Health/Check ver HTTP/2.0 hdr content-type application/grpc hdr te trailers")
    else:
        lines.append(WHOLE)
    for slot in range(1, max([service.slots, *deployment.replicas]) + 1):
        replica = deployment.replicas.get(slot)
        used = replica is not None and replica.state == "serving"
        lines.append(f"  server s{slot} 127.0.0.1:{replica.port if used else 9} check {'proto h2 ' if service.is_grpc else ''}maxconn {service.at_once} "
                     f"{f'weight {replica.weight}' if used else 'disabled'}")
    return lines + [f"  server waits unix@{_word(deployment.activator.path)} backup pool-max-conn 0"]


class Haproxy:
    """The active process of HAProxy, the sockets passed to it, and earlier processes that still serve their
    requests."""

    def __init__(self, folder, earlier, listen, metrics, wake):
        self.folder, self.wake, self.process = folder, wake, None
        self.before = earlier
        self.sockets = [listening("--listen", listen, bool(earlier)), listening("--metrics", metrics, bool(earlier)), self._inside()]

    def _inside(self):
        listener, path = socket.socket(socket.AF_UNIX), f"{self.folder}/inside.sock"
        with writing(path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + ".new")
            listener.bind(path + ".new")
            listener.listen(4096)
            os.rename(path + ".new", path)   # the socket of an earlier process stays open for it
        return listener

    async def start(self, text, save):
        """Replaces the current process by a new one. `save` is called when the new process must be recorded."""
        write_whole(f"{self.folder}/haproxy.cfg", text)
        log, loop = f"{self.folder}/haproxy.log", asyncio.get_running_loop()
        try:
            started = Process.start(["haproxy", "-db", "-f", f"{self.folder}/haproxy.cfg"], os.environ, log, [each.fileno() for each in self.sockets])
        except OSError as error:
            raise Refusal(f"HAProxy cannot be started ({error.strerror}); apt-get install haproxy") from error
        self.before += filter(None, [self.process])
        self.process = started
        started.on_end(loop, self.wake)
        save()
        end = loop.time() + STARTS
        while f"Pid: {started.pid}\n" not in await self.ask("show info"):
            if not (lives := started.is_alive()) or loop.time() > end:
                started.send(signal.SIGKILL)
                with open(log, encoding="utf-8", errors="replace") as file:
                    alert = next((line.strip() for line in reversed(list(file)) if "ALERT" in line), f"it did not answer in {STARTS:g} s" if lives else "it ended")
                raise Refusal(f"HAProxy does not start ({alert}); see {log}")
            await asyncio.sleep(0.02)
        if self.before:
            await asyncio.sleep(ACCEPTED)
            for each in self.before:
                each.send(signal.SIGUSR1)

    def processes(self):
        self.before = [each for each in self.before if each.is_alive()]
        return self.before + [each for each in [self.process] if each is not None and each.is_alive()]

    async def drain(self):
        """Accepts no more connections; requests on the open ones are served."""
        for each in self.sockets[:2]:
            accept_no_more(each)
        await asyncio.sleep(ACCEPTED)
        for each in self.sockets[:2]:
            each.close()
        for each in self.before:
            each.send(signal.SIGUSR1)
        # On SIGUSR1 this process would also close its own socket and `inside`, which held and waiting requests still
        # have to pass.
        await self.ask("shutdown frontend outside; shutdown frontend metrics")

    async def ask(self, commands):
        """Returns the reply of HAProxy; an empty text without a reply."""
        try:
            return await asyncio.wait_for(self._ask(commands), DEADLINE)
        except (OSError, asyncio.TimeoutError):
            return ""

    async def _ask(self, commands):
        reader, writer = await asyncio.open_unix_connection(f"{self.folder}/haproxy.sock", limit=1 << 24)
        try:
            writer.write(commands.encode() + b"\n")
            return (await reader.read()).decode()
        finally:
            writer.close()

    async def statistics(self):
        """Returns {(backend, server): its row} with the columns of `show stat`; empty if HAProxy does not reply."""
        rows = csv.DictReader((await self.ask("show stat")).removeprefix("# ").splitlines())
        return {(row["pxname"], row["svname"]): row for row in rows}
