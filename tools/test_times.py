#!/usr/bin/env python3
"""Runs the tests of a build and prints each test's processor time.

CTest reports how long a test took, which is mostly waiting. This tool runs CTest once per test, and adds up the processor
times of the processes that the test started, daemons included.

  tools/test_times.py build/release                       all tests, eight at a time
  tools/test_times.py build/release --json times.json -R '^platform'
  tools/test_times.py build/release -LE 'all|long' --least 30    only tests above 30 s in the table

Columns: processor seconds, seconds from start to end, name. Exit status: 0; 1 if a test failed; 2 if there is none.
"""
import argparse
import concurrent.futures
import ctypes
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import time

SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


def tests_of(build, selection):
    """Returns the tests in the form of CTest's JSON."""
    text = subprocess.run(["ctest", "--show-only=json-v1", *selection], cwd=build, check=True, stdout=subprocess.PIPE).stdout
    return json.loads(text)["tests"]


def run_one(build, name, log):
    """Runs one test in a new process, which adopts every process that the test leaves; returns (status, seconds,
    processor seconds)."""
    reader, writer = os.pipe()
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
        with open(log, "ab") as output:
            test = subprocess.Popen(["ctest", "-R", "^" + re.sub(r"([^\w ])", r"\\\1", name) + "$", "-FA", ".*", "--output-on-failure"], cwd=build,
                                    stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        status = None
        while status is None:  # an orphan is reaped at once, as init would do: tests wait for its end
            ended, code = os.waitpid(-1, 0)
            status = os.waitstatus_to_exitcode(code) if ended == test.pid else None
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:  # does not wait for daemons that still run
                pass
        except ChildProcessError:
            pass
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        os.write(writer, json.dumps([status, used.ru_utime + used.ru_stime]).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        status, processor = json.loads(answer.read() or "[1, 0]")
    os.waitpid(child, 0)
    return status, time.monotonic() - begin, processor


def measure(build, tests, jobs, log):
    """Returns {name: row}: the tests that set up a fixture run first, one at a time, then all others."""
    rows = {}

    def row_of(test):
        status, seconds, processor = run_one(build, test["name"], log)
        rows[test["name"]] = {"processor": round(processor, 2), "seconds": round(seconds, 2), "failed": status != 0}

    def sets_up(test):
        return any(item["name"] == "FIXTURES_SETUP" for item in test.get("properties", []))

    def needs(test):
        return any(item["name"] == "FIXTURES_REQUIRED" for item in test.get("properties", []))

    first = [test for test in tests if sets_up(test)]
    for test in sorted(first, key=needs):
        row_of(test)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(row_of, [test for test in tests if not sets_up(test)]))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=4 * (os.cpu_count() or 1), help="tests at a time (default: 4 a core)")
    parser.add_argument("--least", type=float, default=0, metavar="S", help="print only tests of at least S processor seconds")
    parser.add_argument("--json", type=pathlib.Path, help="write all rows there, too")
    parser.add_argument("--log", type=pathlib.Path, default=pathlib.Path("test_times.log"), help="the output of the tests")
    arguments, selection = parser.parse_known_args()
    tests = tests_of(arguments.build, selection)
    if not tests:
        print("tools/test_times.py: no test was selected", file=sys.stderr)
        return 2
    rows = measure(arguments.build, tests, arguments.jobs, arguments.log.resolve())
    ordered = sorted(rows.items(), key=lambda item: -item[1]["processor"])
    for name, row in ordered:
        if row["processor"] >= arguments.least:
            print(f"{row['processor']:9.1f} {row['seconds']:9.1f}  {name}{'   FAILED' if row['failed'] else ''}")
    print(f"{sum(row['processor'] for row in rows.values()):9.1f} {sum(row['seconds'] for row in rows.values()):9.1f}  "
          f"all {len(rows)} tests")
    if arguments.json:
        arguments.json.write_text(json.dumps(dict(ordered), indent=1) + "\n")
    return int(any(row["failed"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
