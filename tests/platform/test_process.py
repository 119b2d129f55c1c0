"""Tests one command: its stored output, the default number of ranks, and a runner that is asked to stop."""
import os
import subprocess
import threading
import types
import unittest
from unittest import mock

from bench import Case

from muster_bench import launchers, process


class Commands(Case):
    def run_command(self, command, log=1000, stop=None, look=None):
        limits = types.SimpleNamespace(log=log, disk=None)
        return process.run(["sh", "-c", command], dict(os.environ), self.folder, self.folder / "log", limits, 60, stop or threading.Event(), look)

    def test_stopped_without_a_limit_of_the_disk(self):
        stop = threading.Event()
        self.assertEqual(self.run_command("sleep 60", stop=stop, look=stop.set).status, "interrupted")

    def test_what_is_cut_is_marked(self):
        for printed, cut in ((999, False), (1000, False), (1001, True), (200_000, True)):
            self.run_command(f"head -c {printed} /dev/zero; sleep 0")
            self.assertEqual((self.folder / "log").read_text(), "\0" * min(printed, 1000) + process.cut(1000) * cut)
            (self.folder / "log").unlink()

    def test_open_mpi_has_a_slot_a_core(self):
        for cpu in os.sched_getaffinity(0):
            for name in ("physical_package_id", "core_id"):
                self.write(f"cpu{cpu}/topology/{name}", "0\n")
        with mock.patch.object(launchers, "TOPOLOGY", self.folder):
            self.assertEqual(launchers.slots_here(), 1)
        with mock.patch.object(launchers, "TOPOLOGY", self.folder / "none"):
            self.assertEqual(launchers.slots_here(), launchers.cores_here())


class Told(Case):
    """A stop by Ctrl-C or SIGTERM."""
    RUNNER = "$(cut -d' ' -f4 /proc/$PPID/stat)"   # in a command: its parent is its owner, whose parent is the runner

    def test_what_it_started_is_cleaned_up(self):
        path = self.experiment(["sh", "-c", f"kill -INT {self.RUNNER}; sleep 100"], sweep="{n: [1]}", template="""
    clean-up: ["sh -c 'sleep 0.5; echo cleaned > {here}/cleaned'"]""")
        self.run_file(path, status=130)
        self.assertEqual((self.folder / "cleaned").read_text(), "cleaned\n")
        self.assertEqual(self.results(), [])

    def test_what_ends_with_it_has_not_failed(self):
        path = self.experiment(["sh", "-c", f"[ -e {{here}}/again ] && exec echo v=1; touch {{here}}/again; kill -TERM {self.RUNNER}; kill -TERM $$"],
                               sweep="{n: [1]}", template="read: [{log: {v: 'v=(\\d)'}}]")
        self.run_file(path, status=130)
        self.run_file(path)
        self.assertEqual(self.results()[0]["status"], "ok")

    def test_revisions(self):
        git = ["git", "-c", "user.name=t", "-c", "user.email=t@t"]
        for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"], ["commit", "-q", "--allow-empty", "-m", "two"]):
            subprocess.run([*git, *words], cwd=self.folder, check=True)
        path = self.experiment(["sh", "-c", f"kill -INT {self.RUNNER}; sleep 100"])
        for build, says in (("kill -INT $PPID; exec sleep 9", "interrupted"), ("true", "run the same command again")):
            self.refused("revisions", path, "HEAD~1", "HEAD", "--out", "both", "--build", build, says=says, status=130)


if __name__ == "__main__":
    unittest.main()
