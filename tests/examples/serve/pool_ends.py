#!/usr/bin/env python3
"""Tests how muster-pool ends and restarts, with pending requests and with sockets that other processes hold.

CTest runs one class at a time, like program.py."""
import pathlib
import socket
import sys
import tempfile
import threading
import unittest

from pool_case import PLATFORM, PoolCase, service, slow


class Drains(PoolCase):
    """Tests SIGTERM while requests are predicted, held or queued. All requests are answered."""

    def answered(self, count, replicas, of, proxy="slow"):
        self.start(of)
        self.until(lambda: len(self.replicas("slow")) == replicas)
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(self.post("/v1/models/slow:predict")[0])) for _ in range(count)]
        for thread in threads:
            thread.start()
        self.until(lambda: self.metric(f'haproxy_backend_current_sessions{{proxy="{proxy}"}} {count}'))
        self.drain()
        for thread in threads:
            thread.join()
        self.assertEqual(answers, [200] * count)

    def test_what_is_worked_on(self):
        self.answered(1, 1, service("slow", slow(3)))

    def test_what_is_held_until_a_replica_has_started(self):
        self.answered(1, 0, service("slow", slow(more={"minReplicas": 0}, START="2")))

    def test_callers_that_wait_for_their_turn(self):
        self.answered(4, 1, service("slow", slow(2), **{"pool.muster__anonymous-concurrency": "2"}), "slow.anonymous")


class Sockets(unittest.TestCase):
    def begin(self, folder, host, port, earlier):
        sys.path.insert(0, str(PLATFORM))
        from muster_pool.haproxy import Haproxy
        sockets = Haproxy(folder, earlier, f"{host}:{port}", "127.0.0.1:0", None).sockets
        for each in sockets:
            self.addCleanup(each.close)
        sockets[0].setblocking(False)
        return sockets[0]

    def accepted(self, listens):
        count = 0
        try:
            while True:
                listens.accept()[0].close()
                count += 1
        except BlockingIOError:
            return count

    def test_the_newest_has_all_connections(self):
        """Tests any number of live earlier processes. A single process may still listen, and several may share a socket."""
        six = pathlib.Path("/proc/net/if_inet6")
        for host in ["127.0.0.1"] + (["[::1]"] if six.exists() and six.read_text() else []):
            for lives in (1, 3):
                with self.subTest(host=host, lives=lives), tempfile.TemporaryDirectory() as folder:
                    first = self.begin(folder, host, 0, [])
                    at = first.getsockname()[:2]
                    for newest in (self.begin(folder, host, at[1], [None] * lives) for _ in range(2)):   # two pools that are killed at the same time
                        for _ in range(50):
                            socket.create_connection(at).close()
                        self.assertEqual((self.accepted(newest), self.accepted(first)), (50, 0))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=2)
