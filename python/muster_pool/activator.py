"""The server that HAProxy uses while a service has no replica: it holds requests, and returns them to HAProxy when a
replica is ready."""
import asyncio
import contextlib
import os

from muster_bench.files import digest_of

PIECE = 1 << 16


class Activator:
    """The activator of a service. `holding` requests wait for `usable`."""

    def __init__(self, pool, deployment):
        # a short path, because addresses of Unix sockets are limited
        self._inside, self.path = f"{pool.folder}/inside.sock", f"{pool.folder}/{digest_of(deployment.service.name)[:8]}.sock"
        self._pool, self._deployment = pool, deployment
        self.holding = 0
        self.usable = asyncio.Event()
        self._server = None

    async def listen(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        # A task without a reference may be collected while it waits.
        self._server = await asyncio.start_unix_server(lambda *streams: self._pool.spawn(self._hold(*streams)) and None, self.path, backlog=4096)

    async def _hold(self, reader, writer):
        service = self._deployment.service
        try:
            if self.holding >= service.queue:
                return await self._refuse(reader, writer, "429 Too Many Requests", "as many as may wait do; send it again later")
            self.holding += 1
            self._pool.wake()
            try:
                await asyncio.wait_for(self.usable.wait(), service.timeout)
            except asyncio.TimeoutError:
                return await self._refuse(reader, writer, "503 Service Unavailable", f"no replica was ready in {service.timeout} s; send it again later")
            finally:
                self.holding -= 1
            to_reader, to_writer = await asyncio.open_unix_connection(self._inside)
            try:
                forth = asyncio.ensure_future(_copy(reader, to_writer))
                await _copy(to_reader, writer)
                forth.cancel()
            finally:
                to_writer.close()
        except OSError:
            pass   # HAProxy sends it to another server
        finally:
            writer.close()

    async def _refuse(self, reader, writer, status, text):
        body, headers = f'{{"error":"request: {text}"}}', "Content-Type: application/json"
        if self._deployment.service.is_grpc:   # UNAVAILABLE
            body, headers = "", f"Content-Type: application/grpc\r\ngrpc-status: 14\r\ngrpc-message: {text}"
        await reader.read(PIECE)
        writer.write(f"HTTP/1.1 {status}\r\n{headers}\r\nContent-Length: {len(body)}\r\nRetry-After: 1\r\n"
                     f"Connection: close\r\n\r\n{body}".encode())
        await writer.drain()


async def _copy(reader, writer):
    while piece := await reader.read(PIECE):
        writer.write(piece)
        await writer.drain()
