"""Tests muster-data from the outside: its output can be read, damage is found, and the exit status is right.
usage: muster_data.py MUSTER_DATA"""
import gzip
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

program = sys.argv[1]


def run(*arguments, status=0):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == status, (arguments, done.returncode, done.stdout, done.stderr)
    if status in (1, 2) or (status == 3 and not done.stdout):
        assert done.stderr.startswith("muster-data: ") and done.stderr.count("\n") == 1, done.stderr
    else:
        progress = re.compile(r"\S+ \d+ of \d+ records, .*|(opens|reads) .*, \d+ s.*")  # from 10 s on, on a busy machine
        assert not [line for line in done.stderr.splitlines() if not progress.fullmatch(line)], done.stderr
    return done


peak = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, timeout=600); " \
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"


def gzipped(path):
    with path.open("rb") as plain, gzip.open(str(path) + ".gz", "wb", compresslevel=1) as packed:
        shutil.copyfileobj(plain, packed)
    return str(path) + ".gz"


def sparse_of(path):
    target = path.with_suffix(".svm")
    block = "".join(f"{i % 2} 3:{i} {7 + i % 100}:1 1000:{i / 9}\n" for i in range(10000))
    with target.open("w") as file:
        while file.tell() < 320 << 20:
            file.write(block)
    return target


def report(*arguments, status=0):
    return json.loads(run(*arguments, "--json", status=status).stdout)


def npy(values, descr, shape):
    """Returns the bytes of an NPY file."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}"
    header = header.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + values


def check_inspect(folder):
    """Compares the report of inspect on each format with the file that the test wrote."""
    table = "n,city,y\n1,rome,0\n,oslo,1\n3,rome,x\n"
    (folder / "t.csv").write_text(table)
    (folder / "bare.csv").write_text("1;2;0\n3;4;1\n")
    (folder / "t.csv.gz").write_bytes(gzip.compress(table.encode()))
    for name, compression in (("t.csv", None), ("t.csv.gz", "gzip")):
        seen = report("inspect", f"csv:{folder}/{name}?label=y&ignore=city&missing=nan")
        assert (seen["header"], seen["columns"], seen.get("compression")) == ("first row", ["n"], compression), seen
        assert seen["missing_in_first"] == {"records": 3, "by_column": {"n": 1}} and seen["bad"] == 1, seen
        assert [(each["labels"], each["values"]) for each in seen["samples"]] == [({"label": 0}, {"n": 1}), ({"label": 1}, {"n": "nan"})], seen
        assert "'x'" in seen["first_bad"]["problem"] and seen["first_bad"]["id"] == 2, seen
    bare = report("inspect", f"csv:{folder}/bare.csv?label=2&delimiter=;&header=0")
    assert bare["header"] == "none" and bare["samples"][1]["values"] == {"0": 3, "1": 4}, bare
    (folder / "t.jsonl").write_text('{"a": 1, "kind": "cat"}\n{"a": 2, "kind": "dog"}\n')
    lines = report("inspect", f"jsonl:{folder}/t.jsonl?label=kind&classes=cat,dog")
    assert lines["classes"] == ["cat", "dog"] and lines["columns"] == ["a"], lines
    assert [each["labels"]["class"] for each in lines["samples"]] == ["cat", "dog"], lines
    (folder / "t.svm").write_text("1 3:0.5 7:2\n-1 1:1\n")
    sparse = report("inspect", f"libsvm:{folder}/t.svm")
    assert [(each["labels"]["label"], each["values"]) for each in sparse["samples"]] == [(1, {"2": 0.5, "6": 2}), (-1, {"0": 1})], sparse
    for descr, code, values in (("<f8", "d", [0.5, -2, float("inf"), 1e300]), ("<i8", "q", [1 << 62, -1, 0, 3]), ("|u1", "B", [0, 255, 7, 9])):
        (folder / "x.npy").write_bytes(npy(struct.pack(f"<4{code}", *values), descr, (2, 2)))
        seen = report("inspect", f"npy:{folder}/x.npy")
        shown = [each for sample in seen["samples"] for each in list(sample["values"].values())[0]]
        assert [float(each) for each in shown] == [float(each) for each in values], (descr, seen)
    (folder / "x.raw").write_bytes(b"".join(bytes([k]) * 12 for k in range(3)))
    raw = report("inspect", f"raw:{folder}/x.raw?type=uint8&shape=12")
    assert raw["records"] == 3 and list(raw["samples"][1]["values"].values())[0] == [1] * 8, raw  # the first 8 values


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "formats").mkdir()
    check_inspect(folder / "formats")
    table = folder / "table.csv"
    table.write_text("a,b,label\n" + "".join(f"{i},{i * i / 8},{i % 3}\n" for i in range(1000)))
    source = f"csv:{table}?label=label"

    made = report("convert", source, folder / "set", "--files", 3)
    assert (made["records"], made["files"], made["left_out"]) == (1000, 3, 0), made
    few = folder / "few.csv"
    few.write_text("a,b,label\n" + "".join(f"{i},{i / 8},{i % 3}\n" for i in range(10)))
    few_files = report("convert", f"csv:{few}?label=label", folder / "few", "--files", 20)
    assert (few_files["records"], few_files["files"]) == (10, 10), few_files  # no file is empty
    one = report("convert", source, folder / "one.muster")
    small = report("reshard", folder / "set", folder / "small", "--file-bytes", "1KiB")
    assert small["files"] == 8, small
    assert report("reshard", folder / "set", folder / "single", "--file-bytes", 1)["files"] == 1000  # a record is not cut
    assert made["digest"] == one["digest"] == small["digest"]
    seen = report("inspect", folder / "set")
    assert seen["records"] == 1000 and seen["record_bytes"] == 8 and seen["digest"] == made["digest"], seen
    assert [file["records"] for file in seen["files"]] == [333, 333, 334], seen
    assert "records       1000" in run("inspect", f"records:{folder}/set").stdout

    grown = report("convert", source, folder / "set", "--append")
    assert report("inspect", folder / "set")["records"] == 2000, grown
    run("convert", source, folder / "set", status=2)  # refuses to overwrite

    # Shards, some in other folders.
    weighted = report("shard", source, "--out", folder / "weighted", "--by", "weights:2,1,1")
    assert weighted["shards"] == [500, 250, 250] and weighted["files"] == 3, weighted
    assert weighted["digest"] == made["digest"] and report("verify", f"shards:{folder}/weighted")["records"] == 1000
    by_label = report("shard", source, "--out", folder / "by_label", "--shards", 8, "--by", "hash:label")
    assert sorted(set(by_label["shards"]) - {0}, reverse=True)[0] >= 333 and sum(by_label["shards"]) == 1000, by_label
    assert report("shard", source, "--out", folder / "by_label", "--shards", 8, "--by", "hash:label",
                  "--append")["shards"] == by_label["shards"]
    manifest = (folder / "by_label" / "MANIFEST").read_bytes()
    for words, problem in ((["--shards", 6, "--by", "hash:label"], "in 8 shards by hash:label, and the new records in 6 shards by hash:label"),
                           (["--shards", 8], "and the new records in 8 shards by range"), (["--shards", 8, "--by", "hash:record"], "by hash:record")):
        assert problem in run("shard", source, "--out", folder / "by_label", *words, "--append", status=2).stderr, words
    assert "and the new records in no shards" in run("convert", source, folder / "by_label", "--append", status=2).stderr
    assert "its records are in no shards" in run("shard", source, "--out", folder / "set", "--shards", 2, "--append", status=2).stderr
    assert (folder / "by_label" / "MANIFEST").read_bytes() == manifest
    assert not [file for file in (folder / "by_label").iterdir() if file.name.startswith(".")]
    (folder / "users.csv").write_text("user,x,price\n" + "".join(f"{k % 40},{k},{k / 2}\n" for k in range(400)))
    users = f"csv:{folder}/users.csv?label=price"   # as docs/sources.md shows
    by_user = report("shard", users, "--out", folder / "by_user", "--shards", 8, "--by", "hash:user")
    assert sum(by_user["shards"]) == 400 and all(count % 10 == 0 for count in by_user["shards"]), by_user
    assert report("shard", users, "--out", folder / "by_user", "--shards", 8, "--by", "hash:user", "--append")["shards"] == by_user["shards"]
    named = report("convert", source, folder / "named", "--classes", "a,b,c,d,e,f,g,h,i,j")
    assert named["classes"] == list("abcdefghij"), named
    run("convert", source, folder / "unnamed", "--classes", "a,b", status=3)
    for command in (["convert", source, folder / "twice"], ["shard", source, "--out", folder / "twice", "--shards", 2]):
        refused = run(*command, "--classes", "cat,cat,cow", status=2).stderr
        assert "has the class 'cat' twice" in refused and not (folder / "twice").exists(), refused
    by_range = report("shard", folder / "weighted", "--out", folder / "by_range", "--shards", 3)
    assert by_range["shards"] == [333, 334, 333] and by_range["digest"] == made["digest"], by_range
    for words in (["--by", "weights:0,0"], ["--by", "range"], ["--by", "hash:age", "--shards", 2], ["--by", "x"]):
        run("shard", source, "--out", folder / "none", *words, status=2)
        assert not (folder / "none").exists()
    run("shard", source, "--out", folder / "weighted", "--shards", 2, status=2)  # refuses to overwrite
    run("shard", source, "--out", folder / "one.muster", "--shards", 2, status=2)
    gone = sorted((folder / "weighted").glob("shard-00001-*"))[0]
    gone.unlink()
    for command, spec in (("inspect", "shards:{}"), ("verify", "shards:{}"), ("verify", "shards:{}?local")):
        assert gone.name in run(command, spec.format(folder / "weighted"), status=3).stderr, command
    assert report("inspect", f"shards:{folder}/weighted?local")["records"] == 1000
    checked = report("verify", folder / "set")
    assert checked["records"] == 2000 and checked["bytes"] == 16000 and checked["bad"] == 0, checked

    damaged = pathlib.Path(report("inspect", folder / "set")["files"][1]["path"])
    content = bytearray(damaged.read_bytes())
    content[4096 + 8 * 10] ^= 1
    damaged.write_bytes(content)
    found = report("verify", folder / "set", status=3)
    assert found["bad"] == 1 and found["bad_by_file"] == {str(damaged): 1}, found
    assert found["bad_records"][0]["id"] == 343 and found["bad_records"][0]["offset"] == 4096 + 80, found
    run("reshard", folder / "set", folder / "whole", status=3)
    run("reshard", folder / "set", folder / "whole", "--bad", "skip", "--bad-limit", 0, status=3)
    assert not (folder / "whole" / "MANIFEST").exists()  # an unfinished folder has no manifest
    quarantine = folder / "bad.jsonl"
    rest = report("reshard", folder / "set", folder / "whole", "--bad", "quarantine", "--quarantine", quarantine)
    assert rest["records"] == 1999 and rest["left_out"] == 1, rest
    assert json.loads(quarantine.read_text())["id"] == 343
    damaged.write_bytes(content[:-1])
    run("verify", folder / "set", status=3)

    # Bad records are counted if the text is read anyway, and a file with only bad records is an error.
    mixed, wrong = folder / "mixed.csv", folder / "wrong.csv"
    mixed.write_text("a,label\n1,1\nx,1\n")
    wrong.write_text("a,label\nx,1\ny,z\n")
    assert report("inspect", source)["bad"] == 0
    assert report("inspect", f"csv:{mixed}?label=label")["bad"] == 1
    assert report("inspect", f"csv:{wrong}?label=label", status=3)["bad"] == 2
    assert "bad" not in report("inspect", folder / "one.muster")  # only verify reads these records
    infinite = folder / "infinite.svm"
    infinite.write_text("1 1:inf\n")
    for command in [["inspect"], ["verify"]]:
        assert "infinite.svm:1:5: value 'inf'" in run(*command, f"libsvm:{infinite}", status=3).stderr

    # A killed conversion continues where it was, and its output is the same.
    rows = folder / "rows.csv"
    rows.write_text("a,b\n" + "".join(f"{i},{'x' if i % 1000 == 7 else i % 13}\n" for i in range(20000)))
    bounds = ["--file-bytes", "1KiB", "--bad", "skip", "--threads", 2]
    command = [program, "convert", f"csv:{rows}?label=b&bad=keep", folder / "killed", *map(str, bounds)]
    for kills in (1, 2):
        begun = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        notes = []
        while begun.poll() is None and not (notes and notes[0].read_text().count("\n") > 10 * kills):
            notes = list((folder / "killed").glob(".unfinished-*"))
        begun.kill()
        assert begun.wait() == -signal.SIGKILL, "it ended before it was killed"
        assert not (folder / "killed" / "MANIFEST").exists()
    whole = report("convert", f"csv:{rows}?label=b&bad=keep", folder / "whole2", *bounds)
    resumed = report(*command[1:])
    assert whole["left_out"] == resumed["left_out"] == 20 and "resumed_at" not in whole, resumed
    assert resumed["resumed_at"] >= 10 * 256 and resumed["digest"] == whole["digest"], (whole, resumed)
    assert not list((folder / "killed").glob(".unfinished-*"))
    run(*command[1:], status=2)  # it has ended: refuses to overwrite
    # Unfinished files of another conversion are removed by the next one.
    stale = folder / "whole2" / ".unfinished-0123456789abcdef"
    stale.write_bytes((folder / "whole2" / "MANIFEST").read_bytes())
    report("convert", f"csv:{rows}?label=b&bad=keep", folder / "whole2", "--append", *bounds)
    assert not stale.exists() and report("verify", folder / "whole2")["records"] == 2 * 19980

    # A killed conversion does not continue with other data of the same size, even with the same times.
    images = folder / "images"
    (images / "a").mkdir(parents=True)
    for k in range(300):
        (images / "a" / f"{k:03}.jpg").write_bytes(b"old " * 100)
    command = [program, "convert", f"images:{images}", folder / "changed", "--file-bytes", "1KiB", "--threads", "1"]
    begun = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    notes = []
    while begun.poll() is None and not (notes and notes[0].read_text().count("\n") > 10):
        notes = list((folder / "changed").glob(".unfinished-*"))
    begun.kill()
    assert begun.wait() == -signal.SIGKILL, "it ended before it was killed"
    assert not list((folder / "changed").glob("*.tmp"))
    for image in (images / "a").iterdir():
        times = image.stat()
        image.write_bytes(b"new " * 100)
        os.utime(image, ns=(times.st_atime_ns, times.st_mtime_ns))
    made = report(*command[1:])
    assert "resumed_at" not in made and made["records"] == 300, made
    assert len(list((folder / "changed").iterdir())) == made["files"] + 1, "nothing is left of the one before"
    assert b"old " not in b"".join(file.read_bytes() for file in (folder / "changed").glob("*.muster"))

    # If two conversions write into one folder, one adds its records, and the other fails with the reason.
    both = [subprocess.Popen([program, "convert", f"csv:{rows}?label=b&bad=keep", folder / "both", "--bad", "skip", "--file-bytes", size], stderr=subprocess.PIPE,
                             stdout=subprocess.DEVNULL, text=True) for size in ("1KiB", "2KiB")]
    said = [each.communicate()[1] for each in both]
    assert sorted(each.returncode for each in both) == [0, 2], said
    assert sum(text.count("has records already") for text in said) == 1 and "".join(said).count("\n") == 1, said
    assert report("verify", folder / "both")["records"] == 19980
    assert len(list((folder / "both").iterdir())) == len(report("inspect", folder / "both")["files"]) + 1

    # Memory does not grow with the size of the input, plain or compressed, dense or sparse.
    large = folder / "large.csv"
    with large.open("w") as file:
        block = "".join(f"{i},{i / 7},{i % 3}\n" for i in range(10000))
        while file.tell() < 320 << 20:
            file.write(block)
    for given in [f"csv:{large}?label=2", f"csv:{gzipped(large)}?label=2", f"libsvm:{sparse_of(large)}"]:
        limited = subprocess.run([sys.executable, "-c", peak, program, "convert", given, folder / "bounded"],
                                 capture_output=True, text=True, check=True)
        assert int(limited.stdout.split()[-1]) < 256 << 10, (given, limited.stdout)
        shutil.rmtree(folder / "bounded")

    # Statistics of a folder are computed once, and then stored.
    found = report("stats", folder / "killed")
    assert found["records"] == 19980 and found["left_out"] == 0 and found["kept"], found
    assert found["columns"][0]["least"] == 0 and found["columns"][0]["greatest"] == 19999, found
    assert sum(found["histogram"].values()) == 19980 and found["histogram"]["12.0"] > 1000, found
    manifest = (folder / "killed" / "MANIFEST").read_bytes()
    again = report("stats", folder / "killed")
    assert {**again, "seconds": 0} == {**found, "seconds": 0}
    assert (folder / "killed" / "MANIFEST").read_bytes() == manifest
    assert report("inspect", f"records:{folder}/killed?follow")["records"] == 19980
    assert "mean" in run("stats", source).stdout and not report("stats", source)["kept"]

    # A column of a table is a key by its name, a guess is reported, and a label is never invented.
    users = folder / "users.csv"
    users.write_text("user,x,y\n" + "".join(f"{i % 7},{i},{i % 2}\n" for i in range(70)))
    assert sum(report("shard", f"csv:{users}?label=y", "--out", folder / "by-user", "--shards", 2, "--by", "hash:user")["shards"]) == 70
    guessed = subprocess.run([program, "inspect", f"csv:{users}", "--json"], capture_output=True, text=True, check=True)
    assert json.loads(guessed.stdout)["notes"][0] in guessed.stderr and "'user', 'x', 'y'" in guessed.stderr, guessed
    assert "notes" not in report("inspect", f"csv:{users}?label=y")
    users.write_text("user,x,y\n1,2,0\n3,4,\n5,24\" pipe,1\n7,8,1\n")
    for missing in ("fail", "zero", "nan"):
        left = report("convert", f"csv:{users}?label=y&missing={missing}", folder / f"left-{missing}", "--bad", "skip")
        assert (left["records"], left["left_out"]) == (2, 2), left

    run(status=2)
    run("convert", source, status=2)
    run("inspect", "csv:", status=2)
    run("inspect", folder / "nothing", status=2)
    run("inspect", f"csv:{folder}/nothing", status=3)
    run("convert", source, folder / "x", "--bad", "quarantine", status=2)
    parquet = subprocess.run([program, "convert", source, folder / "x.parquet"], capture_output=True, text=True)
    assert parquet.returncode == 0 or "link muster::parquet" in parquet.stderr, parquet
    assert (folder / "x.parquet").exists() == (parquet.returncode == 0)
    assert "one file (its name ends with .parquet)" in run("convert", source, folder / "x.parquet", "--append", status=2).stderr
    run("reshard", source, folder / "x", status=2)
    assert "tfrecord:" in run("--help").stdout
    assert "256MiB" in run("convert", "--help").stdout
