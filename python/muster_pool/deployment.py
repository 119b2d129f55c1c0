"""A service: its active revisions, their numbers of replicas, and the states of the replicas."""
import asyncio
import dataclasses
import signal

from .activator import Activator
from .processes import Process
from .replica import Replica, begin
from .scaler import Scaler
from .service import Revision

# seconds without a reply to a health check after which a replica is killed; a stopped replica is killed at once
HUNG = 10
BEGINS = 120.0                  # seconds that a replica may take to become ready
# a replica with a shorter life is restarted after a pause that doubles
SHORT_LIFE, FIRST_PAUSE, LONGEST_PAUSE = 5.0, 0.5, 30.0
FAILURES = 3                    # failures of a new revision that has never served, after which it is withdrawn
ERRORS, ANSWERS = 3, 50         # minimum for a canary, before its errors and its latency count
SLOWER, SLOWER_BY = 1.5, 5      # times and milliseconds that a canary may be slower


class Deployment:
    def __init__(self, pool, service):
        self.pool, self.service = pool, service
        self.current, self.next, self.refused = service.revision, None, ""
        self.replicas = {}
        self.scaler = Scaler(service)
        self.activator = Activator(pool, self)
        self.failures = 0
        self.paused_until = 0.0
        self.lacks_since = None
        self.is_removed = False
        self._requests = None   # (time, total requests by then)
        self._said = None

    def say(self, text):
        self.pool.say(f"{self.service.name}: {text}")

    # -- revisions

    def apply(self, service):
        """Applies the current description of the service."""
        self.service = self.scaler.service = service
        if service.revision == self.current:
            if self.next is not None:
                self.say(f"revision {self.next.id} is taken back (the file has the previous revision)")
            self.next = None
        elif self.is_canary() and service.revision.id == self.refused:
            self.say(f"revision {self.refused} was taken back and gets no share; change it, or leave canaryTrafficPercent out")
            self.next = None
        elif service.revision != self.next:
            self.next, self.failures, self.paused_until = service.revision, 0, 0.0
            share = f"gets {service.canary} % of the requests" if self.is_canary() else f"takes the place of {self.current.id}"
            self.say(f"revision {self.next.id} {share}")

    def is_canary(self):
        return self.service.canary is not None and self.service.canary < 100

    @property
    def balance(self):
        """Returns the balance for HAProxy. Only roundrobin keeps shares exactly: with few requests leastconn gives each
        server as many."""
        return "roundrobin" if self.next is not None and self.is_canary() and self.service.balance == "leastconn" else self.service.balance

    def plan(self, wanted):
        """Returns [(revision, number of replicas)]: a canary has its share; a revision that takes over has as many as
        fit before the old revision leaves."""
        if self.next is None:
            return [(self.current, wanted)]
        if self.is_canary():
            return [(self.current, wanted), (self.next, max(-(-wanted * self.service.canary // 100), min(wanted, 1)))]
        serving = len(self.of(self.next, "serving"))
        if wanted == 0 or serving >= wanted and not self.of(self.current, "serving", "starting"):
            self.say(f"revision {self.next.id} is the one that serves")
            self.current, self.next = self.next, None
            return [(self.current, wanted)]
        return [(self.next, wanted), (self.current, max(wanted - serving, 0))]

    def replaced(self, revision):
        """Returns the cores of the replica that leaves when an additional replica with this revision serves: until then
        both run. A canary replaces none."""
        takes_over = revision == self.next and not self.is_canary() and not self.of(revision, "starting")
        return self.current.cores if takes_over and self.of(self.current, "starting", "serving") else 0.0

    def of(self, revision, *states):
        return [each for each in self.replicas.values() if each.revision == revision and each.state in states and not each.is_away]

    def take_back(self, why):
        self.say(f"revision {self.next.id} is taken back ({why}); {self.current.id} gets all requests")
        self.refused, self.next, self.failures, self.paused_until = self.next.id, None, 0, 0.0

    def judge(self, rows):
        """Withdraws a canary that has more errors than the old revision, or is slower."""
        if self.next is None or not self.is_canary():
            return
        (errors, answers, time), (old_errors, old_answers, old_time) = (self._measured(rows, each) for each in (self.next, self.current))
        if errors >= ERRORS and errors / max(answers, 1) > old_errors / max(old_answers, 1) + 0.01:
            self.take_back(f"{errors} errors of {answers} requests, {old_errors} of {old_answers} before")
        elif answers >= ANSWERS and old_answers >= ANSWERS and time > SLOWER * old_time + SLOWER_BY:
            self.take_back(f"{time:.0f} ms a request, {old_time:.0f} ms before")

    def _measured(self, rows, revision):
        """Returns (errors, answers, mean milliseconds of the last requests). A request that was sent again to another
        server counts as an error."""
        errors = answers = time = 0
        for each in self.of(revision, "serving"):
            row = rows.get((self.service.name, f"s{each.slot}"), {})
            count = {name: int(row.get(name) or 0) for name in ("hrsp_1xx", "hrsp_2xx", "hrsp_3xx", "hrsp_4xx", "hrsp_5xx", "wretr", "rtime")}
            errors += count["hrsp_5xx"] + count["wretr"]
            got = sum(count.values()) - count["rtime"]
            answers += got
            time += count["rtime"] * got
        return errors, answers, time / max(answers, 1)

    # -- replicas

    async def look(self, now, rows):
        """Checks every replica's state, and measures the demand on the service."""
        row = rows.get((self.service.name, "BACKEND"), {})
        busy, usable = int(row.get("qcur") or 0) + self.activator.holding, False
        for each in list(self.replicas.values()):
            if not each.process.is_alive():
                await self._ended(each, now)
                continue
            server = rows.get((self.service.name, f"s{each.slot}"), {})
            active = int(server.get("scur") or 0)
            busy += active
            if each.state == "serving":
                usable |= self._look_at_serving(each, server)
            elif each.state == "leaving":
                self._look_at_leaving(each, active, now)
            elif now - each.since > BEGINS:
                self.say(f"replica {each.process.pid} is not ready after {BEGINS:g} s and is killed")
                each.process.send(signal.SIGKILL)
        if rows:
            (self.activator.usable.set if usable else self.activator.usable.clear)()
            self._record(now, busy, int(row.get("req_tot") or 0))
            # HAProxy missed their state while it did not listen
            await self.tell(slot for slot, each in self.replicas.items()
                            if each.state == "serving" and rows.get((self.service.name, f"s{slot}"), {}).get("status", "").startswith("MAINT"))

    def _record(self, now, busy, requests):
        if self.service.metric == "rps":
            before, self._requests = self._requests, (now, requests)
            if before is None or requests < before[1]:   # HAProxy has started again
                return
            busy = (requests - before[1]) / max(now - before[0], 1e-3)
        self.scaler.record(now, busy)

    def _look_at_serving(self, replica, server):
        """Returns true if HAProxy sends requests to the replica."""
        is_down = server.get("status", "").startswith("DOWN")
        replica.is_away = is_down and server.get("check_status") == "L7STS"
        hangs = is_down and server.get("check_status", "").endswith("TOUT")
        if hangs and (replica.process.is_stopped() or int(server.get("lastchg") or 0) >= HUNG):
            self.say(f"replica {replica.process.pid} answers no health check and is killed")
            replica.process.send(signal.SIGKILL)
        return server.get("status", "").startswith("UP")

    def _look_at_leaving(self, replica, active, now):
        waited = now - replica.since
        if not replica.is_told and (active == 0 or waited > self.service.timeout):
            replica.process.send(signal.SIGTERM)
            replica.is_told = True
        elif waited > 2 * self.service.timeout + BEGINS:
            replica.process.send(signal.SIGKILL)

    async def _ended(self, replica, now):
        was, replica.state = replica.state, "ended"
        del self.replicas[replica.slot]
        replica.process.close(asyncio.get_running_loop())
        await self.tell([replica.slot])
        if was == "leaving" or replica.is_away:
            return
        if was == "starting" or now - replica.since < SHORT_LIFE:
            self.failures += 1
            pause = min(FIRST_PAUSE * 2 ** (self.failures - 2), LONGEST_PAUSE) if self.failures > 1 else 0.0
        else:
            self.failures, pause = 0, 0.0
        self.paused_until = now + pause
        self.say(f"replica {replica.process.pid} ended; another one starts{f' in {pause:g} s' if pause else ''} (see {self.log()})")
        if replica.revision == self.next and self.failures >= FAILURES and not self.of(self.next, "serving"):
            self.take_back(f"{self.failures} of its replicas ended")

    def log(self):
        return self.pool.folder / f"{self.service.name}.replicas.log"

    def start(self, revision, now):
        slot = min(set(range(1, self.service.slots + 1)) - self.replicas.keys(), default=None)
        if slot is None:
            return
        try:
            self.adopt(begin(revision, slot, self.log(), now))
        except OSError as error:
            self.failures += 1
            self.paused_until = now + LONGEST_PAUSE
            self.say(f"'{revision.command[0]}' cannot be started ({error.strerror}); is it in the PATH?")

    def adopt(self, replica):
        self.replicas[replica.slot] = replica
        replica.process.on_end(asyncio.get_running_loop(), self.pool.wake)
        if replica.state == "starting":
            self.pool.spawn(self._await_ready(replica))

    async def _await_ready(self, replica):
        while replica.state == "starting" and replica.process.is_alive():
            ready = await replica.is_ready(self.service.is_grpc)
            if ready is False and replica.revision == self.current:
                replica.since = self.pool.now()   # the replica replies: its repository may stay empty for long
            if ready:
                if replica.state != "starting":
                    return
                replica.state, replica.since = "serving", self.pool.now()
                await self.tell({replica.slot, *self.weigh()})
                self.activator.usable.set()
                self.pool.wake()
                return
            await asyncio.sleep(0.05)

    async def stop(self, replica, now):
        was, replica.state, replica.since = replica.state, "leaving", now
        if was == "serving":
            await self.tell([replica.slot])
        else:
            self._look_at_leaving(replica, 0, now)

    async def tell(self, slots=None):
        """Sends the slots' state to HAProxy; every slot's state if HAProxy may have missed a change."""
        commands = []
        for slot in range(1, self.service.slots + 1) if slots is None else slots:
            server, replica = f"set server {self.service.name}/s{slot}", self.replicas.get(slot)
            commands += [f"{server} {setting}" for setting in (["state maint"] if replica is None else replica.as_server())]
        if commands:
            await self.pool.haproxy.ask("; ".join(commands))

    def weigh(self):
        """Sets the weights of a canary's shares and returns the slots with changed weights."""
        shares = {}
        if self.next is not None and self.is_canary():
            for revision, share in ((self.current, 100 - self.service.canary), (self.next, self.service.canary)):
                shares[revision.id] = share / max(len(self.of(revision, "serving")), 1)
        changed = []
        for each in filter(lambda replica: replica.state == "serving", self.replicas.values()):
            weight = round(256 * shares.get(each.revision.id, 0) / max(shares.values())) if shares else 256
            if weight != each.weight:
                each.weight = weight
                changed.append(each.slot)
        return changed

    async def reconcile(self, now):
        """Stops surplus replicas and returns the revisions that lack a replica, once for each missing replica; also
        during a pause, so that no other service takes the core meanwhile."""
        ready = sum(each.state == "serving" for each in self.replicas.values())
        wanted = 0 if self.is_removed else self.scaler.decide(now, ready)
        if wanted == 0 and self.activator.holding and not self.is_removed:
            self.scaler.activate(now)
            wanted = 1
        if wanted != self._said:
            self.say(f"{wanted} replicas are wanted ({self.scaler.why or 'at the start'})")
            self._said = wanted
        lacking = []
        for revision, count in self.plan(wanted):
            there = self.of(revision, "starting", "serving")
            lacking += [revision] * (count - len(there))
            for each in sorted(there, key=lambda replica: (replica.state == "serving", -replica.since))[:max(len(there) - count, 0)]:
                await self.stop(each, now)
        for each in list(self.replicas.values()):   # replicas of revisions that are no longer needed
            if each.state != "leaving" and each.revision not in (self.current, self.next):
                await self.stop(each, now)
        await self.tell(self.weigh())
        if not lacking:
            self.lacks_since = None
        elif self.lacks_since is None:
            self.lacks_since = now
        return lacking

    # -- state that outlives the pool

    def saved(self):
        return {"current": dataclasses.astuple(self.current), "next": self.next and dataclasses.astuple(self.next), "refused": self.refused,
                "replicas": [[each.slot, each.port, dataclasses.astuple(each.revision), each.process.saved(), each.state]
                             for each in self.replicas.values()]}

    def restore(self, state, now):
        self.current, self.next = (revision and _revision(revision) for revision in (state["current"], state["next"]))
        self.refused = state["refused"]
        for slot, port, revision, process, is_in in state["replicas"]:
            try:
                self.adopt(Replica(slot, port, _revision(revision), Process(*process), is_in, now))
            except ProcessLookupError:
                continue
        return len(self.replicas)


def _revision(saved):
    command, environment, cores = saved
    return Revision(tuple(command), environment, cores)
