#!/usr/bin/env python3
"""Tests tools/mutate.py: its edits, its rooms, the programs that its tests run, and its report of a caught mutation.

usage: mutate.py [BUILD]    BUILD: a build whose tests must all be known to tools/rooms.py
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "mutate.py"
sys.path.insert(0, str(TOOL.parent))
import mutate  # noqa: E402
import rooms  # noqa: E402

BUILD = sys.argv.pop(1) if len(sys.argv) > 1 and sys.argv[1].startswith("/") else None


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

    def test_locks_and_memory_orders_are_broken(self):
        self.assertEqual(edits("  const std::lock_guard lock(mutex_);  // of all"), {"lock dropped": ";  // of all"})
        self.assertEqual(edits("  std::scoped_lock both(a, b);")["lock dropped"], ";")
        self.assertEqual(edits("  ready_.store(true, std::memory_order_release);")["memory order relaxed"],
                         "  ready_.store(true, std::memory_order_relaxed);")
        self.assertEqual(edits("  return n.load(std::memory_order::acquire);")["memory order relaxed"],
                         "  return n.load(std::memory_order::relaxed);")
        self.assertNotIn("memory order relaxed", edits("  n.load(std::memory_order_relaxed);"))

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


def entry(name, *command, **properties):
    return {"name": name, "command": list(command), "properties": [{"name": k, "value": v} for k, v in properties.items()]}


class Rooms(unittest.TestCase):
    def test_every_file_of_the_library_has_a_room(self):
        self.assertEqual(rooms.room_of("include/muster/comm/transports/tcp/detail/link-inl.hpp"), "comm/transports/tcp")
        self.assertEqual(rooms.room_of("src/train/device/device_arena.cpp"), "train/device")
        for layer in {room.split("/")[0] for room in rooms.ROOMS}:
            self.assertIn(layer, rooms.WIDER)

    @unittest.skipUnless(BUILD, "no build was named")
    def test_every_test_is_in_a_room_or_has_a_reason_not_to_be(self):
        names = [test["name"] for test in rooms.listed(BUILD)]
        self.assertGreater(len(names), 100)
        self.assertEqual(rooms.homeless(names), [], "add them to ROOMS, WIDER or UNAFFECTED of tools/rooms.py")
        for some in [*rooms.ROOMS.values(), *rooms.WIDER.values(), *rooms.UNAFFECTED]:
            if not any(word in some for word in ("nccl", "serve", "bench", "platform")):  # these may not be built
                self.assertTrue(any(rooms.re.search(some, name) for name in names), f"no test is called {some}")

    def test_the_programs_of_a_test_are_all_that_it_is_given(self):
        targets = {"/b/tests/test_a": "test_a", "/b/tests/elastic/worker": "worker", "/b/src/programs/muster-store": "store",
                   "/b/src/programs/muster-launch": "launch", "/b/examples/cnn": "cnn", "/b/src/libmuster_core.a": "core"}
        tests = [
            entry("test_a: case", "/b/tests/test_a", "case"),
            entry("test_new: not built"),
            entry("script", "python3", "/s/faults.py", "--program", "/b/tests/elastic/worker"),
            entry("on its path", "/b/tests/elastic/worker", ENVIRONMENT_MODIFICATION=["PATH=path_list_prepend:/b/src/programs"]),
            entry("by a folder", "python3", ENVIRONMENT=["A_TOOL=/b/src/programs/muster-store", "PROGRAMS=/b/examples"]),
            entry("by the build", "/s/in-mode.sh", "/b", "2"),
            entry("install", "cmake", "-D", "build=/b", FIXTURES_SETUP=["stage"]),
            entry("a user of it", "/usr/bin/true", FIXTURES_REQUIRED=["stage"]),
        ]
        for name, programs in {
                "test_a: case": {"test_a"}, "test_new: not built": {"test_new"}, "script": {"worker"},
                "on its path": {"worker", "store", "launch"}, "by a folder": {"store", "cnn"},
                "by the build": {"store", "launch", "cnn", "core"}, "a user of it": {"store", "launch", "cnn", "core"}}.items():
            self.assertEqual(rooms.programs_of(tests, [name], "/b", targets), programs, name)


PROJECT = {
    "CMakeLists.txt": """cmake_minimum_required(VERSION 3.22)
project(small CXX)
enable_testing()
add_executable(test_core one.cpp)
add_executable(other other.cpp)
add_executable(wide wide.cpp)
add_test(NAME "test_core: sum" COMMAND test_core)
add_test(NAME "test_data: sum" COMMAND test_core)
add_test(NAME "manual: data" COMMAND wide)
add_test(NAME "manual: data, slowly" COMMAND wide)
set_tests_properties("manual: data, slowly" PROPERTIES LABELS all)
add_test(NAME "test_core: other" COMMAND ${CMAKE_COMMAND} -E env $<TARGET_FILE:other>)
add_test(NAME "test_core: fails" COMMAND ${CMAKE_COMMAND} -E false)
""",
    "src/core/sum.hpp": "inline int sum(int a, int b) {\n  return a + b;\n}\n",
    "src/core/unused.hpp": "inline int unused(int a) {\n  return a - 3;\n}\n",
    "src/data/first.hpp": "inline int first(int a) {\n  return a - 3;\n}\n",
    "src/data/both.hpp": "inline int both(int a) {\n  return a - 4;\n}\n",
    "wide.cpp": '#include "src/data/first.hpp"\nint main() { return first(4) == 1 ? 0 : 1; }\n',
    "one.cpp": '#include "src/core/unused.hpp"\nint main() {}\n',
    "other.cpp": '#include "src/core/sum.hpp"\nint main() { return sum(1, 1) == 2 ? 0 : 1; }\n',
}


class Runs(unittest.TestCase):
    def test_it_says_what_is_noticed_by_whichever_program_and_goes_on_from_its_rows(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder) / "small"
            for name, text in PROJECT.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            (root / "tools").mkdir()
            for name in ("mutate.py", "rooms.py"):
                shutil.copy(TOOL.parent / name, root / "tools")
            git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
            for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "All"]):
                subprocess.run([*git, *words], cwd=root, check=True)

            def ran(*words, only="core"):
                return subprocess.run([sys.executable, root / "tools/mutate.py", "--all", "--seed", "1", "--exclude",
                                       f"^src/(?!{only})", "--json", root / "rows.json", *words], capture_output=True, text=True,
                                      timeout=100)
            first = ran("--lines", "1", "--tier", "room")
            rows = json.loads((root / "rows.json").read_text())
            self.assertEqual(len(rows), 1, first.stderr)
            done = ran("--lines", "2", "--tier", "room")
            rows = {row["place"]: row for row in json.loads((root / "rows.json").read_text())}
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertEqual(rows["src/core/sum.hpp:2"]["caught_by"], "test_core: other", done.stdout)
            self.assertIsNone(rows["src/core/unused.hpp:2"]["caught_by"], done.stdout)
            self.assertIn("1 of 2 caught (50 %), 1 by the tests of their room", done.stdout)
            tree = root / "build/mutate/tree"
            self.assertEqual(subprocess.run(["git", "status", "--short", "-uno"], cwd=tree, capture_output=True).stdout, b"")
            again = ran("--lines", "2", "--tier", "room")  # no line is left, and no test runs
            self.assertEqual((again.stdout.splitlines()[:2]), done.stdout.splitlines()[:2])

            wide = ran("--lines", "4", only="(core|data)")  # survivors of the rooms meet the wider tests together
            rows = {row["place"]: row for row in json.loads((root / "rows.json").read_text())}
            self.assertEqual({place: (row["caught_by"], row["tier"]) for place, row in rows.items()},
                             {"src/core/sum.hpp:2": ("test_core: other", "room"), "src/core/unused.hpp:2": (None, "default"),
                              "src/data/first.hpp:2": ("manual: data", "default"), "src/data/both.hpp:2": (None, "default")},
                             wide.stdout + wide.stderr)
            self.assertEqual(rows["src/data/first.hpp:2"]["by"], "wider")
            self.assertEqual(subprocess.run(["git", "status", "--short", "-uno"], cwd=tree, capture_output=True).stdout, b"")


if __name__ == "__main__":
    unittest.main()
