"""Tests limits of resources: a part of a processor, and memory; by cgroups if they can be made, else by affinity and
limits."""
import json
import os
import pathlib
import sys
import unittest

from bench import Case

from muster_bench import holding, process
from muster_bench.template import Resources

BUSY = """
import os, time
begin = time.monotonic()
while time.process_time() < 0.5: pass
print("share", time.process_time() / (time.monotonic() - begin), "cores", len(os.sched_getaffinity(0)))
"""


class Holding(Case):
    def file(self, script, resources):
        self.write("program.py", script)
        return self.experiment([sys.executable, "{here}/program.py"], sweep="{n: [1]}",
                               template=f"resources: {resources}\n    read: [{{log: {{share: {{pattern: 'share (\\S+)', required: false}}}}}}]")

    def kept(self):
        return json.loads((self.folder / "out" / "results.json").read_text())["runs"][0]

    def test_half_a_processor(self):
        self.run_file(self.file(BUSY, "{cpus-per-rank: 0.5, hold: true}"))
        kept = self.kept()
        held = kept["settings"]["held"]
        if "cgroup" in held:
            self.assertRegex(held, r"^0\.5 processors \(cgroup v[12]\)$")
            self.assertLess(kept["metrics"]["share"], 0.75)
        else:
            self.assertIn("1 whole processors (affinity and limits", held)
        key, = (json.loads(file.read_text())["key"] for file in (self.folder / "out").glob("experiments/*/result/result.json"))
        # other runners may have groups there
        self.assertEqual(list(holding.GROUPS.rglob(f"muster-bench-*-{key[-20:]}")), [])

    def test_memory(self):
        self.run_file(self.file("held = bytearray(400 << 20)\nfor at in range(0, len(held), 4096): held[at] = 1\n", "{memory: 64M, hold: true}"), status=1)
        why = self.kept()["why"]
        self.assertTrue("out of the memory that it is held to" in why or "MemoryError" in why, why)

    def test_what_is_not_to_be_held_is_not(self):
        self.run_file(self.file("held = bytearray(400 << 20)\n", "{memory: 64M, cpus-per-rank: 0.5}"))
        self.assertNotIn("held", self.kept()["settings"])

    def test_what_is_not_begun_leaves_no_group(self):
        group = self.folder / "group"
        group.mkdir()
        ended = process.run(["/no/such/program"], {"PATH": "/bin"}, self.folder, self.folder / "log", None, 1.0, None, held=str(group))
        self.assertEqual((ended.status, group.exists()), ("missing", False))

    def test_where_there_are_no_cgroups(self):
        there, holding.GROUPS = holding.GROUPS, pathlib.Path(self.folder)
        try:
            held, description = holding.hold(Resources(0.5, 0, True, 64 << 20), 2, "name")
        finally:
            holding.GROUPS = there
        self.assertEqual(held, "cpus=1:data=67108864")
        self.assertIn("1 whole processors, 64 MiB of data a process (affinity and limits", description)
        self.assertEqual(os.listdir(self.folder), [])


if __name__ == "__main__":
    unittest.main()
