"""Common parts of the tests of workflows: a file, its runner, a single step, and the build's programs."""
import json
import os
import pathlib
import subprocess
import sys

import bench
from muster_flow import workflow, wrapper
from muster_flow.store import Store


class Case(bench.Case):
    runner, name = [sys.executable, "-m", "muster_flow"], "muster-flow"

    def workflow(self, steps, top=""):
        return self.write("workflow.yaml", f"muster-flow: 1\nname: of the test\n{top}\nsteps:\n{steps}\n")

    def built(self, *names):
        """Returns the paths of programs of the build that these tests belong to."""
        if reason := bench.absent(*names):
            self.skipTest(reason)
        return [str(bench.BUILD / name) for name in names]

    def small_disk(self, name, size):
        """Returns a folder on a disk with so much space."""
        if os.geteuid() != 0:
            self.skipTest("SKIPPED: only root can make a small file system")
        (self.folder / name).mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", self.folder / name], capture_output=True).returncode != 0:
            self.skipTest("SKIPPED: no file system can be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", self.folder / name])
        return self.folder / name

    def begin(self, steps, name, top=""):
        """Starts the process of a step as Snakemake does; returns (process, store of the results)."""
        flow = workflow.read_file(self.workflow(steps, top))
        store = Store(self.folder / "out", flow)
        (store.folder / "run").mkdir(parents=True, exist_ok=True)
        (store.folder / "flow.json").write_text(json.dumps(flow.to_json()))
        return subprocess.Popen([sys.executable, "-I", "-S", wrapper.__file__, str(store.folder), name], cwd=self.folder), store

    def end(self, process, store, name, status=0):
        """Waits for the end; returns (its end event, its attempts, its record)."""
        self.assertEqual(process.wait(300), status)
        events = [event for event in store.events() if event["step"] == name]
        attempts = [event for event in events if event["event"] == "attempt"]
        ends = [event for event in events if event["event"] == "end"]
        self.assertEqual(len(ends), 1, ends)
        return ends[0], attempts, store.record(name)

    def step(self, steps, name="one", status=0, top=""):
        return self.end(*self.begin(steps, name, top), name, status)
