#!/usr/bin/env python3
"""Breaks lines of the library one at a time and says which of them no test notices.

A mutation is a small edit of one line: a comparison, a sign, a constant, a call or an assignment that is dropped. It is
caught when a test of its room fails, hangs or crashes. What survives is a line without a test, or a line without a use.

The mutations are made in a git worktree of HEAD below --work, which is built there; your own tree is never touched.

  tools/mutate.py                          10 lines that the last commit changed
  tools/mutate.py --since v0.1 --lines 40  40 lines that changed since a revision
  tools/mutate.py --all --lines 60         60 lines, as many from each room as can be
  tools/mutate.py --list                   only what would be broken

Exit status: 0 all caught; 1 some survived, or no edit compiles; 2 wrong arguments, no line to break, or the tests fail on the unbroken tree.
"""
import argparse
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Room: targets to build, then tests to run (regular expressions of CTest, one after the other), for the files whose path
# begins with it. The longest that fits counts.
ROOMS = {
    "core": ("test_core test_codecs test_train muster-info muster-data muster-launch", "^test_(core|codecs|train):",
             "^programs: muster-"),
    "core/codec": ("test_codecs test_codecs_portable test_compress", "^test_(codecs|codecs_portable|compress):"),
    "core/device": ("test_nccl_double", "^test_nccl_double:"),
    "core/update": ("test_core test_train test_ps_job", "^test_(core|train|ps_job):"),
    "data": ("test_data test_pipeline muster-data", "^test_(data|pipeline):", "^programs: muster-data"),
    "comm": ("test_comm test_tcp test_program test_over_processes test_survivors test_trouble test_chosen",
             "^test_(comm|tcp):", "^comm: (the first|collectives|trouble|survivors, (kill|leave|abort))"),
    "comm/collectives": ("test_comm test_over_processes", "^test_comm:", "^comm: collectives"),
    "comm/algorithms": ("test_comm test_over_processes", "^test_comm:", "^comm: collectives"),
    "comm/bootstrap": ("test_store test_store_worker test_opened test_comm test_program test_trouble test_chosen",
                       "^test_(store|comm):", "^comm: (the store|the first|rank|trouble|survivors, (leave|abort))"),
    "comm/net": ("test_net test_store test_store_worker test_tcp test_opened test_over_processes",
                 "^test_(net|store|tcp):", "^comm: (the store|collectives.*tcp)"),
    "comm/bootstrap/stores/etcd": ("test_store test_store_worker", "^test_store:"),
    "comm/transports/nccl": ("test_nccl_double", "^test_nccl_double:"),
    "comm/transports/mpi": ("test_comm test_program test_over_processes test_adopt test_trouble",
                            "^comm: (the first|collectives|a program's own|trouble).*(mpi|ranks)"),
    "comm/transports/shm": ("test_comm test_over_processes test_survivors test_trouble test_chosen",
                            "^test_comm:", "^comm: .*shm"),
    "comm/transports/tcp": ("test_tcp test_comm test_net test_store test_store_worker test_over_processes "
                            "test_survivors test_trouble",
                            "^test_(tcp|net|comm|store):", "^comm: .*tcp"),
    "comm/transports/hierarchical": ("test_comm test_over_processes test_survivors test_traffic",
                                     "^test_comm:", "^comm: .*hierarchical"),
    "serve": ("test_serve", "^test_serve:"),
    "elastic": ("test_session test_membership test_state test_elastic_worker muster-launch muster-store",
                "^test_(session|membership|state):", "^elastic: "),
    "ps": ("test_ps test_ps_job test_ps_process muster-launch muster-store", "^test_(ps|ps_job):", "^parameter server: "),
    "train": ("test_train test_gradients test_compress test_checkpoint test_session test_state test_training_program "
              "test_bereaved muster-launch",
              "^test_(train|gradients|compress|checkpoint|session|state):", "^train: "),
    "train/device": ("test_nccl_double", "^test_nccl_double:"),
    "programs": ("muster-info muster-data muster-launch muster-store test_elastic_worker cnn logistic_regression predict resnet vgg16",
                 "^programs: ", "^elastic: .*launch"),
}

# (name, pattern, replacement). Spaces around an operator tell comparisons from templates.
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
]
CALL = re.compile(r"^(\s*)(\(void\))?[A-Za-z_][\w:.>\-\[\]]*\(.*\);$")
ASSIGNMENT = re.compile(r"^(\s*)[A-Za-z_][\w.\[\]]*(->[\w.\[\]]+)* [+\-*|&]?= .*;$")
RETURN = re.compile(r"^(\s*)return (?!false|true|\{\})[^;]+;$")
# Lines that no test is asked to notice: texts for people, includes, assertions of the compiler, mere declarations.
PASSED_OVER = re.compile(r'^\s*(//|#|\*|static_assert|using |namespace |template|requires|case |default:|friend |'
                         r'class |struct |enum |public:|private:|throw |\[\[nodiscard\]\]|log\(|")')


def run(*words):
    return subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE, cwd=ROOT).stdout


def room_of(path):
    """The key of ROOMS for a file such as src/comm/transports/tcp/link.cpp."""
    rest = path.removeprefix("include/muster/").removeprefix("src/")
    fits = [room for room in ROOMS if rest.startswith(room + "/")]
    return max(fits, key=len, default=None)


def edits_of(line):
    """All mutations of one line, as (name, new line)."""
    if PASSED_OVER.match(line) or not line.strip():
        return []
    code, comment = line, ""
    if "//" in line:
        at = line.index("//")
        code, comment = line[:at].rstrip(), "  " + line[at:]
    bare = re.sub(r'"(\\.|[^"\\])*"', lambda text: '"' + "\x00" * (len(text.group()) - 2) + '"', code)  # no texts
    found = []
    for name, pattern, new in EDITS:
        for hit in re.finditer(pattern, bare):
            found.append((name, code[:hit.start()] + new + code[hit.end():] + comment))
    if hit := CALL.match(code) or (ASSIGNMENT.match(code)):
        found.append(("statement dropped", hit.group(1) + ";" + comment))
    if hit := RETURN.match(code):
        found.append(("return of a default", hit.group(1) + "return {};" + comment))
    return found


def changed_lines(since):
    """{file: line numbers} of what was added or changed in include and src since a revision, as they are in HEAD."""
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
    """{room: [(file, line number, line)]} of the lines that can be broken, in the order of the files."""
    changed = None if arguments.all else changed_lines(arguments.since)
    rooms = {}
    for path in run("git", "ls-files", "include", "src").split():
        if not path.endswith((".hpp", ".cpp", ".cu")) or (changed is not None and path not in changed):
            continue
        room = room_of(path)
        if room is None or any(re.search(pattern, path) for pattern in arguments.exclude):
            continue
        for number, line in enumerate(run("git", "show", f"HEAD:{path}").splitlines(), 1):
            if (changed is None or number in changed[path]) and edits_of(line):
                rooms.setdefault(room, []).append((path, number, line))
    return rooms


def draw(rooms, count, chance):
    """Lines from every room in turn, until there are enough."""
    left = {room: chance.sample(lines, len(lines)) for room, lines in sorted(rooms.items())}
    drawn = []
    while len(drawn) < count and any(left.values()):
        for room in left:
            if left[room] and len(drawn) < count:
                drawn.append((room, *left[room].pop()))
    return drawn


class Tree:
    """A worktree of HEAD with a build of its own."""

    def __init__(self, work, options):
        self.root = pathlib.Path(work).resolve() / "tree"
        self.build = self.root / "build" / "mutate"
        head = run("git", "rev-parse", "HEAD").strip()
        if self.root.exists():
            run("git", "-C", self.root, "checkout", "--quiet", "--force", "--detach", head)
        else:
            run("git", "worktree", "prune")
            run("git", "worktree", "add", "--quiet", "--detach", str(self.root), head)
        run("cmake", "-S", str(self.root), "-B", str(self.build), "-DCMAKE_BUILD_TYPE=Release",
            "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG", "-DMUSTER_BUILD_BENCHMARKS=OFF", *options)

    def compile(self, targets):
        done = subprocess.run(["cmake", "--build", str(self.build), "--parallel", "--target", *targets.split()],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode == 0, done.stdout

    def first_failure(self, tests, limit):
        """The name of a test that fails twice, or None; a run that outlasts the limit has failed."""
        for some in tests:
            words = ["ctest", "--test-dir", str(self.build), "-R", some, "-LE", "long", "--stop-on-failure",
                     "--repeat", "until-pass:2", "--parallel", str(2 * (os.cpu_count() or 1)), "--no-tests=error"]
            with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  start_new_session=True) as going:
                try:
                    text, _ = going.communicate(timeout=limit)
                except subprocess.TimeoutExpired:
                    os.killpg(going.pid, signal.SIGKILL)
                    return "a hang"
            if going.returncode != 0:
                if "No tests were found" in text:
                    raise SystemExit(f"tools/mutate.py: no test matches '{some}'; mend ROOMS")
                failed = re.findall(r"^\s*\d+ - (.*) \(", text, re.M)
                return failed[0] if failed else "a test"
        return None


def break_line(tree, room, path, number, line, chance, limit):
    """Tries the edits of one line until one compiles; the result as a row, or None when none does."""
    file = tree.root / path
    whole = file.read_text()
    targets, *tests = ROOMS[room]
    edits = edits_of(line)
    chance.shuffle(edits)
    try:
        for name, new in edits[:4]:
            lines = whole.split("\n")
            lines[number - 1] = new
            file.write_text("\n".join(lines))
            built, _ = tree.compile(targets)
            if built:
                return {"place": f"{path}:{number}", "edit": name, "line": line.strip(), "new": new.strip(),
                        "caught_by": tree.first_failure(tests, limit)}
    finally:
        file.write_text(whole)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", default="HEAD~1", metavar="REV", help="lines that changed since (default: HEAD~1)")
    parser.add_argument("--all", action="store_true", help="any line")
    parser.add_argument("--lines", type=int, default=10, metavar="N", help="how many (default: 10)")
    parser.add_argument("--seed", default="", metavar="TEXT", help="of the draw (default: the hash of HEAD)")
    parser.add_argument("--exclude", action="append", default=[], metavar="REGEX", help="paths that are left out")
    parser.add_argument("--timeout", type=float, default=600, metavar="S",
                        help="of the tests of one line; longer is a hang (default: 600)")
    parser.add_argument("--work", default=ROOT / "build" / "mutate", metavar="DIR", help="default: build/mutate")
    parser.add_argument("--option", action="append", default=[], metavar="-D...", help="for CMake")
    parser.add_argument("--list", action="store_true", help="print what would be broken, and end")
    parser.add_argument("--json", metavar="FILE", help="write the rows there, too")
    arguments = parser.parse_args()

    chance = random.Random(arguments.seed or run("git", "rev-parse", "HEAD").strip())
    drawn = draw(candidates(arguments), arguments.lines, chance)
    if not drawn:
        print("tools/mutate.py: there is no line to break (none that changed is of a room here); give another --since, or --all",
              file=sys.stderr)
        return 2
    if arguments.list:
        for _, path, number, line in drawn:
            print(f"{path}:{number}: {line.strip()}")
        return 0
    tree = Tree(arguments.work, arguments.option)
    rooms = sorted({room for room, *_ in drawn})
    for room in rooms:  # the unbroken tree
        built, text = tree.compile(ROOMS[room][0])
        failed = tree.first_failure(ROOMS[room][1:], arguments.timeout) if built else text[-2000:]
        if failed:
            print(f"tools/mutate.py: the tests of {room} fail without a mutation ({failed}); mend that first",
                  file=sys.stderr)
            return 2
    rows = []
    for room, path, number, line in drawn:
        row = break_line(tree, room, path, number, line, chance, arguments.timeout)
        if row is None:
            print(f"no edit compiles   {path}:{number}: {line.strip()}", flush=True)
            continue
        rows.append(row)
        print(f"{'caught' if row['caught_by'] else 'SURVIVED':8} {row['place']}: {row['edit']}: {row['new']}"
              f"{'   by ' + row['caught_by'] if row['caught_by'] else ''}", flush=True)
        if arguments.json:
            pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")
    caught = sum(1 for row in rows if row["caught_by"])
    print(f"{caught} of {len(rows)} caught ({100 * caught / max(len(rows), 1):.0f} %)")
    return 0 if rows and caught == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
