"""Starts muster-bench and muster-pool in the form that CMake made, and as an ordinary package of Python."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

from bench import BUILD, PLATFORM, Case

VERSION = PLATFORM.parent / "include" / "muster" / "core" / "version.hpp"


class Started(Case):
    def setUp(self):
        super().setUp()
        self.plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def ended_well(self, *words, **variables):
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=200, cwd=self.folder, env={**self.plain, **variables})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def works(self, program, **variables):
        self.assertIn("exit status", self.ended_well(program, "--help", **variables))
        path = self.experiment([sys.executable, "-c", "print('v=1')"], template="read: [{log: {v: 'v=(\\d)'}}]")
        self.assertIn("2 of 2 runs ended well", self.ended_well(program, "run", path, "--out", "out", **variables))
        self.write("build/examples/logistic_regression", "#!/bin/sh\n").chmod(0o755)
        self.assertIn("closed division", self.ended_well(program, "run", "mlbench-2a", "--dry-run", "--place", "build=build", **variables))

    def flows(self, program, **variables):
        self.assertIn("exit status", self.ended_well(program, "--help", **variables))
        self.write("flow.yaml", "muster-flow: 1\nname: of the test\nsteps:\n  one: {command: 'true'}\n")
        self.assertIn("one: not run", self.ended_well(program, "status", "flow.yaml", "--out", "results", **variables))

    def test_the_launcher_does_not_take_the_first_python_of_the_path(self):
        launcher = str(BUILD / "python/muster-bench") if "MUSTER_TEST_BUILD" in os.environ else None
        if not launcher:
            self.skipTest("SKIPPED: no build made a launcher (MUSTER_TEST_BUILD names the build)")
        self.write("bin/python3", "#!/bin/sh\necho the wrong one; exit 9\n").chmod(0o755)
        self.works(launcher, PATH=f"{self.folder}/bin:{os.environ['PATH']}")
        self.assertIn("exit status", self.ended_well(pathlib.Path(launcher).with_name("muster-pool"), "--help"))
        self.flows(pathlib.Path(launcher).with_name("muster-flow"), PATH=f"{self.folder}/bin:{os.environ['PATH']}")

    def test_pip_install_without_a_network(self):
        home = self.folder / "venv"
        done = subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", home], capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest("SKIPPED: no venv can be made (Debian: python3-venv)")
        python = home / "bin" / "python"
        if subprocess.run([python, "-c", "import setuptools, wheel"], capture_output=True).returncode != 0:
            self.skipTest("SKIPPED: there is no setuptools and wheel (Debian: python3-setuptools python3-wheel)")
        # pip builds in the folder
        shutil.copytree(PLATFORM, self.folder / "platform", ignore=shutil.ignore_patterns("__pycache__"))
        self.ended_well(python, "-m", "pip", "install", "--no-index", "--no-build-isolation", self.folder / "platform/muster_bench")
        shutil.rmtree(self.folder / "platform")
        self.works(home / "bin" / "muster-bench")
        self.assertIn("exit status", self.ended_well(home / "bin" / "muster-pool", "--help"))
        page, = home.glob("lib/*/site-packages/muster_bench/dashboard")
        self.assertLessEqual({"index.html", "dashboard.js", "dashboard.css", "openapi.json"}, {file.name for file in page.iterdir()})
        self.flows(home / "bin" / "muster-flow")

    def test_one_version(self):
        numbers = re.findall(r"#define MUSTER_VERSION_(?:MAJOR|MINOR|PATCH)\s+(\d+)", VERSION.read_text())
        for project in ("pyproject.toml", "muster_bench/pyproject.toml"):
            self.assertIn(f'\nversion = "{".".join(numbers)}"\n', pathlib.Path(PLATFORM, project).read_text())


if __name__ == "__main__":
    unittest.main()
