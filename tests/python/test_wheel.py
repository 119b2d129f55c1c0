"""The wheel: the check of auditwheel, an installation in a bare environment, and the manual's programs."""
import os
import pathlib
import re
import subprocess
import sys
import unittest

from module import LIMIT, ROOT, Case


def first_program(page):
    """Returns the first program in Python of a page of the manual."""
    return re.search(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.S).group(1)


class Printed(Case):
    def assert_line(self, out, rank, why=""):
        """Checks that a rank printed the weights of y = 2x - 1."""
        found = re.fullmatch(r"(\d+) \[\s*(\S+)\s+(\S+?)\s*\]\n", out)
        self.assertTrue(found, out + why)
        self.assertEqual(int(found[1]), rank)
        self.assertAlmostEqual(float(found[2]), 2, 3)
        self.assertAlmostEqual(float(found[3]), -1, 3)


class Wheel(Printed):
    def wheel(self):
        folder = os.environ.get("MUSTER_TEST_WHEEL")
        found = sorted(pathlib.Path(folder).glob("*.whl")) if folder else []
        if not found:
            self.skipTest("SKIPPED: MUSTER_TEST_WHEEL names no folder with a wheel")
        return found[0]

    def test_a_bare_environment_runs_the_manuals_program(self):
        subprocess.run([sys.executable, "-m", "venv", self.folder / "bare"], check=True, timeout=LIMIT)
        python = self.folder / "bare/bin/python"
        done = subprocess.run([python, "-m", "pip", "install", "--quiet", self.wheel()], capture_output=True, text=True, timeout=LIMIT)
        if done.returncode:
            self.skipTest(f"SKIPPED: pip cannot install numpy ({done.stderr.strip().splitlines()[-1]})")
        plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run([python, self.write("line.py", first_program("python.md")), self.csv()], capture_output=True, text=True,
                              timeout=LIMIT, env=plain)
        self.assert_line(done.stdout, 0, done.stderr)
        libraries = subprocess.run([python, "-c", "import muster; print(open('/proc/self/maps').read())"], capture_output=True, text=True,
                                   timeout=LIMIT, env=plain).stdout
        self.assertNotIn("libmpi", libraries)
        self.assertNotIn("libtorch", libraries)

    def test_auditwheel_accepts_it(self):
        auditwheel = pathlib.Path(sys.executable).parent / "auditwheel"
        if not auditwheel.exists():
            self.skipTest("SKIPPED: there is no auditwheel")
        done = subprocess.run([auditwheel, "show", self.wheel()], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"manylinux_2_(\d+)")

    def test_the_stubs_describe_every_public_name(self):
        import muster
        stub = (pathlib.Path(muster.__file__).parent / "_extension.pyi").read_text()
        for name in ("class group:", "class loader:", "class session:", "class tables:", "def open(specification: str) -> source"):
            self.assertIn(name, stub)
        for name in muster.__all__:
            self.assertTrue(name.startswith("__") or getattr(muster, name).__doc__, f"{name} has no docstring")


class Manual(Printed):
    def test_the_first_program_on_two_ranks(self):
        outputs = self.run_ranks(first_program("python.md"), 2, [self.csv()])
        for rank, out in enumerate(outputs):
            self.assert_line(out, rank)

    def test_it_has_ten_lines(self):
        self.assertEqual(len(first_program("python.md").strip().splitlines()), 10)


if __name__ == "__main__":
    unittest.main()
