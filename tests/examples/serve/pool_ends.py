#!/usr/bin/env python3
"""How muster-pool ends: real HAProxy, real replicas, and requests that are under way.

CTest runs one class at a time, as program.py's."""
import sys
import threading
import unittest

from pool_case import PoolCase, service, slow


class Drains(PoolCase):
    """SIGTERM while requests are worked on, held, or wait for their turn: all are answered."""

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


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=2)
