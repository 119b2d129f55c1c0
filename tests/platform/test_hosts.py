"""The launcher `hosts`: ranks in network namespaces, on links that have a bandwidth and lose packets."""
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

from bench import PROGRAM, Case

from muster_bench import hosts

# Rank 1 sends 8 MB to rank 0, which prints the rate, by the variables that every framework knows.
SENDS = r'''
import os, socket, time
rank, where, count = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 8_000_000
open(os.path.join(os.path.dirname(__file__), f"pid{rank}"), "w").write(str(os.getpid()))
if rank == 0:
    listening = socket.create_server(where)
    sender, _ = listening.accept()
    begin, left = time.monotonic(), count
    while left:
        left -= len(sender.recv(min(left, 1 << 20)))
    print("bits", count * 8 / (time.monotonic() - begin))
    print("world", os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"], len(os.listdir("/sys/class/net")))
else:
    while True:
        try:
            to = socket.create_connection(where)
            break
        except OSError:
            time.sleep(0.05)
    to.sendall(bytes(count))
'''
FILE = """
muster-bench: 1
name: hosts
templates:
  t: {{command: ['{python}', '{{here}}/{script}'], launcher: {{kind: hosts, {launcher}}}, read: [{{log: {{bits: 'bits (\\S+)'}}}}]}}
experiments: {{e: {{template: t, parameters: {{}}, sweep: {{ranks: [2]}}}}}}
"""


class Hosts(Case):
    def file(self, launcher, script=SENDS):
        self.write("sends.py", script)
        return self.write("hosts.yaml", FILE.format(python=sys.executable, script="sends.py", launcher=launcher))

    def needs(self, *programs):
        if why := hosts.missing(*programs):
            self.skipTest(f"SKIPPED: {why}")

    def test_a_link_passes_no_more_than_its_bandwidth(self):
        self.needs()
        self.run_file(self.file("bandwidth: 100M"))
        bits = float(self.results()[0]["bits"])
        self.assertLess(bits, 110e6)
        log, = (self.folder / "out").glob("experiments/*/output/1/log.txt")
        self.assertRegex(log.read_text(), r"world 2 0 2\b")      # lo and link0

    def test_packets_are_lost_and_sent_again(self):
        self.needs("iptables")
        self.run_file(self.file("loss: 0.05"))
        self.assertEqual(self.results()[0]["status"], "ok")

    def test_latency_where_the_kernel_has_it(self):
        self.needs()
        self.run_file(self.file("latency: 0.001, bandwidth: 1G"))
        row, = self.results()
        self.assertEqual(row["status"], "ok" if hosts.no_latency() is None else "skipped")
        if row["status"] == "skipped":
            self.assertIn("no netem", row["why"])

    def test_a_rank_that_fails_ends_the_others(self):
        self.needs()
        self.run_file(self.file("bandwidth: 1G", "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit('rank 1 gives up')\ntime.sleep(1000)\n"), status=1)
        self.assertIn("it ended with status 1: rank 1 gives up", self.results()[0]["why"])

    def test_nothing_is_left_of_a_killed_runner(self):
        self.needs()
        path = self.file("bandwidth: 1M")
        runner = subprocess.Popen([*PROGRAM, "run", path, "--out", "out"], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 60
        names = [self.folder / f"pid{rank}" for rank in (0, 1)]
        while not all(name.is_file() and name.read_text() for name in names) and time.monotonic() < until:
            time.sleep(0.01)
        pids = [int(name.read_text()) for name in names]
        runner.send_signal(signal.SIGKILL)
        runner.wait()
        while any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
            time.sleep(0.01)
        self.assertFalse(any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids))
        known = os.listdir("/run/netns") if os.path.isdir("/run/netns") else []
        self.assertFalse([name for name in known if name.startswith(f"muster-{runner.pid}")])

    def test_without_the_right_to_them_runs_are_skipped(self):
        if os.geteuid() == 0:
            self.runner = ["setpriv", "--bounding-set=-sys_admin", *PROGRAM]
        self.run_file(self.file("bandwidth: 1G"))
        self.assertEqual(self.results()[0]["status"], "skipped")
        self.assertIn("network namespaces need root", self.results()[0]["why"])

    def test_refused(self):
        for launcher, says in (("bandwidth: fast", "is no bandwidth"), ("latency: -1", "is no latency"), ("loss: 2", "is no loss"),
                               ("per-host: 0", "is no per-host"), ("lost: 1", "unknown key 'lost'")):
            self.refused("run", self.file(launcher), "--dry-run", says=says)


if __name__ == "__main__":
    unittest.main()
