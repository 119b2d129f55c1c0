#!/usr/bin/env python3
"""Counts the lines of code in each room of include and src (neither blank nor comment only), for one revision or for two beside each other.

    tools/lines.py [BEFORE] [AFTER]    revisions of git; AFTER is the work tree by default

Below the rooms: the shares of include, the median length of a line, and the longest functions. serve and torch have no limit and are not
counted in the total and the shares."""
import argparse
import collections
import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = re.compile(r"^(include/muster|src)/(?:(.*)/)?[^/]+\.(hpp|cpp|cu)$")
NOTHING = re.compile(r"^\s*(//.*)?$")
# A function's cyclomatic complexity is one more than the number of these, as in lizard.
BRANCH = re.compile(r"\b(?:if|for|while|case|catch)\b| (?:&&|\|\||\?)(?= |$)")
TEXT_OR_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*"|//.*')
NAME = re.compile(r"([\w:~]+|operator\W+)\(")
# In the format of .clang-format, a function's body ends with the first brace at the head's indentation.
UNCOUNTED = ("serve", "torch")
HEAD = re.compile(r"^\s*(?!namespace\b|(?:template\b.*)?(?:class|struct)\b|enum\b|union\b|if\b|for\b|while\b|switch\b|else\b|do\b|try\b|\}|#)[^\s/].*\)[^;()]*\{$")


def git(*arguments):
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True, text=True).stdout


def files_of(revision):
    """Yields (path, text) for each file of code."""
    if revision is None:
        for path in git("ls-files", "include", "src").splitlines():
            if CODE.match(path) and (ROOT / path).exists():
                yield path, (ROOT / path).read_text()
        return
    for path in git("ls-tree", "-r", "--name-only", revision, "include", "src").splitlines():
        if CODE.match(path):
            yield path, git("show", f"{revision}:{path}")


def functions_of(text):
    """Yields (lines, complexity, name, number of the first line) for each function longer than a line; nested functions
    are counted as parts of the function around them."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        if HEAD.match(lines[number]):
            head = number  # in a list of parameters or initialisers, the last line with a brace at its end
            while head and (lines[head - 1].endswith((",", "(")) or lines[head].lstrip().startswith(":")):
                head -= 1
            if lines[head].lstrip().startswith("requires(const"):  # part of a concept
                number += 1
                continue
            left = re.match(r"\s*", lines[head])[0]
            end = next((n for n in range(number + 1, len(lines)) if lines[n].startswith(left + "}")), number)
            found = NAME.search(lines[head].split(" : ")[0])
            branches = sum(len(BRANCH.findall(TEXT_OR_COMMENT.sub("", line))) for line in lines[head:end + 1])
            yield end - head + 1, 1 + branches, found[1] if found else "", head + 1
            number = end
        number += 1


class Count:
    def __init__(self, revision):
        self.rooms, self.files, self.places = collections.Counter(), collections.Counter(), collections.Counter()
        self.lengths, self.functions = [], []
        for path, text in files_of(revision):
            room = CODE.match(path)[2] or "."
            code = [line for line in text.splitlines() if not NOTHING.match(line)]
            self.rooms[room] += len(code)
            if room.split("/")[0] not in UNCOUNTED:
                self.places["src" if path.startswith("src/") else "-inl.hpp" if path.endswith("-inl.hpp") else "include"] += len(code)
            self.files[room] += 1
            self.lengths += map(len, code)
            self.functions += [(lines, f"{path}:{number}", complexity, name) for lines, complexity, name, number in functions_of(text)]

    def total(self):
        return sum(lines for room, lines in self.rooms.items() if room.split("/")[0] not in UNCOUNTED)

    def share(self, *places):
        return 100 * sum(self.places[place] for place in places) / self.total()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", nargs="?")
    parser.add_argument("after", nargs="?")
    chosen = parser.parse_args()
    try:
        counts = [Count(chosen.before), Count(chosen.after)] if chosen.before else [Count(None)]
    except subprocess.CalledProcessError as failed:
        sys.exit(f"lines.py: {failed.stderr.strip()}")
    rooms = sorted(set().union(*(count.rooms for count in counts)))
    for room in rooms:
        print(f"{room:32}" + "".join(f"{count.rooms[room]:8}{count.files[room]:5} files" for count in counts))
    print(f"{'in all':32}" + "".join(f"{count.total():8}{sum(count.files.values()):5} files" for count in counts))
    print("median length of a line        " + "".join(f"{statistics.median(count.lengths):8.0f}" + " " * 11 for count in counts))
    print("share of include                " + "".join(f"{count.share('include'):8.1f} % without -inl.hpp, {count.share('include', '-inl.hpp'):.1f} % with" for count in counts))
    for count in counts:
        longest = sorted(count.functions, reverse=True)[:3]
        print("longest functions: " + ", ".join(f"{where} ({lines} lines)" for lines, where, *_ in longest))


if __name__ == "__main__":
    main()
