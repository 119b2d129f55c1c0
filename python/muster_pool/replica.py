"""A serving process and its server in HAProxy."""
import asyncio
import dataclasses
import os
import re
import socket

from .processes import Process
from .service import Revision

PORTS = range(20000, 32000)     # below the range of Linux for outgoing connections
PATIENCE = 1.0                  # seconds to wait for the readiness reply of a replica
_tried = os.getpid() * 101      # two pools begin at different ports


@dataclasses.dataclass
class Replica:
    slot: int             # the number of the server
    port: int
    revision: Revision
    process: Process
    state: str            # starting, serving, leaving, ended
    since: float          # start time of the state
    weight: int = 256
    is_told: bool = False  # in state leaving: SIGTERM was sent
    is_away: bool = False  # the replica reports that it is not ready: it was asked to end

    def as_server(self):
        """Returns the settings for its server in HAProxy."""
        if self.state == "serving":
            return [f"addr 127.0.0.1 port {self.port}", f"weight {self.weight}", "state ready"]
        return ["state drain" if self.state == "leaving" else "state maint"]

    async def is_ready(self, is_grpc):
        """Returns true if the replica is ready; None without a reply."""
        try:
            return await asyncio.wait_for(self._ask(is_grpc), PATIENCE)
        except (OSError, asyncio.TimeoutError):
            return None

    async def _ask(self, is_grpc):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            if is_grpc:   # it listens: HAProxy's checks do the rest
                return True
            writer.write(b"GET /v2/health/ready HTTP/1.1\r\nHost: pool\r\nConnection: close\r\n\r\n")
            answer = await reader.readline()
            return b" 200 " in answer if answer else None
        finally:
            writer.close()


def begin(revision, slot, log, now):
    """Starts a replica. Raises OSError if the program does not exist."""
    port = _free_port()
    environment = {**os.environ, **revision.environment, "PORT": str(port)}
    words = [re.sub(r"\$\((\w+)\)", lambda name: environment.get(name.group(1), name.group(0)), word) for word in revision.command]
    return Replica(slot, port, revision, Process.start(words, environment, log), "starting", now)


def _free_port():
    """Returns a port without a listener. If another program takes the port meanwhile, the replica ends and is restarted
    with another port."""
    global _tried
    while True:
        _tried += 1
        port = PORTS[_tried % len(PORTS)]
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
