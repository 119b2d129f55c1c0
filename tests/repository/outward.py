#!/usr/bin/env python3
"""The outward list: every name that users, their scripts and their files depend on, one on each line, in docs/outward.txt.

    outward.py ROOT [--programs BUILD]          prints the difference between sources and list, and exits 1 if there is any
    outward.py ROOT [--programs BUILD] --write  writes the list again
    outward.py ROOT --self-test                 renames a name for each kind in a copy, and checks that the difference has it

Names come from the sources. A line names the layer and not the file, so a name may move to another file in its layer.
`--programs` adds names that only built programs print: cases of Google Benchmark, and the keys of the JSON documents of programs. Without
`--programs`, and for programs that are not built, these lines stay unchanged."""
import argparse
import ast
import difflib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import scan  # noqa: E402  (beside this file)

LIST = "docs/outward.txt"
OF_PROGRAMS = ("benchmark", "document")   # kinds that only built programs print
CPP = (".cpp", ".hpp", ".cu")
TEXT = r'"((?:\\.|[^"\\\n])*)"'
WORD = r"[A-Za-z][A-Za-z0-9_.-]*"
# Keys of JSON that a program writes; and words that a program reads or compares with user input.
KEYS = {"key": [rf'\{{\s*"({WORD})"\s*,', rf'\[\s*"({WORD})"\s*\]\s*=[^=]', rf'\\"({WORD})\\"\s*:', rf'[{{,]\s*"({WORD})"\s*:'],
        "word": [rf'\[\s*"({WORD})"\s*\](?!\s*=[^=])', rf'\w(?<!_plugin)(?<!linked_without)(?<!run_program)\(\s*"({WORD})"\s*[,)]', rf'[=!]=\s*"({WORD})"']}
OPTION = re.compile(rf"(?:add_option|add_flag|add_option_function|add_subcommand)\(\s*{TEXT}|add_number\(\s*[*\w]+,\s*{TEXT}")
SETTING = re.compile(rf'setting_info\s+\w+\s*\{{\s*{TEXT},\s*{TEXT},\s*{TEXT}')
MARK = re.compile(r"constexpr\s+(?:const\s+)?[\w:]+[ *]+(\w*(?:magic|version|format|heading|signature|mark)\w*)\s*(?:\[\d*\])?\s*(?:=\s*|\{)"
                  r"(\"(?:\\.|[^\"\\\n])*\"|0x[0-9a-fA-F']+(?:ULL)?|\d+)\s*[;}]")
STORE_KEY = re.compile(r"[a-z][a-z-]*/[a-z/-]*|/(?:all|ends-)/?|muster\.[a-z0-9.]+")
STORE_PLACES = ("comm/bootstrap", "elastic", "ps")


def without_comments(text):
    return re.sub(rf'{TEXT}|//[^\n]*', lambda found: found.group(0) if found.group(0)[0] == '"' else " ", text)


def joined(text):
    """Joins adjacent string literals."""
    return re.sub(r'"\s*\n\s*"', "", text)


class Sources:
    def __init__(self, root):
        self.root, self.lines = pathlib.Path(root), set()

    def add(self, kind, *words):
        self.lines.add(" ".join([kind, *(str(word) for word in words)]))

    def files(self, *folders, ends=CPP):
        for folder in folders:
            for path in sorted((self.root / folder).rglob("*")):
                if path.suffix in ends and path.is_file():
                    yield path, path.relative_to(self.root).as_posix()

    @staticmethod
    def room(name):
        """Returns the layer of a source of the library (the same in include and src), or else the program or folder."""
        parts = name.split("/")
        if name.startswith("include/muster/"):
            return parts[2] if len(parts) > 3 else "muster"
        if name.startswith("src/programs/"):
            return f"programs/{pathlib.Path(name).stem.replace('_', '-')}"
        if parts[0] == "src":
            return parts[1]
        if len(parts) > 2:
            return f"{parts[0]}/{parts[1]}"
        return f"{parts[0]}/{pathlib.Path(name).stem}"

    def cpp(self):
        for path, name in self.files("include", "src", "examples", "bench"):
            text, room = joined(without_comments(path.read_text())), self.room(name)
            for kind, forms in KEYS.items():
                for word in (word for form in forms for word in re.findall(form, text)):
                    self.add(kind, room, word)
            for word in re.findall(TEXT, text):
                for metric in re.findall(r"^(?:# \w+ )?(muster_[a-z0-9_]+)", word) if not name.startswith("bench/") else ():
                    self.add("metric", metric)
                if found := re.match(r"--[a-z][a-z0-9-]*", word):
                    self.add("flag", room, found.group(0))
                if re.fullmatch(r"MUSTER_[A-Z0-9_]+", word) and not word.startswith("MUSTER_TEST"):
                    self.add("variable", word)
                layer = re.sub(r"^(?:include/muster|src)/", "", name)
                if layer.startswith(STORE_PLACES) and STORE_KEY.fullmatch(word):
                    self.add("store-key", self.room(name), word)
            for words in OPTION.findall(text):
                for word in "".join(words).split(","):
                    self.add("flag", room, word)
            for word, argument, default in SETTING.findall(text):
                self.add("setting", f"--{word} {argument}, MUSTER_{word.replace('-', '_').upper()}, default {default}")
            for word, value in MARK.findall(text):
                self.add("format", room, word, value)
            for kind, body in re.findall(r"enum class (error_kind|exit_reason)[^{]*\{([^}]*)\}", text):
                for word, number in re.findall(r"(\w+)\s*=\s*(\d+)", body):
                    self.add("exit-status", number, kind, word)
            for number in re.findall(r"static constexpr int status = (\d+)", text):
                self.add("exit-status", number, room)

    def python(self):
        for path, name in self.files("python", "bench", "examples", ends=(".py",)):
            room = name.split("/")[1] if name.startswith("python/") else name
            for node in ast.walk(ast.parse(path.read_text())):
                for kind, *words in _names_of(node):
                    self.add(kind, *([room] if kind in ("flag", "key", "word", "format", "command") else []), *words)
        for project in ("python/pyproject.toml", "python/muster_bench/pyproject.toml"):
            for program, entry in re.findall(r'^([\w-]+) = "([\w.]+:\w+)"$', (self.root / project).read_text(), re.M):
                self.add("entry-point", program, entry)
        tracker = ast.parse((self.root / "python/muster_bench/tracker.py").read_text())
        for node in [*tracker.body, *(inner for node in tracker.body if isinstance(node, ast.ClassDef) for inner in node.body)]:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not re.match("_[^_]", node.name):
                arguments = [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)] if isinstance(node, ast.FunctionDef) else []
                self.add("python", f"muster_bench.tracker {node.name}({', '.join(arguments)})")

    def scripts(self):
        for path, name in self.files("tools", "packaging", "examples", "bench", "python", ends=(".sh", ".yaml", "")):
            for word in re.findall(r"\bMUSTER_[A-Z0-9_]+", path.read_text(errors="replace")):
                if not word.startswith("MUSTER_TEST"):
                    self.add("variable", word)

    def build(self):
        for path, _ in self.files("cmake", "src", "examples", "bench", "python", ends=(".txt", ".cmake")):
            text = path.read_text(errors="replace")
            for word in re.findall(r"option\((MUSTER_\w+)", text) + re.findall(r"set\((MUSTER_\w+) [^)]* CACHE (?!INTERNAL)", text):
                self.add("option", word)
            for word in re.findall(r"add_(?:library|layer)\((\w+) (?:PLUGIN )?(?:USES|SOURCES)", text) + re.findall(r"add_library\(muster::(\w+) ", text):
                self.add("target", f"muster::{word}")
        for word in re.findall(r"OUTPUT_NAME (muster-[\w]+)", (self.root / "src/programs/CMakeLists.txt").read_text()):
            self.add("program", word)
        for word in re.findall(r"foreach\(program ([\w ]+)\)", (self.root / "src/programs/CMakeLists.txt").read_text()):
            for part in word.split():
                self.add("program", f"muster-{part}")
        for path, name in self.files("include", ends=(".hpp",)):
            if not scan.is_internal(name.removeprefix("include/muster/"), scan.code_of(path.read_text())):
                self.add("header", name.removeprefix("include/"))
        presets = json.loads((self.root / "CMakePresets.json").read_text())
        for preset in presets["configurePresets"]:
            if not preset.get("hidden"):
                self.add("preset", preset["name"])
        for path in sorted((self.root / "python/muster_bench/presets").glob("*.yaml")):
            self.add("preset", f"muster-bench {path.stem}")
        api = json.loads((self.root / "python/muster_bench/dashboard/openapi.json").read_text())
        for way, calls in api["paths"].items():
            for call in calls:
                self.add("request", call, way)


OF_TEXTS = {*dir(str), *dir(bytes), "print", "open", "join", "Path", "TypeVar"}   # functions whose arguments are no names


def _text(node):
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _names_of(node):
    """Yields (kind, words...) for each name in a node of Python's syntax tree."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if re.fullmatch(r"MUSTER_[A-Z0-9_]+", node.value) and not node.value.startswith("MUSTER_TEST"):
            yield "variable", node.value
        if re.fullmatch(r"muster_(?!bench|flow|pool)[a-z0-9_]+", node.value):
            yield "metric", node.value
    if isinstance(node, ast.Dict):
        yield from (("key", key) for element in node.keys if (key := _text(element)) and re.fullmatch(WORD, key))
    if isinstance(node, ast.Subscript) and (key := _text(node.slice)) and re.fullmatch(WORD, key):
        yield "key" if isinstance(node.ctx, ast.Store) else "word", key
    if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Constant, ast.Tuple)):
        for target in node.targets:
            if isinstance(target, ast.Name) and re.search("FORMAT|VERSION", target.id) and isinstance(node.value, ast.Constant):
                yield "format", target.id, repr(node.value.value)
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and "FINISHED" in [getattr(element, "id", "") for element in target.elts]:
                for element, number in zip(target.elts, node.value.elts):
                    yield "exit-status", number.value, "muster_bench", element.id
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        first = _text(node.args[0]) if node.args else None
        if called == "add_argument":
            yield from (("flag", word) for element in node.args if (word := _text(element)))
        if called in ("add_parser", "command") and first:
            yield "command", first
        if isinstance(node.func, (ast.Attribute, ast.Name)) and called not in OF_TEXTS and first and re.fullmatch(WORD, first):
            yield "word", first


# ---- of built programs ----

OF_NAMES = ("settings", "transports", "histogram")   # objects whose keys are listed under another kind, or are values


def paths_of(value, before=""):
    """Yields the keys of a JSON document: `epochs[].train_loss`."""
    if isinstance(value, dict):
        for key, inner in value.items():
            path = f"{before}{'.' if before else ''}{'NAME' if before in OF_NAMES else key}"
            yield path
            yield from paths_of(inner, path)
    elif isinstance(value, list):
        for inner in value:
            yield from paths_of(inner, f"{before}[]")


class Programs:
    """Makes the lines of the kinds OF_PROGRAMS. A program that is not built keeps its lines of the list."""

    def __init__(self, root, build, former):
        self.root, self.build, self.former, self.lines, self.missing = root, pathlib.Path(build), former, set(), []

    def run(self, *words, **more):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120, env=clean, check=False, **more)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, words))} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def of(self, kind, name, path, tell):
        if not (self.build / path).is_file():
            self.missing.append(path)
            self.lines |= {line for line in self.former if line.startswith(f"{kind} {name} ")}
            return
        self.lines |= {f"{kind} {name} {word}" for word in tell(self.build / path)}

    def all(self):
        for path in sorted(pathlib.Path(self.root, "bench").glob("*.cpp")):
            if "RegisterBenchmark" in path.read_text() and "main(" in path.read_text():
                self.of("benchmark", path.stem, f"bench/{path.stem}", self.cases)
        self.of("document", "muster-info", "src/programs/muster-info", lambda program: paths_of(json.loads(self.run(program, "--json", "--ranks", 2))))
        with tempfile.TemporaryDirectory() as folder:
            rows = pathlib.Path(folder, "rows.libsvm")
            rows.write_text("".join(f"{1 if k % 2 else -1} 1:{k} 2:0.5\n" for k in range(40)))
            for command in ("inspect", "stats", "verify"):
                self.of("document", f"muster-data-{command}", "src/programs/muster-data",
                        lambda program, command=command: paths_of(json.loads(self.run(program, command, "--json", f"libsvm:{rows}"))))
            for name in ("json", "trace", "metrics"):
                self.of("document", f"logistic_regression--{name}", "examples/logistic_regression",
                        lambda program, name=name: self.trained(program, rows, name))
        return self.lines

    def cases(self, program):
        """Returns the names of cases without sizes, and without cases that some machines lack."""
        listed = self.run(program, "--benchmark_list_tests=true").splitlines()
        return {re.sub(r"(?<=/)\d+(?=/|$)", "N", line.replace(shape[0], "SHAPE") if (shape := re.search(r"\d+x\d+x\d+>\d+", line)) else line)
                for line in listed if re.fullmatch(r"[\w/:.,+>-]+", line) and not re.search("-avx|-portable|a9a", line)}

    def trained(self, program, rows, name):
        written = rows.with_name(name)
        self.run(program, "--train", f"libsvm:{rows}", "--test", f"libsvm:{rows}", "--epochs", 1, "--batch", 10, f"--{name}", written)
        if name == "metrics":
            return re.findall(r"^(muster_\w+)", written.read_text(), re.M)
        return paths_of(json.loads(written.read_text()))


def lines_of(root):
    sources = Sources(root)
    for part in (sources.cpp, sources.python, sources.scripts, sources.build):
        part()
    return sources.lines


def differences(root, former, build=None):
    """Returns (new lines, missing lines, programs that are not built)."""
    found, missing = lines_of(root), []
    if build:
        programs = Programs(root, build, former)
        found |= programs.all()
        missing = programs.missing
    else:
        found |= {line for line in former if line.split()[0] in OF_PROGRAMS}
    return sorted(found - former), sorted(former - found), missing


def former_of(root):
    path = pathlib.Path(root, LIST)
    return {line for line in path.read_text().splitlines() if line and not line.startswith("#")} if path.exists() else set()


HEAD = """# The names of muster that users, scripts and files depend on, a line each; its first word is the kind. Generated by
# tests/repository/outward.py. A line that changes or disappears breaks users: CHANGELOG.md has to name the change.
"""


def self_test(root):
    """Renames a name for each kind in a copy of the sources, and checks that its line is missing from the list of the
    copy."""
    renames = [("setting --timeout", "include/muster/comm/detail/comm_settings-inl.hpp", '"timeout", "SECONDS"', '"patience", "SECONDS"'), ("flag programs/launch-plan --grace", "src/programs/launch_plan.cpp", "--grace", "--mercy"),
               ("flag muster_bench --dry-run", "python/muster_bench/cli.py", "--dry-run", "--look"), ("flag bench/train_step --models", "bench/train_step.cpp", "--models", "--nets"),
               ("command muster_bench revisions", "python/muster_bench/cli.py", '"revisions"', '"commits"'), ("variable MUSTER_FLOW_SLURM", "python/muster_flow/wrapper.py", "MUSTER_FLOW_SLURM", "MUSTER_SLURM"),
               ("key train world_size", "include/muster/train/detail/tracker_report-inl.hpp", '"world_size"', '"size"'), ("key muster_bench wall_seconds", "python/muster_bench/runner.py", '"wall_seconds"', '"wall"'),
               ("word train warmup", "include/muster/train/optimizers/detail/schedule-inl.hpp", '"warmup"', '"ramp"'), ("word muster_bench exclude", "python/muster_bench/experiment.py", '"exclude"', '"except"'),
               ("exit-status 5 error_kind timeout", "include/muster/core/error.hpp", "timeout = 5", "timeout = 8"), ("exit-status 5 muster_bench SLOWER", "python/muster_bench/errors.py", "4, 5, 130", "4, 6, 130"),
               ("metric muster_serve_batch_rows", "src/serve/metrics.cpp", "muster_serve_batch_rows", "muster_serve_rows"), ("metric muster_runs", "python/muster_bench/dashboard/exporter.py", '"muster_runs"', '"muster_jobs"'),
               ("store-key ps ps/map", "include/muster/ps/detail/job-inl.hpp", "ps/map", "ps/shards"), ('format data heading "muster-records 1"', "include/muster/data/records/detail/manifest-inl.hpp", "muster-records 1", "muster-records 2"),
               ("format train current_version 4", "include/muster/train/detail/checkpoint_file-inl.hpp", "current_version = 4", "current_version = 5"), ("option MUSTER_INSTALL", "cmake/options.cmake", "MUSTER_INSTALL", "MUSTER_PUT"),
               ("target muster::elastic", "src/CMakeLists.txt", "muster_add_layer(elastic", "muster_add_layer(flexible"), ("program muster-data", "src/programs/CMakeLists.txt", "muster-data", "muster-records"),
               ("entry-point muster-flow", "python/muster_bench/pyproject.toml", "muster-flow =", "muster-steps ="), ("python muster_bench.tracker end_epoch", "python/muster_bench/tracker.py", "def end_epoch", "def epoch_ends"),
               ("request get /api/runs", "python/muster_bench/dashboard/openapi.json", '"/api/runs"', '"/api/jobs"'), ("preset core-only", "CMakePresets.json", '"core-only"', '"core"'),
               ("header muster/core/clock.hpp", "include/muster/core/clock.hpp", None, "include/muster/core/time.hpp")]
    with tempfile.TemporaryDirectory(prefix="muster-outward-") as folder:
        copy = pathlib.Path(folder, "copy")
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns("build", ".git", "tests"))
        former = lines_of(copy)
        for _, name, old, new in renames:
            if old is None:
                (copy / name).rename(copy / new)
                continue
            text = (copy / name).read_text()
            assert old in text, f"{name} has no {old}"
            (copy / name).write_text(text.replace(old, new))
        gone = former - lines_of(copy)
    for line, name, old, new in renames:
        missing = [line_before for line_before in sorted(gone) if line_before.startswith(line)]
        assert missing, f"the list has the same line after '{old or name}' of {name} became '{new}'"
        print(f"- {missing[0]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--programs", type=pathlib.Path, metavar="BUILD")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    chosen = parser.parse_args()
    if chosen.self_test:
        return self_test(chosen.root)
    former = former_of(chosen.root)
    new, gone, missing = differences(chosen.root, former, chosen.programs)
    if chosen.write:
        (chosen.root / LIST).write_text(HEAD + "\n".join(sorted(former - set(gone) | set(new))) + "\n")
        return 0
    if missing:
        print(f"not built, so not compared: {', '.join(sorted(set(missing)))}")
    print("\n".join(sorted([f"+ {line}" for line in new] + [f"- {line}" for line in gone], key=lambda line: (line[2:], line[0]))))
    if new or gone:
        print(f"the outward names differ from {LIST}; name the change in CHANGELOG.md, then run tests/repository/outward.py . --write")
    return 1 if new or gone else 0


if __name__ == "__main__":
    sys.exit(main())
