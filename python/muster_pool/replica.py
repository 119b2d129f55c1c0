"""One process that serves, and the server of HAProxy that it is."""
import asyncio
import dataclasses
import os
import re
import socket

from .processes import Process
from .service import Revision

PORTS = range(20000, 32000)     # below those that Linux gives to connections
PATIENCE = 1.0                  # seconds with a replica that is asked whether it is ready
_tried = os.getpid() * 101      # two pools begin at different ports


@dataclasses.dataclass
class Replica:
    slot: int             # the number of the server
    port: int
    revision: Revision
    process: Process
    state: str            # starting, serving, leaving, ended
    since: float          # the state
    weight: int = 256
    is_told: bool = False  # one that leaves: SIGTERM was sent
    is_away: bool = False  # it says itself that it is not ready: it was told to end

    def as_server(self):
        """What HAProxy is told to set."""
        if self.state == "serving":
            return [f"addr 127.0.0.1 port {self.port}", f"weight {self.weight}", "state ready"]
        return ["state drain" if self.state == "leaving" else "state maint"]

    async def is_ready(self, is_grpc):
        """None: it does not answer."""
        try:
            return await asyncio.wait_for(self._ask(is_grpc), PATIENCE)
        except (OSError, asyncio.TimeoutError):
            return None

    async def _ask(self, is_grpc):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            if is_grpc:   # it listens: HAProxy's checks see the rest
                return True
            writer.write(b"GET /v2/health/ready HTTP/1.1\r\nHost: pool\r\nConnection: close\r\n\r\n")
            answer = await reader.readline()
            return b" 200 " in answer if answer else None
        finally:
            writer.close()


def begin(revision, slot, log, now):
    """Starts one. Raises OSError where there is no such program."""
    port = _free_port()
    environment = {**os.environ, **revision.environment, "PORT": str(port)}
    words = [re.sub(r"\$\((\w+)\)", lambda name: environment.get(name.group(1), name.group(0)), word) for word in revision.command]
    return Replica(slot, port, revision, Process.start(words, environment, log), "starting", now)


def _free_port():
    """One that nothing listens at now; a replica that finds it taken ends and is started with another one."""
    global _tried
    while True:
        _tried += 1
        port = PORTS[_tried % len(PORTS)]
        with socket.socket() as made:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                made.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
