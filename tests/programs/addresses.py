"""Paths and addresses have the same meaning for every source: %20 is a blank, and an address may have its own query, such as a signature. The query is
sent to the server unchanged and is never shown.
usage: addresses.py MUSTER_DATA [LOGISTIC_REGRESSION]"""
import hashlib
import http.server
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import threading
import urllib.parse

program, *trainings = sys.argv[1:]
SECRET = "s3cr3t/Sig%2Bnature%3D"
QUERY = f"X-Amz-Credential=KEY%2F20261129%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Expires=3600&part=a,b&X-Amz-Signature={SECRET}"
random.seed(7)


def run(*words, status=0):
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == status, (words, done.returncode, done.stdout, done.stderr)
    for hidden in ("s3cr3t", "Sig%2Bnature", "KEY%2F"):
        assert hidden not in done.stdout + done.stderr, f"{words} shows the signature: {done.stdout}{done.stderr}"
    return done


def digest_of(source):
    return json.loads(run("verify", source, "--json").stdout)["digest"]


def refused(source, *words, status=3):
    error = run("inspect", source, status=status).stderr
    for word in words:
        assert word in error, (word, error)


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    crc ^= 0xffffffff
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff)


def npy(dtype, shape, data):
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head.encode() + data


def make_files(folder):
    """Writes files of every format. The names of the folder and the files contain a blank and a percent sign."""
    rows = [[random.randrange(10) for _ in range(4)] for _ in range(50)]
    payloads = [random.randbytes(30) for _ in range(9)]
    contents = {
        "a table%.csv": b"a,b,c,y\n" + b"".join(b"%d,%d,%d,%d\n" % tuple(row) for row in rows),
        "a table%.svm": b"".join(b"%d 1:%d 2:%d 3:%d\n" % (row[3], *row[:3]) for row in rows),
        "some x%.npy": npy("<f4", (50, 3), struct.pack("<150f", *(value for row in rows for value in row[:3]))),
        "some y%.npy": npy("<f4", (50,), struct.pack("<50f", *(row[3] for row in rows))),
        "some images%": struct.pack(">HBBIII", 0, 8, 3, 20, 4, 4) + random.randbytes(320),
        "some labels%": struct.pack(">HBBI", 0, 8, 1, 20) + bytes(k % 10 for k in range(20)),
        "a file%.tfrecord": b"".join(struct.pack("<Q", 30) + crc32c(struct.pack("<Q", 30)) + payload + crc32c(payload) for payload in payloads),
        "raw%.bin": random.randbytes(70),
    }
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    run("convert", f"csv:{urllib.parse.quote(str(folder))}/a%20table%25.csv?label=y", folder / "a set%", "--files", 2)


def sources_of(place, query="", ends=None):
    """Yields the sources in `place`, an encoded address. `ends` follows the path of a source without options."""
    ends = query + "?" if ends is None and query else ends or ""
    yield "csv", f"csv:{place}/a%20table%25.csv{query}?label=y"
    yield "libsvm", f"libsvm:{place}/a%20table%25.svm{query}?features=3"
    yield "libsvm, no options", f"libsvm:{place}/a%20table%25.svm{ends}"
    if "," not in query:   # a comma separates two paths
        yield "npy", f"npy:{place}/some%20x%25.npy{query},{place}/some%20y%25.npy{ends}"
        yield "idx", f"idx:{place}/some%20images%25{query},{place}/some%20labels%25{query}?split=train"
        yield "tfrecord", f"tfrecord:{place}/a%20file%25.tfrecord{query}?check=1"
    yield "records", f"{place}/a%20set%25{query}?check=1" if place.startswith("http") else f"records:{place}/a%20set%25?check=1"


class signed(http.server.BaseHTTPRequestHandler):
    """Serves /open/... by HEAD and GET, /signed/... only by GET and with the unchanged query, and /whole/... without ranges."""
    seen = set()

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def answer(self, body):
        path, _, query = self.path.partition("?")
        signed.seen.add(path)
        kind, _, name = path[1:].partition("/")
        file = self.server.folder / urllib.parse.unquote(name)
        allowed = {"open": not query, "signed": body and query in (QUERY, QUERY.replace(",", "%2C")), "whole": body}[kind]
        if not allowed or not file.is_file():
            self.send_error(403 if not allowed else 404)
            return
        content = file.read_bytes()
        first, last = 0, len(content) - 1
        part = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if kind != "whole" else None
        if part:
            first, last = int(part[1]), min(int(part[2]), last)
        self.send_response(206 if part else 200)
        if part:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("ETag", '"' + hashlib.sha256(content).hexdigest()[:16] + '"')
        self.end_headers()
        if body:
            try:
                self.wfile.write(content[first:last + 1])
            except OSError:   # the reader closed the connection
                pass

    def log_message(self, *_):
        pass


def check_sources(folder, address):
    there = folder / "a folder%"
    make_files(there)
    plain = {}   # digests of the same files under names that need no encoding
    (folder / "plain").mkdir()
    names = {"a table%.csv": "t.csv", "a table%.svm": "t.svm", "some x%.npy": "x.npy", "some y%.npy": "y.npy", "some images%": "i", "some labels%": "l",
             "a file%.tfrecord": "f.tfrecord", "a set%": "set", "raw%.bin": "raw"}
    for old, new in names.items():
        os.symlink(there / old, folder / "plain" / new)
    at = folder / "plain"
    for name, source in (("csv", f"csv:{at}/t.csv?label=y"), ("libsvm", f"libsvm:{at}/t.svm?features=3"), ("libsvm, no options", f"libsvm:{at}/t.svm"),
                         ("npy", f"npy:{at}/x.npy,{at}/y.npy"), ("idx", f"idx:{at}/i,{at}/l?split=train"), ("tfrecord", f"tfrecord:{at}/f.tfrecord?check=1"),
                         ("records", f"records:{at}/set?check=1")):
        plain[name] = digest_of(source)
    cache = f"cache={folder}/cache"
    encoded = urllib.parse.quote(str(there))
    for name, source in sources_of(encoded):
        assert digest_of(source) == plain[name], (name, source)
    assert digest_of(f"raw:{encoded}/raw%25.bin?shape=7") == digest_of(f"raw:{at}/raw?shape=7")
    assert digest_of(f"mix:csv:{encoded}/a%20table%25.csv=1") == digest_of(f"mix:csv:{at}/t.csv=1")
    for kind, query in (("open", ""), ("signed", "?" + QUERY), ("signed", "?" + QUERY.replace(",", "%2C"))):
        for name, source in sources_of(f"{address}/{kind}/a%20folder%25", query):
            more = source + ("" if source.endswith("?") else "&" if source.rpartition("?")[2].startswith(("label", "features", "check", "split")) else "?") + cache
            assert digest_of(more) == plain[name], (name, more)
    # A question mark after the query starts the options. The test has its own cache, because other users may write to the default cache.
    assert digest_of(f"libsvm:{address}/signed/a%20folder%25/a%20table%25.svm?{QUERY}?{cache}") == plain["libsvm, no options"]
    assert digest_of(f"csv:{address}/whole/a%20folder%25/a%20table%25.csv?label=y&{cache}") == plain["csv"]   # neither HEAD nor parts
    # A signature is not part of a file's identity in the cache.
    signed.seen.clear()
    again = QUERY.replace("3600", "3601")
    source = f"csv:{address}/signed/a%20folder%25/a%20table%25.csv?{again}?label=y&{cache}"
    refused(source, "403", "reading is not permitted")
    assert not any(re.search(rb"s3cr3t", file.read_bytes()) for file in (folder / "cache").iterdir() if file.is_file())


def check_shown(folder, address):
    cache = f"cache={folder}/cache"
    place = f"{address}/signed/a%20folder%25"
    (folder / "a folder%" / "bad.csv").write_text("a,y\n1,2\nx,3\n")
    bad = f"csv:{place}/bad.csv?{QUERY}?label=y&{cache}"
    error = run("convert", bad, folder / "none", status=3).stderr
    assert re.search(r"bad\.csv\?.*X-Amz-Signature=\.\.\.:3:\d+: 'x' ", error), error
    assert json.loads(run("verify", bad, "--json", status=3).stdout)["bad"] == 1
    refused(f"csv:{place}/bad.csv?{QUERY}", "'X-Amz-Credential' is not one of", "ADDRESS?QUERY?", status=2)
    refused(f"csv:{place}/none.csv?{QUERY}?{cache}", "none.csv", "404")
    refused(f"{place}/none?{QUERY}?{cache}", "none", "404")
    refused(f"csv:http://me:s3cr3t@127.0.0.1:1/x.csv?{cache}", "has a name or password", status=2)
    source = f"csv:{place}/a%20table%25.csv?{QUERY}?label=y&{cache}"
    for words in (("inspect", source), ("inspect", source, "--json"), ("stats", source, "--json"), ("convert", source, folder / "made", "--json"), ("verify", source, "--json")):
        run(*words)
    assert not any(b"s3cr3t" in file.read_bytes() for file in (folder / "made").iterdir())
    for training in trainings:
        report = folder / "report.json"
        source = f"libsvm:{place}/a%20table%25.svm?{QUERY}?features=3&{cache}"
        done = subprocess.run([training, "--train", source, "--epochs", "1", "--json", report], capture_output=True, text=True, timeout=120)
        shown = done.stdout + done.stderr + (report.read_text() if report.exists() else "")
        assert "s3cr3t" not in shown and "Sig%2Bnature" not in shown, shown


with tempfile.TemporaryDirectory() as scratch:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), signed)
    server.folder = pathlib.Path(scratch)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    check_sources(server.folder, f"http://127.0.0.1:{server.server_port}")
    check_shown(server.folder, f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
