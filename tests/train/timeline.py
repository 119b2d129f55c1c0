#!/usr/bin/env python3
"""Runs a training with --trace and checks the file: complete JSON, every rank with its rows, correctly placed events.

usage: timeline.py PROGRAM
"""
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

RANKS = 2
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "trace.json"
    subprocess.run([sys.argv[1], "--ranks", str(RANKS), "--trace", str(path)], check=True, timeout=100)
    events = json.loads(path.read_text())["traceEvents"]

spans = [event for event in events if event["ph"] == "X"]
rows = {(event["pid"], event["tid"]): event["args"]["name"] for event in events
        if event["ph"] == "M" and event["name"] == "thread_name"}
assert {event["pid"] for event in spans} == set(range(RANKS)), "every rank is there"
by_row = collections.defaultdict(list)
for event in spans:
    assert event["dur"] >= 0 and (event["pid"], event["tid"]) in rows, event
    by_row[event["pid"], event["tid"]].append(event)
for rank in range(RANKS):
    kinds = collections.Counter(event["cat"] for event in spans if event["pid"] == rank)
    # The last training wrote the file: epochs 3 to 6 with 500 images in batches of 64.
    steps = [event for event in spans if event["pid"] == rank and event["name"] == "step"]
    assert [event["args"]["number"] for event in steps] == list(range(16, 48)), steps
    assert kinds["bucket"] >= 2 * len(steps) and kinds["communication"] > 0 and kinds["data"] >= len(steps), kinds
    for event in spans:
        if event["pid"] == rank and event["cat"] == "bucket":
            end = event["ts"] + event["dur"] + 1
            assert any(event["ts"] - 1 <= inner["ts"] and inner["ts"] + inner["dur"] <= end for inner in spans
                       if inner["pid"] == rank and inner["cat"] == "transfer"), f"nothing was reduced in {event}"
            assert any(step["ts"] - 1 <= event["ts"] and event["ts"] + event["dur"] <= step["ts"] + step["dur"] + 1
                       for step in steps), f"a bucket outside of all steps: {event}"
for (rank, row), inside in by_row.items():
    inside.sort(key=lambda event: event["ts"])
    for first, second in zip(inside, inside[1:]):
        assert first["ts"] + first["dur"] <= second["ts"] + 0.002, f"two at a time in row {rows[rank, row]} of rank {rank}: {first} {second}"
print(f"{len(spans)} events of {RANKS} ranks")
