#!/usr/bin/env python3
"""Checks that another compiler, or another standard, compiles the sources of a build, without a warning.

    compiles.py [--compiler PATH] [--std STD] BUILD FOLDER...   the sources below the folders (of the repository)
    compiles.py --self-test COMPILER                            shows that a mistake and its place are found

A source's options are read from BUILD/compile_commands.json. Nothing is built (-fsyntax-only). Sources with the same
options are one translation unit, as in a unity build. If the unit has errors, its halves are compiled, down to single sources:
names that collide in one unit are no mistake."""
import argparse
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ALL = 64  # sources in a translation unit


def sources_of(command, directory):
    """Returns the source of a command, or the sources that a unity source includes."""
    source = pathlib.Path(directory, command["file"])
    if source.parent.name != "Unity":
        return [str(source)]
    return re.findall(r'#include "(.*)"', source.read_text())


def options_of(command):
    """Returns the options of a command without compiler, source, object file, optimisation and precompiled header."""
    words, options = shlex.split(command["command"]), []
    words = words[next(i for i, word in enumerate(words) if word.startswith("-")):]
    while words:
        word = words.pop(0)
        if word == "-o" or (word == "-include" and "cmake_pch" in words[0]):
            words.pop(0)
        elif word not in ("-c", "-Winvalid-pch", command["file"]) and not word.startswith("-O"):
            options.append(word)
    return options


def database(build):
    """Yields (directory, target, options, sources) for each command in a build that compiles C++ for the host."""
    for command in json.loads(pathlib.Path(build, "compile_commands.json").read_text()):
        text, directory = command["command"], command["directory"]
        if "nvcc" not in text.split()[0]:
            yield directory, (re.findall(r"CMakeFiles/(\S+?\.dir)/", text) or [""])[0], options_of(command), sources_of(command, directory)


def groups(build, folders):
    """Returns (directory, options, sources) for each target with other options, each pair of options and source
    once."""
    found, seen = {}, set()
    for directory, target, options, sources in database(build):
        for source in sources:
            is_below = any(pathlib.Path(folder) in pathlib.Path(source).parents for folder in folders)
            key = (directory, target, tuple(options))
            if is_below and (key[2], source) not in seen:
                seen.add((key[2], source))
                found.setdefault(key, []).append(source)
    return [(directory, options, sources) for (directory, _, options), sources in found.items()]


class compiler:
    """A compiler that only checks sources."""

    def __init__(self, path, standard):
        self.command = [path, "-fsyntax-only", "-O0"]
        self.standard = [f"-std={standard}"] if standard else []
        if "clang" in path:  # GCC's -Wconversion has no -Wsign-conversion
            self.standard += ["-Wno-unknown-warning-option", "-Wno-sign-conversion"]
        self.units = 0

    def run(self, directory, options, sources):
        """Returns the errors of the sources compiled as one unit, or "" if they are right."""
        self.units += 1
        alone = len(sources) == 1
        text = "" if alone else "".join(f'#include "{source}"\n' for source in sources)
        # A name in one source that hides a name in another is no mistake, as in any unity build.
        words = [*options, *self.standard, *(["-x", "c++", sources[0]] if alone else ["-Wno-shadow", "-x", "c++", "-"])]
        done = subprocess.run([*self.command, *words], cwd=directory, input=text, capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stderr or f"{self.command[0]} ended with {done.returncode}"

    def errors(self, directory, options, sources):
        """Returns the errors by source, for sources that fail by themselves."""
        text = self.run(directory, options, sources)
        if not text or len(sources) == 1:
            return [text] if text else []
        half = len(sources) // 2
        return [error for part in (sources[:half], sources[half:]) for error in self.errors(directory, options, part)]


def check(build, path, standard, folders):
    tool, found, sources = compiler(path, standard), 0, 0
    for directory, options, group in groups(build, folders):
        sources += len(group)
        for at in range(0, len(group), ALL):
            for error in tool.errors(directory, options, group[at:at + ALL]):
                found += 1
                print(error, flush=True)
    if sources == 0:
        sys.exit(f"compiles.py: {build} compiles nothing below {', '.join(folders)} (was it built without it?); name another folder")
    print(f"{sources} sources in {tool.units} translation units, {found} with mistakes")
    return 1 if found else 0


def self_test(path):
    with tempfile.TemporaryDirectory() as folder:
        texts = {"good": "static int value() { return 1; }\nint a() { return value(); }\n",
                 "same_name": "static int value() { return 2; }\nint b() { return value(); }\n",
                 "bad": "int c() { return nothing; }\n", "warned": "int d(int unused) { return 1; }\n"}
        for name, text in texts.items():
            pathlib.Path(folder, f"{name}.cpp").write_text(text)
        unity = pathlib.Path(folder, "Unity")
        unity.mkdir()
        pathlib.Path(unity, "unity_0_cxx.cxx").write_text("".join(f'#include "{folder}/{name}.cpp"\n' for name in texts))
        command = f"/usr/bin/c++ -Wall -Wextra -Werror -O3 -o x.o -c {unity}/unity_0_cxx.cxx"
        pathlib.Path(folder, "compile_commands.json").write_text(
            json.dumps([{"directory": folder, "command": command, "file": f"{unity}/unity_0_cxx.cxx"}]))
        tool, found = compiler(path, "c++20"), []
        for directory, options, group in groups(folder, [folder]):
            found += tool.errors(directory, options, group)
        places = [re.search(r"(\w+)\.cpp:\d+:\d+: error", error).group(1) for error in found]
        if places != ["bad", "warned"]:
            sys.exit(f"compiles.py: of {', '.join(texts)} it finds {places or 'nothing'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--self-test", metavar="COMPILER")
    parser.add_argument("build", nargs="?")
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("--std")
    asked = parser.parse_args()
    if asked.self_test:
        return self_test(asked.self_test)
    return check(asked.build, asked.compiler, asked.std, asked.folders)


if __name__ == "__main__":
    sys.exit(main())
