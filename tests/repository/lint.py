#!/usr/bin/env python3
"""Runs clang-format on all sources, and clang-tidy on changed ones.

    lint.py format ROOT                          prints each line that clang-format would change; exits 1 if there is any
    lint.py tidy ROOT BUILD [--seconds N]        prints findings of clang-tidy in the lines that changed since main
    lint.py --self-test ROOT                     shows that both find deliberate mistakes

Changed lines are the differences between the working tree and the commit at which it left main, or on main the commit before.
The options of a source are read from BUILD/compile_commands.json; a header is checked in the unit that compiles it alone. No
source is started after N seconds: the last line names the remaining sources."""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import compiles

VERSION = 14  # the version of Debian 12: other versions format and check differently
KINDS = (".hpp", ".cpp", ".cu")
FOLDERS = ("include", "src", "examples", "bench", "tests", "python")
GCC_ONLY = ("-fno-gnu-unique",)  # options of builds with GCC that clang refuses


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(0)


def tool(name):
    """Returns the path of a tool with the required version."""
    for path in filter(None, map(shutil.which, (f"{name}-{VERSION}", name))):
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
        if re.search(rf"version {VERSION}\.", version):
            return path
    return skip(f"there is no {name} {VERSION} (Debian: apt-get install {name})")


def check_format(root):
    files = sorted(str(file) for folder in FOLDERS for file in (root / folder).rglob("*") if file.suffix in KINDS)
    done = subprocess.run([tool("clang-format"), "--dry-run", "-Werror", *files], cwd=root, capture_output=True, text=True)
    print(done.stderr, end="")
    print(f"{len(files)} sources; clang-format -i FILE mends one" if done.returncode else f"{len(files)} sources")
    return done.returncode


def git(root, *words):
    done = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def changed_lines(root):
    """Returns {file: [[first, last]...]} of the sources in which lines changed."""
    if not shutil.which("git") or git(root, "rev-parse", "--show-toplevel") is None:
        skip("this is no clone of git, which would say what changed")
    head = git(root, "rev-parse", "HEAD")
    base = git(root, "merge-base", "HEAD", "origin/main") or git(root, "merge-base", "HEAD", "main")
    if base in (None, head):
        base = git(root, "rev-parse", "HEAD~1") or skip("there is no commit before this one, which would say what changed")
    lines, file = {}, None
    for line in git(root, "diff", "--unified=0", "--diff-filter=d", "--no-color", "--no-ext-diff", base).splitlines():
        if line.startswith("+++ b/"):
            file = line[len("+++ b/"):]
        elif (at := re.match(r"@@ \S+ \+(\d+)(?:,(\d+))? @@", line)) and file.endswith(KINDS) and file.startswith(FOLDERS):
            first, count = int(at[1]), int(at[2] or 1)
            if count:
                lines.setdefault(file, []).append([first, first + count - 1])
    return lines


def where_compiled(build):
    """Returns {source: (source, directory, options)} of the sources that the build compiles."""
    return {source: (source, directory, options) for directory, _, options, sources in compiles.database(build) for source in sources}


def unit_of(file, root, compiled):
    """Returns the source in which a file is compiled: itself, the unit that includes a public header alone, a source
    that includes it."""
    if str(root / file) in compiled:
        return compiled[str(root / file)]
    alone = re.sub(r"\W", "_", file.removeprefix("include/")) + ".cpp"
    named = re.compile(rf'#include ["<]([^">]*/)?{re.escape(pathlib.Path(file).name)}[">]')
    for source, unit in compiled.items():
        if source.endswith(f"/repository/headers/{alone}"):
            return unit
    return next((unit for source, unit in compiled.items() if named.search(pathlib.Path(source).read_text())), None)


def tidy_one(path, root, unit, lines):
    """Returns the findings of clang-tidy in these lines of a unit and its includes."""
    source, directory, options = unit
    options = [option for option in options if option not in GCC_ONLY]
    filters = json.dumps([{"name": str(root / file), "lines": at} for file, at in lines.items()])
    done = subprocess.run([path, "--quiet", f"--config-file={root}/.clang-tidy", "--header-filter=.*", f"--line-filter={filters}", source,
                           "--", *options, "-Wno-unknown-warning-option", "-Wno-error"], cwd=directory, capture_output=True, text=True)
    return (done.stdout or done.stderr or f"clang-tidy ended with {done.returncode}\n") if done.returncode else ""


def check_tidy(root, build, seconds):
    path, lines = tool("clang-tidy"), changed_lines(root)
    compiled = where_compiled(build)
    units, nowhere, left, found = {}, [], [], 0
    for file in sorted(lines):
        if unit := unit_of(file, root, compiled):
            units.setdefault(unit[0], (unit, {}))[1][file] = lines[file]
        else:
            nowhere.append(file)
    begun = time.monotonic()
    for unit, files in units.values():
        if time.monotonic() - begun > seconds:
            left += files
            continue
        findings = tidy_one(path, root, unit, files)
        found += bool(findings)
        print(findings, end="")
    print(f"{len(lines) - len(left) - len(nowhere)} changed sources, {found} with findings")
    for reason, files in (("not compiled by this build", nowhere), (f"left after {seconds} s", left)):
        if files:
            print(f"{reason}: {' '.join(files)}")
    return 1 if found else 0


def self_test(root):
    """Makes a repository whose second commit adds one badly formatted source, and another source with a mistake in a
    changed line and the same mistake in an unchanged line."""
    if not shutil.which("git"):
        skip("there is no git, which says what changed")
    tidy = tool("clang-tidy")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder).resolve()
        (folder / "src").mkdir()
        for name in (".clang-format", ".clang-tidy"):
            shutil.copy(root / name, folder / name)
        source = folder / "src" / "bad.cpp"
        before = "int* first() { return 0; }\n"
        source.write_text(before)
        (folder / "compile_commands.json").write_text(
            json.dumps([{"directory": str(folder), "command": f"c++ -std=c++20 {' '.join(GCC_ONLY)} -o bad.o -c {source}", "file": str(source)}]))
        commit = ("-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "-q", "-a", "-m", "a source")
        for words in (("init", "-q", "-b", "main"), ("add", "src"), commit):
            git(folder, *words)
        if check_format(folder) != 0:
            sys.exit("lint.py: clang-format finds fault with a source that has none")
        source.write_text(before + "int* second() { return 0; }\n")
        git(folder, *commit)
        if changed_lines(folder) != {"src/bad.cpp": [[2, 2]]}:
            sys.exit(f"lint.py: what changed is {changed_lines(folder)}")
        findings = tidy_one(tidy, folder, where_compiled(folder)[str(source)], changed_lines(folder))
        if "unknown argument" in findings:
            sys.exit(f"lint.py: an option of GCC reaches clang-tidy: {findings}")
        if "bad.cpp:2:" not in findings or "modernize-use-nullptr" not in findings or "bad.cpp:1:" in findings:
            sys.exit(f"lint.py: of a mistake in a changed line clang-tidy says {findings or 'nothing'}")
        source.write_text(before + "int*  third( );\n")
        if check_format(folder) == 0:
            sys.exit("lint.py: a badly formatted source passes")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("check", nargs="?", choices=("format", "tidy"))
    parser.add_argument("root", nargs="?", type=pathlib.Path)
    parser.add_argument("build", nargs="?")
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--self-test", type=pathlib.Path, metavar="ROOT")
    asked = parser.parse_args()
    if asked.self_test:
        return self_test(asked.self_test.resolve())
    if asked.check == "format":
        return check_format(asked.root.resolve())
    return check_tidy(asked.root.resolve(), asked.build, asked.seconds)


if __name__ == "__main__":
    sys.exit(main())
