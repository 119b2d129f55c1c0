"""Contents of files, and errors for files that cannot be used."""
import subprocess
import sys
import unittest

from bench import Case, PROGRAM

from muster_bench import document
from muster_bench.errors import Refusal
from muster_bench.sweep import expand, values_of
from muster_bench.text import bytes_of, fill, fill_words, words_of


class Python(unittest.TestCase):
    def test_without_its_packages(self):
        ran = subprocess.run([sys.executable, "-S", *PROGRAM[1:], "--help"], capture_output=True, text=True, timeout=60)
        self.assertEqual((ran.returncode, ran.stderr.count("\n")), (2, 1), ran.stderr)
        self.assertIn("yaml and matplotlib cannot be imported", ran.stderr)

    def test_a_full_standard_output(self):
        for program in ("muster_bench", "muster_flow", "muster_pool"):
            with open("/dev/full", "w", encoding="utf-8") as full:
                ran = subprocess.run([sys.executable, "-m", program, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
            self.assertEqual((ran.returncode, ran.stderr.count("\n")), (2, 1), ran.stderr)
            self.assertIn("(No space left on device)", ran.stderr)


class Sweeps(unittest.TestCase):
    def test_ranges(self):
        for value, expected in [({"from": 1, "to": 8, "times": 2}, [1, 2, 4, 8]), ({"from": 1, "to": 7, "step": 2}, [1, 3, 5, 7]),
                                ({"from": 1, "to": 3}, [1, 2, 3]), ({"from": 0.1, "to": 0.3, "step": 0.1}, [0.1, 0.2, 0.3]),
                                ({"from": 3, "to": 1, "step": -1}, [3, 2, 1]), ({"from": 5, "to": 1}, []), (7, [7]), ([1, "a"], [1, "a"]),
                                ({"from": 4, "to": 1024, "times": 4}, [4, 16, 64, 256, 1024])]:
            self.assertEqual(values_of("x", value, "here"), expected)

    def test_product_in_order_without_exclusions(self):
        combinations = expand({"c": 0}, {"a": [1, 2], "b": ["x", "y"]}, [{"a": 2, "b": "y"}, {"b": ["x"], "a": 1}], 2, "here")
        self.assertEqual([(values["a"], values["b"], repeat) for values, repeat in combinations],
                         [(1, "y", 1), (1, "y", 2), (2, "x", 1), (2, "x", 2)])

    def test_cases_go_together(self):
        combinations = expand({}, {"b": [1, 2]}, [{"batch": 64, "b": 1}], 1, "here", cases=[{"batch": 32, "rate": 1}, {"batch": 64, "rate": 2}])
        self.assertEqual([tuple(values.values()) for values, _ in combinations], [(32, 1, 1), (32, 1, 2), (64, 2, 2)])
        for cases, words in [([{"a": 1}, {"b": 1}], "other names"), ([{"b": 3}], "would be ignored"), ([3], "no mapping"), ([{"a": [1]}], "no mapping")]:
            with self.assertRaisesRegex(Refusal, words):
                expand({}, {"b": [1, 2]}, [], 1, "here", cases=cases)

    def test_refused(self):
        for parameters, sweep, exclude, words in [
                ({}, {"a": []}, [], "'a' has no values"), ({}, {"a": [1]}, [{"a": 1}], "every combination is excluded"),
                ({}, {"a": {"from": 1, "to": 1000}, "b": {"from": 1, "to": 1000}}, [], "1,000,000 runs"),
                ({}, {"a": {"from": 1, "to": 10 ** 12}}, [], "1,000,000,000,000 values"),
                ({}, {"a": {"from": 1, "to": 9, "step": 0}}, [], "never gets to its end"),
                ({}, {"a": {"from": 1, "to": 9, "times": 1}}, [], "never gets to its end"),
                ({}, {"a": {"from": 1, "too": 9}}, [], "did you mean 'to'"), ({"a": 1}, {"a": [1]}, [], "both"),
                ({}, {"a": [1]}, [{"b": 1}], "unknown parameter 'b'"), ({}, {"a": [[1]]}, [], "values are texts and numbers")]:
            with self.assertRaisesRegex(Refusal, words):
                expand(parameters, sweep, exclude, 1, "here")


class Texts(unittest.TestCase):
    def test_fill(self):
        values = {"n": 2, "rate": 1e-4, "whole": 3.0, "yes": True, "none": None, "two": "a 'b c'"}
        self.assertEqual(fill("{n}{{x}}{rate} {whole} {yes}{none}", values, "t"), "2{x}0.0001 3 true")
        self.assertEqual(fill_words(words_of("run '{two}' {none} {*two} --x={none}"), values, "t"),
                         ["run", "a 'b c'", "a", "b c", "--x="])
        with self.assertRaisesRegex(Refusal, "unknown placeholder '{rat}'.*did you mean 'rate'"):
            fill("{rat}", values, "t")
        with self.assertRaisesRegex(Refusal, "brace alone"):
            fill("{", values, "t")

    def test_bytes(self):
        self.assertEqual([bytes_of(text, "t") for text in (512, "64M", "2 GiB", "1.5k")], [512, 64 << 20, 2 << 30, 1536])
        with self.assertRaises(Refusal):
            bytes_of("many", "t")


class Documents(Case):
    def test_plain_values(self):
        path = self.write("a.yaml", "a: [on, no, 12:30, 1e-4, 007, 1.5, true, ~, -3, ring:2]")
        self.assertEqual(document.load(path)["a"], ["on", "no", "12:30", 1e-4, "007", 1.5, True, None, -3, "ring:2"])

    def test_refused(self):
        good = "muster-bench: 1\nname: x\ntemplates: {t: {command: 'true'}}\nexperiments: {e: {template: t}}\n"
        self.bench("run", self.write("good.yaml", good), "--dry-run")
        for text, says in [
                ("a: 1\na: 2\n", ["x.yaml:2:1", "there twice"]), ("a: [1\n", ["x.yaml:2:1", "no YAML"]), ("", "no 'muster-bench'"),
                ("- 1\n", "must be a mapping"), ("muster-bench: 2\n", "format 2"), (good.replace("name: x", "nam: x"), "no 'name'"),
                (good + "experimets: {}\n", "did you mean 'experiments'"), (good.replace("template: t", "template: s"), "unknown template 's'"),
                (good.replace("'true'", "'true {rank}'"), ["unknown placeholder '{rank}'", "did you mean 'ranks'"]),
                (good.replace("'true'", "'true', clean-up: ['true }']"), ["clean-up", "brace alone"]),
                (good.replace("'true'", "[]"), "empty command"), (good.replace("'true'", "nothing-of-that-name"), "no such program"),
                (good.replace("'true'", "./train"), ["cannot run './train'", "write '{here}/train'"]),
                (good.replace("{command: 'true'}", "{command: 'true', timeout: -1}"), "timeout cannot be -1"),
                (good.replace("{command: 'true'}", "{command: 'true', data: [/no/such]}"), "no such file"),
                (good.replace("{command: 'true'}", "{command: 'true', launcher: mpirum}"), "did you mean 'mpirun'"),
                (good.replace("{command: 'true'}", "{command: 'true', read: [{log: {a: 'x'}}]}"), "has 0 groups"),
                (good.replace("{command: 'true'}", "{command: 'true', read: [{log: {a: '(x'}}]}"), "no regular expression"),
                (good.replace("template: t", "template: t, sweep: {ranks: [0]}"), "ranks cannot be '0'"),
                (good.replace("template: t", "template: t, repeats: 0"), "repeats cannot be 0"),
                (good.replace("template: t", "template: t, sweep: {seed: [1]}"), "a parameter cannot be called 'seed'"),
                (good.replace("template: t", "template: t, sweep: {a: {from: 1, to: 1000000}}"), "1,000,000 values"),
                (good.replace("template: t", "template: t, sweep: {a: []}"), "no run at all"),
                (good.replace("template: t", "template: t, sweep: {ranks: [1, 2]}, follows: {b: {ranks: {1: 3}}}"), "'b' does not follow from ranks 2"),
                (good.replace("template: t", "template: t, follows: {b: {rank: {1: 3}}}"), ["unknown parameter 'rank'", "did you mean 'ranks'"]),
                (good.replace("template: t", "template: t, follows: {b: 3}"), "such as {ranks: {1: 200"),
                (good.replace("template: t", "template: t, sweep: {b: [1]}, follows: {b: {ranks: {1: 3}}}"), "'b' follows and is there besides"),
                (good + "goal: [{metric: accuracy, value: 1}, {metric: accuracy, value: 0.5}]\n", "has accuracy twice"),
                (good + "goal: {metric: acuracy, value: 1}\n", "did you mean 'accuracy'")]:
            with self.subTest(text=text):
                self.refused("run", self.write("x.yaml", text), "--dry-run", says=says)
        self.refused("run", self.folder / "absent.yaml", "--dry-run", says="cannot read")
        self.write("bytes.yaml", "").write_bytes(b"\xff\xfe\x00")
        self.refused("run", self.folder / "bytes.yaml", "--dry-run", says="no text")
        self.refused("run", self.folder / "good.yaml", says="--out")
        self.refused("run", self.folder / "good.yaml", "--dry-run", "--set", "x=1", says="parameter of no experiment")
        self.refused("run", self.folder / "good.yaml", "--dry-run", "--place", "x=1", says="not one of this file's places")
        self.assertFalse((self.folder / "out").exists())

    def test_settings_and_places(self):
        path = self.experiment(["sh", "-c", "echo {n} {tree}"], top="places: {tree: .}")
        done = self.bench("run", path, "--dry-run", "--set", "n=[7, 8]", "--place", "tree=/tmp")
        self.assertIn("echo 7 /tmp", done.stdout)
        self.assertIn("2 runs, open division", done.stdout)

    def test_what_follows_from_a_parameter_tells_no_configurations_apart(self):
        path = self.experiment(["sh", "-c", "echo rate=$(({ranks} * 10)) alpha={alpha}"], sweep="{ranks: [1, 2]}",
                               experiment="follows: {alpha: {ranks: {1: 200, 2: 400}}}",
                               template="read: [{log: {throughput: 'rate=(\\d+)', alpha: 'alpha=(\\d+)'}}]")
        self.run_file(path)
        self.assertEqual([(row["alpha"], row["throughput"]) for row in self.results()], [("200", "10"), ("400", "20")])
        self.assertEqual([row["speedup_rank"] for row in self.results("summary.csv")], ["1.0", "2.0"])

    def test_included_templates(self):
        self.write("shared.yaml", "templates: {t: {command: 'echo {n}'}}")
        path = self.write("a.yaml", "muster-bench: 1\nname: x\ninclude: [shared.yaml]\nexperiments: {e: {template: t, sweep: {n: [1]}}}\n")
        self.assertIn("echo 1", self.bench("run", path, "--dry-run").stdout)


if __name__ == "__main__":
    unittest.main()
