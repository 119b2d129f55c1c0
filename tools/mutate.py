#!/usr/bin/env python3
"""Breaks lines of the library one at a time and reports the lines that no test notices.

A mutation is a small edit of a line: a comparison, a sign, a constant, a lock, a memory order, a call or an assignment
that is dropped. It is caught if a test fails, hangs or crashes that passes without it. The tests of its room (tools/rooms.py)
run with the mutation alone. Wider tests then run with all survivors at once, and each test that fails with each of the
survivors alone, until no test fails. A mutation survives on a line without a test, or on a line without a use. Tests
seldom notice a lock or a memory order, ThreadSanitizer does: --option=-DMUSTER_SANITIZE=thread.

The mutations are made in a git worktree of HEAD below --work, which is built there; your own tree is never touched. Before
tests run, all their programs are built, also after the mutation is undone.

  tools/mutate.py                          10 lines that the last commit changed
  tools/mutate.py --since v0.1 --lines 40  40 lines that changed since a revision
  tools/mutate.py --all --lines 60         60 lines, as equally from each room as possible
  tools/mutate.py --list                   only lists the edits
  tools/mutate.py --all --lines 60 --json rows.json --tier room
  tools/mutate.py --all --lines 60 --json rows.json   continues: existing rows are not repeated, except rows that
                                                      survived a smaller tier

Exit status: 0 all caught; 1 some survived, or no edit compiles; 2 wrong arguments, or no line to break.
"""
import argparse
import json
import os
import pathlib
import random
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
CORES = os.cpu_count() or 1
sys.path.insert(0, str(ROOT / "tools"))
import rooms  # noqa: E402

# (name, pattern, replacement). Spaces around an operator distinguish comparisons from templates.
EDITS = [
    ("<= to <", r" <= ", " < "),
    ("< to <=", r" < ", " <= "),
    (">= to >", r" >= ", " > "),
    ("> to >=", r" > ", " >= "),
    ("== to !=", r" == ", " != "),
    ("!= to ==", r" != ", " == "),
    ("&& to ||", r" && ", " || "),
    ("|| to &&", r" \|\| ", " && "),
    ("+ to -", r" \+ ", " - "),
    ("- to +", r" - ", " + "),
    ("+= to -=", r" \+= ", " -= "),
    ("++ to --", r"\+\+", "--"),
    ("true to false", r"\btrue\b", "false"),
    ("false to true", r"\bfalse\b", "true"),
    ("! dropped", r"!(?=[A-Za-z_(])", ""),
    ("0 to 1", r"(?<![\w.])0(?![\w.])", "1"),
    ("1 to 2", r"(?<![\w.])1(?![\w.])", "2"),
    ("memory order relaxed", r"\bmemory_order(_|::)(acquire|release|acq_rel|seq_cst)\b", r"memory_order\1relaxed"),
    ("lock dropped", r"^\s*(const )?std::(lock_guard|scoped_lock)\b.*;$", ";"),
]
CALL = re.compile(r"^(\s*)(\(void\))?[A-Za-z_][\w:.>\-\[\]]*\(.*\);$")
ASSIGNMENT = re.compile(r"^(\s*)[A-Za-z_][\w.\[\]]*(->[\w.\[\]]+)* [+\-*|&]?= .*;$")
RETURN = re.compile(r"^(\s*)return (?!false|true|\{\})[^;]+;$")
# Lines that no test has to notice: texts for people, includes, assertions of the compiler, declarations.
PASSED_OVER = re.compile(r'^\s*(//|#|\*|static_assert|using |namespace |template|requires|case |default:|friend |'
                         r'class |struct |enum |public:|private:|throw |\[\[nodiscard\]\]|log\(|")')


TESTS_ALONE = 12  # tests that fail with all mutations, to run with each mutation alone


def run(*words):
    return subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE, cwd=ROOT).stdout


def pattern_of(names):
    """Returns a regular expression of CTest that matches only these tests."""
    escaped = (re.sub(r"([][+.*()^$?|\\])", r"\\\1", name) for name in names)
    return f"^({'|'.join(escaped)})$"


def edits_of(line):
    """Returns the mutations of a line, as (name, new line)."""
    if PASSED_OVER.match(line) or not line.strip():
        return []
    code, comment = line, ""
    if "//" in line:
        at = line.index("//")
        code, comment = line[:at].rstrip(), "  " + line[at:]
    # without the contents of texts
    bare = re.sub(r'"(\\.|[^"\\])*"', lambda text: '"' + "\x00" * (len(text.group()) - 2) + '"', code)
    found = []
    for name, pattern, new in EDITS:
        for hit in re.finditer(pattern, bare):
            found.append((name, code[:hit.start()] + hit.expand(new) + code[hit.end():] + comment))
    if hit := CALL.match(code) or (ASSIGNMENT.match(code)):
        found.append(("statement dropped", hit.group(1) + ";" + comment))
    if hit := RETURN.match(code):
        found.append(("return of a default", hit.group(1) + "return {};" + comment))
    return found


def changed_lines(since):
    """Returns {file: line numbers} of the lines in include and src that were added or changed since a revision, as in
    HEAD."""
    lines, path = {}, None
    for text in run("git", "diff", "--unified=0", since, "HEAD", "--", "include", "src").splitlines():
        if text.startswith("+++ "):
            path = text[6:] if text.startswith("+++ b/") else None
        elif text.startswith("@@") and path:
            start, _, count = re.search(r"\+(\d+)(,(\d+))?", text).groups()
            first = int(start)
            lines.setdefault(path, set()).update(range(first, first + int(count or 1)))
    return lines


def candidates(arguments):
    """Returns {room: [(file, line number, line)]} of the lines that can be broken, in the order of the files."""
    changed = None if arguments.all else changed_lines(arguments.since)
    found = {}
    for path in run("git", "ls-files", "include", "src").split():
        if not path.endswith((".hpp", ".cpp", ".cu")) or (changed is not None and path not in changed):
            continue
        room = rooms.room_of(path)
        if room is None or any(re.search(pattern, path) for pattern in arguments.exclude):
            continue
        for number, line in enumerate(run("git", "show", f"HEAD:{path}").splitlines(), 1):
            if (changed is None or number in changed[path]) and edits_of(line):
                found.setdefault(room, []).append((path, number, line))
    return found


def draw(lines_of, count, chance):
    """Returns lines from every room in turn, until there are enough."""
    left = {room: chance.sample(lines, len(lines)) for room, lines in sorted(lines_of.items())}
    drawn = []
    while len(drawn) < count and any(left.values()):
        for room in left:
            if left[room] and len(drawn) < count:
                drawn.append((room, *left[room].pop()))
    return drawn


class Tree:
    """A worktree of HEAD with a separate build."""

    def __init__(self, work, options):
        self.root = pathlib.Path(work).resolve() / "tree"
        self.build = self.root / "build" / "mutate"
        self.unsound = set()   # tests that fail without a mutation: they catch nothing
        self.together = set()  # tests that fail with several mutations only
        head = run("git", "rev-parse", "HEAD").strip()
        if self.root.exists():  # may contain the mutation of an interrupted run
            run("git", "-C", self.root, "checkout", "--quiet", "--force", "--detach", head)
        else:
            run("git", "worktree", "prune")
            run("git", "worktree", "add", "--quiet", "--detach", str(self.root), head)
        query = self.build / ".cmake/api/v1/query"
        query.mkdir(parents=True, exist_ok=True)
        (query / "codemodel-v2").touch()
        run("cmake", "-S", str(self.root), "-B", str(self.build), "-DCMAKE_BUILD_TYPE=Release", "-DMUSTER_BUILD_TESTS=ON",
            "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG", *options)

    def compile(self, chosen):
        """Builds the programs that the tests with these names run."""
        outputs = rooms.outputs(self.build)
        targets = rooms.programs_of(rooms.listed(self.build), chosen, self.build, outputs) & set(outputs.values())
        if not targets:
            return True
        done = subprocess.run(["cmake", "--build", str(self.build), "--parallel", str(CORES), "--target", *sorted(targets)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode == 0

    def names(self, some, labels):
        """Returns the matching tests without the labels."""
        return [test["name"] for test in rooms.listed(self.build) if re.search(some, test["name"]) and
                not any(re.search(labels, label) for label in rooms.properties(test).get("LABELS", []))]

    def failures(self, some, labels="^$", every=False):
        """Returns the first matching test without the labels that fails twice, as a list; with `every` all such tests."""
        words = ["ctest", "--test-dir", str(self.build), "-R", some, "-LE", labels, "--no-tests=error",
                 "--repeat", "until-pass:2", "--parallel", str(2 * CORES)]
        if not every:
            words.append("--stop-on-failure")
        if left_out := self.unsound | self.together:
            words += ["-E", pattern_of(left_out)]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        failed = re.findall(r"^\s*\d+ - (.*) \(", done.stdout, re.M)
        if done.returncode != 0 and not failed:
            raise SystemExit(f"tools/mutate.py: no test matches '{some}' (see tools/rooms.py): {done.stdout[-500:]}")
        return failed

    def failures_unbroken(self, names, every=False):
        """Returns the tests with these names that fail without a mutation."""
        self.compile(names)
        return self.failures(pattern_of(names), every=every)


class Mutations:
    """Edits of single lines, given as (path, line number, new line), which can be made and undone together."""

    def __init__(self, tree, edits):
        self.whole, self.broken, self.tree = {}, {}, tree
        for path, number, new in edits:
            file = tree.root / path
            self.whole.setdefault(file, file.read_text())
            lines = self.broken.get(file, self.whole[file]).split("\n")
            lines[number - 1] = new
            self.broken[file] = "\n".join(lines)

    def __enter__(self):
        for file, text in self.broken.items():
            file.write_text(text)

    def __exit__(self, *_):
        for file, text in self.whole.items():
            file.write_text(text)

    def caught_by(self, stage, labels):
        """Returns the test that notices the mutations, or None; False if they do not compile."""
        while True:
            with self:
                if not self.tree.compile(self.tree.names(stage, labels)):
                    return False
                failed = self.tree.failures(stage, labels)
            if not failed:
                return None
            if not (unsound := self.tree.failures_unbroken(failed)):
                return failed[0]
            self.tree.unsound.update(unsound)


def break_line(tree, drawn, seed, labels):
    """Tries the edits of a line until one compiles, by the tests of its room; returns the result as a row."""
    room, path, number, line = drawn
    row = {"place": f"{path}:{number}", "line": line.strip(), "room": room, "tier": "room", "edit": None, "caught_by": None}
    edits = edits_of(line)
    random.Random(f"{seed} {path}:{number}").shuffle(edits)
    for name, new in edits[:4]:
        caught_by = Mutations(tree, [(path, number, new)]).caught_by(rooms.ROOMS[room], labels)
        if caught_by is not False:
            return row | {"edit": name, "new": new, "caught_by": caught_by, "by": "room"}
    return row


def break_together(tree, rows, tier):
    """Runs the wider tests with the mutations of all rows made at once, and the tests that fail with each mutation alone.
    Leaves out the caught mutations and repeats, until no test fails. Updates the rows."""
    labels = rooms.TIERS[tier]

    def mutations(some):
        return Mutations(tree, [(path, int(number), row["new"]) for row in some for path, number in [row["place"].split(":")]])
    left = list(rows)
    while left:
        stage = "|".join(sorted({rooms.WIDER[row["room"].split("/")[0]] for row in left} | {rooms.ROOMS[row["room"]] for row in left}))
        with mutations(left):
            failed = tree.failures(stage, labels, every=True) if tree.compile(tree.names(stage, labels)) else None
        if failed is None:
            raise SystemExit("tools/mutate.py: the surviving mutations do not compile together: " +
                             ", ".join(row["place"] for row in left))
        if not failed:
            break
        failed = failed[:TESTS_ALONE]
        tree.unsound.update(tree.failures_unbroken(failed, every=True))
        if not (sound := [name for name in failed if name not in tree.unsound]):
            continue
        caught = []
        for row in left:
            if (by := mutations([row]).caught_by(pattern_of(sound), labels)) is not None:
                row |= {"caught_by": by or "the compiler", "by": "wider", "tier": tier}
                caught.append(row)
        left = [row for row in left if row not in caught]
        if not caught:  # only several mutations together fail these tests
            tree.together.update(sound)
    for row in left:
        row["tier"] = tier


def verdict(row):
    if row["edit"] is None:
        return f"no edit compiles   {row['place']}: {row['line']}"
    return (f"{'caught' if row['caught_by'] else 'SURVIVED':8} {row['place']}: {row['edit']}: {row['new'].strip()}"
            f"{'   by ' + row['caught_by'] if row['caught_by'] else ''}")


def save(file, rows):
    """Writes the rows, completely even if the run is interrupted."""
    if file:
        partial = file.with_name(file.name + ".partial")
        partial.write_text(json.dumps(list(rows.values()), indent=1) + "\n")
        partial.replace(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", default="HEAD~1", metavar="REV", help="lines that changed since (default: HEAD~1)")
    parser.add_argument("--all", action="store_true", help="any line")
    parser.add_argument("--lines", type=int, default=10, metavar="N", help="how many (default: 10)")
    parser.add_argument("--seed", default="", metavar="TEXT", help="of the draw (default: the hash of HEAD)")
    parser.add_argument("--exclude", action="append", default=[], metavar="REGEX", help="paths that are left out")
    parser.add_argument("--tier", choices=list(rooms.TIERS), default="default", help="of tests; room: of the room alone")
    parser.add_argument("--work", default=ROOT / "build" / "mutate", metavar="DIR", help="default: build/mutate")
    parser.add_argument("--option", action="append", default=[], metavar="-D...", help="for CMake")
    parser.add_argument("--list", action="store_true", help="print what would be broken, and end")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write the rows there, too, and go on from them")
    arguments = parser.parse_args()

    seed = arguments.seed or run("git", "rev-parse", "HEAD").strip()
    drawn = draw(candidates(arguments), arguments.lines, random.Random(seed))
    if not drawn:
        print("tools/mutate.py: there is no line to break (none that changed is of a room here); give another --since, or --all",
              file=sys.stderr)
        return 2
    if arguments.list:
        for _, path, number, line in drawn:
            print(f"{path}:{number}: {line.strip()}")
        return 0
    rows = {}
    if arguments.json and arguments.json.exists():
        rows = {(row["place"], row["line"]): row for row in json.loads(arguments.json.read_text())}
    tree = Tree(arguments.work, arguments.option)
    for room, path, number, line in drawn:
        key = (f"{path}:{number}", line.strip())
        if key not in rows:
            rows[key] = break_line(tree, (room, path, number, line), seed, rooms.TIERS[arguments.tier])
        if rows[key]["caught_by"] or not rows[key]["edit"] or arguments.tier == "room":
            print(verdict(rows[key]), flush=True)
        save(arguments.json, rows)
    tiers = list(rooms.TIERS)
    survivors = [row for row in rows.values() if row["edit"] and not row["caught_by"] and
                 tiers.index(row["tier"]) < tiers.index(arguments.tier)]
    break_together(tree, survivors, arguments.tier)
    for row in survivors:
        print(verdict(row), flush=True)
    save(arguments.json, rows)
    for name in sorted(tree.unsound):
        print(f"failed without a mutation, and was left out: {name}")
    edited = [row for row in rows.values() if row["edit"]]
    caught = sum(1 for row in edited if row["caught_by"])
    print(f"{caught} of {len(edited)} caught ({100 * caught / max(len(edited), 1):.0f} %), "
          f"{sum(1 for row in edited if row['caught_by'] and row['by'] == 'room')} by the tests of their room")
    return 0 if edited and caught == len(edited) else 1


if __name__ == "__main__":
    sys.exit(main())
