#!/usr/bin/env python3
"""The edits of tools/mutate.py: what they change of a line, and what they leave alone."""
import importlib.util
import pathlib
import subprocess
import sys
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "mutate.py"
spec = importlib.util.spec_from_file_location("mutate", TOOL)
mutate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutate)


def edits(line):
    return dict(mutate.edits_of(line))


class Edits(unittest.TestCase):
    def test_each_operator_is_broken(self):
        found = edits("  if (a <= b && !done) return x + 1;")
        self.assertEqual(found["<= to <"], "  if (a < b && !done) return x + 1;")
        self.assertEqual(found["&& to ||"], "  if (a <= b || !done) return x + 1;")
        self.assertEqual(found["! dropped"], "  if (a <= b && done) return x + 1;")
        self.assertEqual(found["+ to -"], "  if (a <= b && !done) return x - 1;")

    def test_calls_assignments_and_results_are_dropped(self):
        self.assertEqual(edits("  queue_.push_back(one);")["statement dropped"], "  ;")
        self.assertEqual(edits("  made.size = count;  // of all")["statement dropped"], "  ;  // of all")
        self.assertEqual(edits("  return made.size;")["return of a default"], "  return {};")

    def test_declarations_keep_their_initialisers(self):
        self.assertNotIn("statement dropped", edits("  const auto size = count();"))

    def test_texts_comments_and_templates_are_left_alone(self):
        for line in ('#include <vector>', "  // a <= b && c", "  throw error(a == b);", "template <class A, class B>", "}"):
            self.assertEqual(mutate.edits_of(line), [], line)
        self.assertEqual([new for _, new in mutate.edits_of('  const std::string text = "a && b == 0";')], [])

    def test_every_room_of_the_library_is_known(self):
        for path in ("src/comm/transports/tcp/link.cpp", "include/muster/core/hash.hpp", "src/train/device/arena.cpp"):
            self.assertIn(mutate.room_of(path), mutate.ROOMS)
        self.assertEqual(mutate.room_of("src/comm/transports/tcp/link.cpp"), "comm/transports/tcp")

    def test_a_draw_repeats_and_takes_from_every_room(self):
        rooms = {"a": [("f", n, "x") for n in range(5)], "b": [("g", n, "x") for n in range(5)]}
        first = mutate.draw(rooms, 4, mutate.random.Random("seed"))
        self.assertEqual(first, mutate.draw(rooms, 4, mutate.random.Random("seed")))
        self.assertEqual([room for room, *_ in first], ["a", "b", "a", "b"])

    def test_it_works_in_any_folder_and_needs_something_to_break(self):
        if not (TOOL.parents[1] / ".git").exists():
            self.skipTest("SKIPPED: this is no git repository")
        def ran(*words):
            return subprocess.run([sys.executable, TOOL, *words], cwd=TOOL.parent, capture_output=True, text=True, timeout=50)
        listed = ran("--all", "--list", "--lines", "3", "--exclude", "^src/(?!core)", "--exclude", "^include/(?!muster/core)")
        self.assertEqual((listed.returncode, len(listed.stdout.splitlines())), (0, 3), listed.stderr)
        none = ran("--since", "HEAD")
        self.assertEqual((none.returncode, none.stdout), (2, ""))
        self.assertIn("no line to break", none.stderr)


if __name__ == "__main__":
    unittest.main()
