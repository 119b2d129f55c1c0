"""What goes wrong with ranks in Python: exceptions, kills, interrupts, forks and ends, none of which hangs or crashes."""
import signal
import time
import unittest

from module import Case

WAITING = """
import sys, time, numpy as np, muster
context = muster.context()
world = context.world
world.barrier()
print("ready", flush=True)
"""


class Ends(Case):
    def started(self, program, ranks=2, **variables):
        processes = self.start(WAITING + program, ranks, **variables)
        for process in processes:
            self.assertEqual(process.stdout.readline(), "ready\n")
        return processes

    def test_an_exception_reaches_the_ranks_that_wait(self):
        processes = self.started("""
if world.rank == 1:
    raise ValueError("of rank 1")
try:
    world.allreduce(np.zeros(5))
except muster.peer_failure as failure:
    print(failure.ranks, failure)
""")
        (status, out, err), (status_of_1, _, err_of_1) = self.end(processes)
        self.assertEqual((status, status_of_1), (0, 1), err)
        self.assertRegex(out, r"\[1\] .*ValueError: of rank 1")
        self.assertIn("ValueError: of rank 1", err_of_1)

    def test_a_killed_rank_is_named(self):
        processes = self.started("""
if world.rank == 1:
    time.sleep(100)
try:
    world.allreduce(np.zeros(5))
except muster.peer_failure as failure:
    print(failure.ranks)
""")
        time.sleep(0.5)
        processes[1].send_signal(signal.SIGKILL)
        (status, out, err), _ = self.end(processes)
        self.assertEqual((status, out), (0, "[1]\n"), err)

    def test_an_interrupt_ends_a_wait(self):
        processes = self.started("""
if world.rank == 1:
    time.sleep(3)
try:
    for _ in range(2):   # the first may have all data of the other rank
        world.allreduce(np.zeros(5))
except KeyboardInterrupt:
    print("interrupted")
except muster.peer_failure as failure:
    print(failure)
""")
        time.sleep(0.5)
        self.interrupt(processes[0])
        (status, out, err), (status_of_1, out_of_1, err_of_1) = self.end(processes)
        self.assertEqual((status, out), (0, "interrupted\n"), err)
        self.assertEqual(status_of_1, 0, err_of_1)
        self.assertIn("signal", out_of_1)

    def test_the_interpreter_ends_with_work_outstanding(self):
        for end in ("", "sys.exit(3)", "raise SystemExit(3)"):
            with self.subTest(end):
                processes = self.started(f"""
data = np.ones(1 << 20)
work = world.allreduce_async(data)
if world.rank == 0:
    {end or 'pass'}
else:
    work.wait()
    print(data[0])
""")
                (status, _, err), (status_of_1, out, err_of_1) = self.end(processes)
                self.assertEqual(status, 3 if end else 0, err)
                self.assertEqual((status_of_1, out), (0, "2.0\n"), err_of_1)

    def test_the_interpreter_ends_with_work_that_cannot_end(self):
        processes = self.started("""
if world.rank == 0:
    work = world.allreduce_async(np.ones(9), timeout=1)
else:
    time.sleep(2)
""")
        (status, _, err), (status_of_1, _, err_of_1) = self.end(processes)
        self.assertEqual((status, status_of_1), (0, 0), err + err_of_1)

    def test_a_child_of_fork_is_refused_and_leaves_the_parent_alone(self):
        processes = self.started("""
import os
child = os.fork()
if child == 0:
    try:
        world.allreduce(np.zeros(1))
    except muster.configuration_error as failure:
        print("child:", failure)
    sys.exit(0)
os.waitpid(child, 0)
print(world.allreduce(np.ones(1))[0])
""")
        for status, out, err in self.end(processes):
            self.assertEqual(status, 0, err)
            self.assertRegex(out, r"(?s)child: this group belongs to the parent.*2\.0\n|2\.0\n")
            self.assertIn("2.0\n", out)

    def test_workers_of_multiprocessing_start_by_fork(self):
        processes = self.started("""
import multiprocessing
def square(x):
    return x * x
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(square, range(4)))
    world.barrier()
""")
        for status, out, err in self.end(processes):
            self.assertEqual((status, out), (0, "[0, 1, 4, 9]\n"), err)

    def test_threads_take_turns_in_a_group(self):
        processes = self.started("""
import threading
groups = [world.split(0) for _ in range(4)]
def many(group):
    for k in range(300):
        assert group.allreduce(np.full(3, k * 1.0))[0] == 2 * k
threads = [threading.Thread(target=many, args=(group,)) for group in groups]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("all")
""")
        for status, out, err in self.end(processes):
            self.assertEqual((status, out), (0, "all\n"), err)


if __name__ == "__main__":
    unittest.main()
