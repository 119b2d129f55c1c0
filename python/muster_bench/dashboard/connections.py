"""Bounds on the connections of the dashboard: their number, and the time that a connection may wait for a request."""
import asyncio
import contextlib
import resource

MOST = 256          # open at a time; fewer if the process may have few files open
AT_ONCE = 8         # connections that are accepted before connections in excess are closed
PATIENCE = 30.0     # seconds for the head of a request


class _Closed(asyncio.Protocol):
    """A connection above the limit."""

    def connection_made(self, transport):
        transport.abort()


class Connections:
    """Makes a protocol for each connection to an aiohttp server. Above the limit the connection that has waited longest
    for a request is closed."""

    def __init__(self, server):
        self._server, self._busy, self._since = server, set(), {}
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = MOST if files == resource.RLIM_INFINITY else max(8, min(MOST, files // 4))

    def __call__(self):
        if len(self._open()) >= self._most:
            waiting = self._waiting()
            if not waiting:
                return _Closed()
            now = asyncio.get_running_loop().time()
            min(waiting, key=lambda each: self._since.get(each, now)).force_close()
        return self._server()

    @contextlib.contextmanager
    def busy(self, connection):
        """Marks the connection as busy within the block."""
        self._busy.add(connection)
        try:
            yield
        finally:
            self._busy.discard(connection)
            self._since[connection] = asyncio.get_running_loop().time()

    async def watch(self):
        """Closes connections that have waited too long, until the task is cancelled."""
        while True:
            await asyncio.sleep(1)
            now, waiting = asyncio.get_running_loop().time(), self._waiting()
            self._since = {each: self._since.get(each, now) for each in waiting}
            for each in waiting:
                if now - self._since[each] > PATIENCE:
                    each.force_close()

    def _open(self):
        return [each for each in self._server.connections if each.transport is not None]

    def _waiting(self):
        """Returns the waiting connections, oldest first."""
        return [each for each in self._open() if each not in self._busy]
