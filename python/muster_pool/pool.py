"""The pool: its services share cores; it checks them five times a second, and at once when a process ends."""
import asyncio
import datetime
import math
import signal

from muster_bench.errors import FINISHED, Refusal
from muster_bench.files import PRIVATE, FolderLock, make_folder, read_json, write_json, write_whole

from . import haproxy
from .deployment import Deployment
from .described import read
from .division import ROUNDING, divide
from .processes import Process
from .training import Member

LOOK = 0.2              # seconds between two checks
QUIET = 1.0             # seconds without a request, before a pool that drains closes connections
LONGEST_PATH = 60       # length of the folder's path: addresses of Unix sockets are short
AGAIN = 1.0             # seconds until HAProxy is started again after a failed start


class Pool:
    def __init__(self, chosen):
        self.files, self.cores, self.buffer = chosen.files, chosen.cores, chosen.retry_up_to
        self.listen, self.metrics = chosen.listen, chosen.metrics
        self.described = read(self.files, self.cores)
        self.members = {each.name: Member(self, each) for each in self.described.trainings.values()}
        self.folder = make_folder(chosen.state).absolute()
        if len(str(self.folder)) > LONGEST_PATH:
            raise Refusal(f"--state cannot be '{self.folder}' (addresses of Unix sockets are short); give a path of "
                          f"at most {LONGEST_PATH} letters")
        self.lock = FolderLock(self.folder)
        self.deployments = {}
        self._woken, self._starts, self._tasks, self._drains, self._saved = asyncio.Event(), asyncio.Lock(), set(), False, None
        self._promised = None   # the service for which a replica of another service ends

    def say(self, text):
        print(f"{datetime.datetime.now().isoformat(timespec='milliseconds')} {text}", flush=True)

    def wake(self):
        self._woken.set()

    @staticmethod
    def now():
        return asyncio.get_running_loop().time()

    def spawn(self, work):
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run(self):
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._drain)
        loop.add_signal_handler(signal.SIGHUP, lambda: self.spawn(self._reload()))
        state = read_json(self.folder / "state.json") or {"haproxy": [], "services": {}}
        self.haproxy = haproxy.Haproxy(self.folder, _living(state["haproxy"]), self.listen, self.metrics, self.wake)
        for name, saved in state["services"].items():
            if name not in self.described.services:
                for process in _living(each[3] for each in saved["replicas"]):
                    process.send(signal.SIGTERM)
        adopted = 0
        for service in self.described.services.values():
            deployment = await self._add(service)
            saved = state["services"].get(service.name)
            if saved is not None:
                there = deployment.restore(saved, self.now())
                adopted += there
                if not there and not deployment.is_canary():
                    deployment.current, deployment.next = service.revision, None
            deployment.apply(service)
        await self.haproxy.start(self._configuration(), self._save)
        self.say(f"{', '.join(self.described.services)} on {self.listen}, metrics on {self.metrics}" + (f"; {adopted} replicas were there" if adopted else ""))
        while not self._drains:
            await self._look()
        await self._end()
        self.say("drained")
        return FINISHED

    async def _add(self, service):
        deployment = self.deployments[service.name] = Deployment(self, service)
        await deployment.activator.listen()
        return deployment

    def _configuration(self):
        there = [each for each in self.deployments.values() if not each.is_removed]
        for each in there:
            name = each.service.name
            write_whole(self.folder / f"{name}.keys", "".join(f"{key} {name}.key.{holder}\n" for holder, key in each.service.keys), mode=PRIVATE)
        return haproxy.configuration(self.folder, self.buffer, there)

    async def _look(self):
        try:
            await asyncio.wait_for(self._woken.wait(), LOOK)
        except asyncio.TimeoutError:
            pass
        self._woken.clear()
        if not self._drains and not self._starts.locked() and not self.haproxy.process.is_alive():
            self.say(f"HAProxy ended and is started again (see {self.folder}/haproxy.log)")
            await self._restart()
        rows, now, lacking = await self.haproxy.statistics(), self.now(), []
        for each in list(self.deployments.values()):
            await each.look(now, rows)
            each.judge(rows)
            lacking += [(each, revision) for revision in await each.reconcile(now)]
            if each.is_removed and not each.replicas:
                del self.deployments[each.service.name]
        await self._share(lacking, now)
        self._save()
        return rows

    async def _share(self, lacking, now):
        """Assigns free cores: first to the service for which a replica was stopped, then by priority, then to services
        without a replica, then to the service that has lacked cores longest. Trainings receive the rest."""
        if self._promised and (self._promised.replicas or not self._promised.activator.holding):
            self._promised = None
        for each in self.members.values():
            await each.look(now)
        replicas = [(other.service.account, each.revision.cores) for other in self.deployments.values() for each in other.replicas.values()]
        await self._resize(replicas, lacking, now)
        # A rank that was asked to leave counts as gone: a replica takes longer to become ready.
        held = replicas + [(each.account, each.size * each.cores) for each in self.members.values()]
        full = False
        for deployment, revision in sorted(lacking, key=lambda pair: (-self._priority(pair[0]), len(pair[0].replicas) > 0, pair[0].lacks_since)):
            account, cores = deployment.service.account, revision.cores - deployment.replaced(revision) - ROUNDING
            if now < deployment.paused_until or _cores_of(held, account) + cores > self.described.limit(account):
                continue
            if not full and _cores_of(held) + cores <= self.cores:
                deployment.start(revision, now)
                held.append((account, revision.cores))
                self._save()   # at once: a replica that the next pool does not know would run for ever
                continue
            full = True   # later services take no core that this service waits for
            if not deployment.replicas and deployment.activator.holding:
                return await self._make_room(deployment, now)

    def _priority(self, deployment):
        return math.inf if deployment is self._promised else deployment.service.priority

    async def _resize(self, replicas, lacking, now):
        """Changes the sizes of trainings. A training grows only after others have shrunk."""
        lacks = [(self._priority(each), each.service.account, revision.cores) for each, revision in lacking]
        names = ", ".join(sorted({each.service.name for each, _ in lacking}))
        sizes = divide(self.cores, self.described.limits, replicas, lacks, self.members.values())
        for grows in (False, True):
            for each in self.members.values():
                if each.name in sizes and (sizes[each.name] > each.size) == grows and not (grows and any(other.leaves for other in self.members.values())):
                    await each.resize(sizes[each.name], now, f"{names or 'nothing'} lacks cores")

    async def _make_room(self, needy, now):
        """Stops a replica of another service: an idle one, or the service with the most replicas. Each service keeps
        one replica while it has requests."""
        others = [each for each in self.deployments.values() if each is not needy]
        if any(replica.state == "leaving" for each in others for replica in each.replicas.values()):
            return
        def spare(each):
            idle = each.scaler.average(now, each.service.panic_window) == 0
            return len(each.replicas) - max(each.service.minimum, 0 if idle else 1)
        richest = max(others, key=spare, default=None)
        if richest is not None and spare(richest) > 0:
            self._promised = needy
            richest.say(f"a replica ends, for {needy.service.name} has requests and no core")
            await richest.stop(max(richest.replicas.values(), key=lambda each: each.since), now)

    async def _restart(self):
        async with self._starts:
            try:
                await self.haproxy.start(self._configuration(), self._save)
                for each in self.deployments.values():   # sends changes since the configuration was written
                    await each.tell()
            except Refusal as error:
                self.say(str(error))
                await asyncio.sleep(AGAIN)

    async def _reload(self):
        try:
            described = read(self.files, self.cores)
            for name, each in self.deployments.items():
                if name in described.services and described.services[name].is_grpc != each.service.is_grpc:
                    raise Refusal(f"{name} cannot change between http1 and h2c while its replicas run (HAProxy uses one protocol for all); rename it")
            self.described = described
        except Refusal as error:
            self.say(f"the files are left as they were: {error}")
            return
        services, before = self.described.services, self.members
        self.members = {name: before[name] if name in before and before[name].training == each else Member(self, each)
                        for name, each in self.described.trainings.items()}
        for name, each in self.deployments.items():
            each.is_removed = name not in services
        for name, service in services.items():
            if name not in self.deployments:
                await self._add(service)
            self.deployments[name].apply(service)
        self.say(f"read again: {', '.join(services)}")
        await self._restart()
        self.wake()

    def _save(self):
        state = {"haproxy": [each.saved() for each in self.haproxy.processes()],
                 "services": {name: each.saved() for name, each in self.deployments.items()}}
        if state != self._saved:
            try:
                write_json(self.folder / "state.json", state, mode=PRIVATE)
                self._saved = state
            except Refusal as error:
                self.say(str(error))   # and again at the next check

    def _drain(self):
        self._drains = True
        self.wake()

    async def _end(self):
        """Serves the received requests, ends HAProxy, and then the replicas."""
        self.say("drains")
        await self.haproxy.drain()
        last = self.now() + max(each.service.timeout for each in self.deployments.values()) + 5
        quiet_since = self.now()
        while self.now() < min(last, quiet_since + QUIET) and self.haproxy.process.is_alive():
            rows = await self._look()
            held = sum(each.activator.holding for each in self.deployments.values())
            # A process that does not reply may have requests, and an earlier process may have requests that must pass
            # this process.
            if held or not rows or len(self.haproxy.processes()) > 1 or any(int(row["scur"]) for (_, server), row in rows.items() if server == "BACKEND"):
                quiet_since = self.now()
        self.haproxy.process.send(signal.SIGTERM)
        for each in self.deployments.values():
            each.is_removed = True
        while (self.deployments or self.haproxy.processes()) and self.now() < last + QUIET:
            await self._look()
        for process in [*self.haproxy.processes(), *(each.process for other in self.deployments.values() for each in other.replicas.values())]:
            process.send(signal.SIGKILL)
        await self._resize([], [], self.now())   # trainings get all cores


def _cores_of(held, account=None):
    return sum(cores for of, cores in held if account in (None, of))


def _living(saved):
    found = []
    for each in saved:
        try:
            found.append(Process(*each))
        except ProcessLookupError:
            continue
    return found
