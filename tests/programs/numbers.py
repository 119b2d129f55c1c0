#!/usr/bin/env python3
"""numbers.py PROGRAM...: tests every numeric flag and MUSTER_* variable that the programs' own --help names.

A numeric flag has its range in --help, "(LOW to HIGH)". A value outside the range, or a text that is no decimal number, ends the
program with status 2 and one line that names the flag, the value and the range. A value in the range is accepted. All programs
read muster's own flags by the same functions: one program, drawn at each run, is tested with all values for all its flags. The
others are tested with drawn values: for muster's own flags one refused and one accepted value, for their own flags six
and one.
"""
import concurrent.futures
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

# Placeholders of flags with text values; any other placeholder is a number, or must be added to this list.
TEXTS = {"NAME", "PLACE", "SECRET", "RULES", "FILE", "FOLDER", "PATH", "WHEN", "WHAT", "RANKS", "NAMES", "ADDRESS", "ADDRESSES", "CODEC", "LEVEL", "SPEC",
         "TEXT", "TIME", "WHERE", "STEPS", "NAME,NAME,...", "METRIC=VALUE", "RANK:FACTOR", "epsilon[:ROWS]|clicks[:ROWS]"}
# the last argument: a program that accepts the number ends here, or because of another missing argument
UNKNOWN = "--no-such-flag"
LAUNCHERS = re.compile("^(OMPI_|PMIX_|PMI_|SLURM_|RANK$|WORLD_SIZE$|LOCAL_RANK$|LOCAL_WORLD_SIZE$|MUSTER_)")
CLEAN = {name: value for name, value in os.environ.items() if not LAUNCHERS.match(name)}
HANG = 60 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))  # seconds; a refusal takes milliseconds
SEED = int(os.environ.get("MUSTER_TEST_SEED", random.SystemRandom().randrange(1 << 32)))


class Flag:
    """A numeric argument of a program: a flag or a variable."""

    def __init__(self, program, command, name, placeholder, text, variable):
        self.program, self.command, self.name, self.variable = program, command, name, variable
        self.is_size = placeholder == "BYTES"
        found = re.search(r"\((\d[\d.]*) to (\d[\d.]*)\)", text)
        self.range = found and (found[1], found[2])
        # Numbers with fractions have their own placeholders.
        self.is_whole = placeholder in ("N", "CLOCKS", "BYTES")

    def __str__(self):
        return " ".join([pathlib.Path(self.program).name, *self.command, self.name])

    def refused(self):
        """Returns values that must be refused."""
        values = ["-1", "-3", "99999999999999999999", "-99999999999999999999", "010", "-010", "0x10", "nan", "NaN", "-nan",
                  "inf", "-inf", "+3", " 3", "3 ", "3x", "1_000", "1,5", "three", "--", "1e999"]
        if not self.name.startswith("MUSTER_"):
            values.append("")  # an empty variable counts as unset
        if self.is_whole:
            values += ["1.5", "1.", "1e3"]
        if self.is_size:
            values += ["-1KiB", "010KiB", "1e3KiB", "KiB", "1 KiB", "3XiB", "99999999999GiB"]
        if self.range:
            number = int if self.is_whole else float
            low, high = map(number, self.range)
            values.append(str(high + 1))
            if low > 0:
                values += ["0", "0.0" if not self.is_whole else "00"]
        return values

    def taken(self):
        if not self.range:
            return []
        values = [*self.range]
        if self.is_size:
            values += ["1KiB", "2k", "3MB"]
        if not self.is_whole and float(self.range[0]) <= 0.5 and float(self.range[1]) >= 0.5:
            values += ["0.5", "5e-1"]
        return values

    def run(self, value, *more, environment={}):
        words, variables = [*self.command], {**CLEAN, **environment}
        if self.variable:
            variables[self.name] = value
        else:
            words += [self.name, value]
        return subprocess.Popen([self.program, *words, *more], env=variables, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)

    def problem_of_refusal(self, value, status, out, err):
        if status != 2 or out or len(err.splitlines()) != 1:
            return f"{self} {value!r}: status {status}, {out[-200:]!r}, {err[-300:]!r}"
        if re.match("-[a-z]", value):  # the value may be a flag
            return None if self.name in err else f"{self} {value!r} is refused without its name: {err!r}"
        expected = [f"{self.name} cannot be '{value}'", *(self.range and [f"from {self.range[0]} to {self.range[1]}"] or [])]
        return None if all(word in err for word in expected) else f"{self} {value!r}: {expected} is not in {err!r}"

    def problems(self, draw, count):
        """Tries all values, or with `draw`, `count` refused values and one accepted value."""
        found = [] if self.range else [f"{self}: --help names no range (LOW to HIGH)"]
        refused, taken = self.refused(), self.taken()
        if draw:
            refused, taken = draw.sample(refused, count), taken and [draw.choice(taken)]
        for value in refused:
            found.append(self.problem_of_refusal(value, *ended(self.run(value))))
        for value in taken:
            status, _, err = ended(self.run(value, UNKNOWN))
            if status != 2 or f"cannot be '{value}'" in err or len(err.splitlines()) != 1:
                found.append(f"{self} {value!r} is in the range and not taken: status {status}, {err!r}")
        return [problem for problem in found if problem]

    def problems_of_ranks(self, draw):
        """Runs two processes of a job: both must end with 2 and the same error."""
        value = draw.choice([value for value in self.refused() if not re.match("-[a-z-]", value)])
        with tempfile.TemporaryDirectory(prefix="muster-test-") as folder:
            ranks = [self.run(value, environment={"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MUSTER_JOB": folder,
                                                  "LOCAL_WORLD_SIZE": "2", "MUSTER_TRANSPORT": "shm"})
                     for rank in "01"]
            ends = [ended(rank) for rank in ranks]
        lines = {line for _, _, err in ends for line in err.splitlines()}
        if [status for status, _, _ in ends] != [2, 2] or len(lines) != 1:
            return [f"two ranks of {self} {value!r}: {ends}"]
        return []


def ended(process):
    try:
        out, err = process.communicate(timeout=HANG)
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"none after {HANG} s", "", ""


def asked(program, *words):
    done = subprocess.run([program, *words], env=CLEAN, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0 and not done.stderr, done
    return done.stdout


def help_of(program, *command):
    text = asked(program, *command, "--help")
    return asked(program, *command, "--help-all") if "--help-all" in text else text


def flags_of(program, command=()):
    """Returns the flags of the program, its settings, and its subcommands."""
    flags, others, section = [], [], ""
    lines = re.sub(r"\n {10,}", "  ", help_of(program, *command)).splitlines()  # texts below their flag
    for line in lines:
        section = line if line.endswith(":") else section
        if section == "Subcommands:" and (sub := re.match(r"  ([a-z]+)  ", line)):
            others += flags_of(program, (*command, sub[1]))
        flag = re.match(r"  (?:-\w,)?(--?[a-z][a-z0-9-]*) ([A-Za-z]\S*) (.*)", line)
        if not flag or flag[2].split("=")[0].split(":")[0] in TEXTS or flag[2] in TEXTS:
            continue
        placeholder = re.split("[=:]", flag[2])[0]
        if placeholder.islower():  # the first word of the description of a flag without a value
            continue
        flags.append(Flag(program, command, flag[1], placeholder, flag[3], False))
        if variable := re.search(r", (MUSTER_[A-Z_]+)\]$", line):
            flags.append(Flag(program, command, variable[1], placeholder, flag[3], True))
    return flags + others


draw = random.Random(SEED)
print(f"MUSTER_TEST_SEED={SEED}", flush=True)
all_flags = []
for program in sys.argv[1:]:
    of_program = flags_of(program)
    assert of_program, f"no number is found in what {program} --help prints"
    assert re.fullmatch(r"muster \d+\.\d+\.\d+\n", asked(program, "--version")), f"{program} --version"
    all_flags += of_program
variables = {flag.name for flag in all_flags if flag.variable}
shared = variables | {"--" + name.removeprefix("MUSTER_").lower().replace("_", "-") for name in variables}
in_full = draw.choice([flag.program for flag in all_flags if flag.variable])


def draw_for(flag):
    return random.Random(f"{SEED} {flag}") if flag.program != in_full else None


with concurrent.futures.ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as threads:
    found = list(threads.map(lambda flag: flag.problems(draw_for(flag), 1 if flag.name in shared else 6), all_flags))
    launched = [flag for flag in all_flags if any(other.variable and other.program == flag.program for other in all_flags)]
    found += threads.map(lambda flag: flag.problems_of_ranks(random.Random(f"{SEED} {flag}")), launched)
problems = [problem for some in found for problem in some]
print("\n".join(problems))
print(f"{len(all_flags)} numbers of {len(sys.argv) - 1} programs, {len(problems)} problems")
sys.exit(1 if problems else 0)
