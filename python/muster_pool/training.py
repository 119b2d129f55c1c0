"""Elastic trainings beside the services: muster-launch adds and releases ranks through its control socket."""
import asyncio
import dataclasses
import json
import pathlib

from .service import OWN, cores_of, metadata_of, number

DEADLINE = 0.5      # seconds for a reply
PAUSE = 5.0         # seconds before a launcher that did not reply is asked again


@dataclasses.dataclass(frozen=True)
class Training:
    """A training from a file."""
    name: str
    account: str
    priority: int
    control: pathlib.Path
    cores: float          # cores of a rank


def read_one(top, path):
    name, account, notes = metadata_of(top, path)
    spec = top.section("spec")
    spec.where = f"{path}, {name}, spec"
    resources = spec.section("resources")
    requests = resources.section("requests")
    training = Training(name, account, number(notes, OWN + "priority", 0, 1000, 0), path.parent.absolute() / spec.get("control", "a text"),
                        cores_of(requests, "cpu", 1.0))
    for section in (requests, resources, notes, spec, top):
        section.done()
    return training


class Member:
    """A training and its ranks: a training that does not run has none."""

    def __init__(self, pool, training):
        self._pool, self.training = pool, training
        self.ranks = self.size = self.least = self.most = 0   # ranks that run; wanted, minimum and maximum number
        self._asks_at = 0.0

    def __getattr__(self, name):
        return getattr(self.training, name)

    @property
    def leaves(self):
        return self.ranks > self.size

    async def look(self, now):
        if now >= self._asks_at:
            await self._ask("status", now)

    async def resize(self, size, now, why):
        if size == self.size or now < self._asks_at:
            return
        before = self.size
        await self._ask(f"size {size}", now)
        if self.size == size:
            self._pool.say(f"{self.name}: {size} ranks, {before} before ({why})")

    async def _ask(self, request, now):
        try:
            answer = json.loads(await asyncio.wait_for(self._exchange(request), DEADLINE))
            if "error" not in answer:   # else the job is ending, and will report it soon
                self.ranks, self.size, self.least, self.most = (int(answer[key]) for key in ("ranks", "size", "min", "max"))
        except (FileNotFoundError, ConnectionError):
            self.ranks = self.size = self.least = self.most = 0
        except (OSError, asyncio.TimeoutError, ValueError, KeyError, TypeError) as error:   # its ranks keep their cores
            self._asks_at = now + PAUSE
            self._pool.say(f"{self.name}: {self.training.control} does not answer as muster-launch does ({error or 'in time'}); "
                           f"it is asked again in {PAUSE:g} s")

    async def _exchange(self, request):
        reader, writer = await asyncio.open_unix_connection(str(self.training.control))
        try:
            writer.write(request.encode() + b"\n")
            return await reader.readline()
        finally:
            writer.close()
