"""Bounds on the connections of the dashboard: how many there are, and how long one may wait for a request that does not come."""
import asyncio
import contextlib
import resource

MOST = 256          # open at a time; fewer where the process may have few files open
AT_ONCE = 8         # that are accepted before those in excess are closed
PATIENCE = 30.0     # seconds for the head of a request


class _Closed(asyncio.Protocol):
    """A connection that is too many."""

    def connection_made(self, transport):
        transport.abort()


class Connections:
    """Makes the protocol of each connection of an aiohttp server. Where there are too many, the one that has waited longest for a request is closed."""

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
        """A request of the connection is answered within the block."""
        self._busy.add(connection)
        try:
            yield
        finally:
            self._busy.discard(connection)
            self._since[connection] = asyncio.get_running_loop().time()

    async def watch(self):
        """Closes those that have waited too long, until it is cancelled."""
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
        """In the order in which they came."""
        return [each for each in self._open() if each not in self._busy]
