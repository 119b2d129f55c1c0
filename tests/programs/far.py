"""Tests folders of records, and files of other formats, on real servers: nginx, and Swift's S3. Each block is sent once for all
processes of a host, also if server or reader are killed meanwhile. An error of the server is one line with the address.
usage: far.py MUSTER_DATA nginx|s3 [MUSTER_LAUNCH TEST_SHARDED]"""
import gzip
import hashlib
import http.server
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python/muster_bench/presets"))
from ports import free_port  # noqa: E402  (shared with presets)
from swift_server import swift, wait_for  # noqa: E402

program, which, *training = sys.argv[1:]
BLOCK = 1 << 20
random.seed(42)


def run(*words, status=0, **environment):
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, timeout=120, env=os.environ | environment)
    assert done.returncode == status, (words, done.returncode, done.stdout, done.stderr)
    if status:
        assert done.stderr.count("\n") == 1, done.stderr
    return done


def digest_of(source, **environment):
    return json.loads(run("verify", source, "--json", **environment).stdout)["digest"]


def refused(source, *words, **environment):
    """Checks the status: of data that cannot be read, or of a server that is away."""
    is_away = words[-1] in ("tried again for 1 s", "onnect")
    error = run("inspect", source, status=8 if is_away else 3, **environment).stderr
    for word in words:
        assert word in error, (word, error)


def make_records(folder, records=5000):
    raw = folder / "raw.bin"
    raw.write_bytes(random.randbytes(3073 * records))
    run("convert", f"raw:{raw}?shape=3x32x32&offset=1&label=uint8@0", folder / "set", "--files", 3)
    raw.unlink()


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc = crc >> 8 ^ CRC32C[(crc ^ byte) & 255]
    return crc ^ 0xffffffff


def masked_crc32c(data):
    """Returns the checksum of TFRecord."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff)


def crc32c_of(byte):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82f63b78 if byte & 1 else 0)
    return byte


CRC32C = [crc32c_of(byte) for byte in range(256)]


def make_files(folder):
    """Writes tables, TFRecord files and images that span several blocks."""
    (folder / "files").mkdir()
    rows = [[random.randrange(1000) for _ in range(20)] for _ in range(60_000)]
    table = "y," + ",".join(f"x{k}" for k in range(19)) + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
    (folder / "files/table.csv").write_text(table)
    (folder / "files/table.csv.gz").write_bytes(gzip.compress(table.encode()))
    (folder / "files/table.svm").write_text("".join(f"{row[0]} {' '.join(f'{k}:{row[k]}' for k in range(1, 20))}\n" for row in rows))
    for name in ("0.tfrecord", "1.tfrecord"):
        with (folder / "files" / name).open("wb") as file:
            for _ in range(60):
                payload = random.randbytes(random.randrange(20_000, 30_000))
                length = struct.pack("<Q", len(payload))
                file.write(length + masked_crc32c(length) + payload + masked_crc32c(payload))
    (folder / "files/images").write_bytes(struct.pack(">HBBIII", 0, 8, 3, 3000, 28, 28) + random.randbytes(3000 * 28 * 28))
    (folder / "files/labels").write_bytes(struct.pack(">HBBI", 0, 8, 1, 3000) + random.randbytes(3000))


def sources_of(place, options=""):
    return [f"csv:{place}/table.csv?label=y{options}", f"csv:{place}/table.csv.gz?label=y{options}", f"libsvm:{place}/table.svm?features=20{options}",
            f"tfrecord:{place}/0.tfrecord,{place}/1.tfrecord?check=1{options}", f"idx:{place}/images,{place}/labels?split=train{options}"]


class nginx:
    """Serves a folder: /x unchanged, /slow/x at a limited rate, /first/x with the part that its first request named, /403/x and
    /500/x with errors."""

    def __init__(self, folder):
        self.folder, self.port, self.tls = folder, free_port(), free_port()
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", folder / "key", "-out", folder / "certificate",
                        "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        user = "user root;" if os.getuid() == 0 else ""
        (folder / "nginx.conf").write_text(f"""{user} worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/errors;
            events {{ worker_connections 256; }}
            http {{ log_format sent '$uri $body_bytes_sent'; access_log {folder}/access sent; {temporary} proxy_cache_path {folder}/proxied keys_zone=parts:1m;
              server {{ listen 127.0.0.1:{self.port}; root {folder};
                location /slow/ {{ alias {folder}/; limit_rate 500k; }}
                location /first/ {{ proxy_pass http://127.0.0.1:{self.port}/; proxy_set_header Range $http_range; proxy_cache parts;
                                    proxy_cache_valid any 1m; proxy_cache_lock on; }}
                location /403/ {{ return 403; }} location /500/ {{ return 500; }} }}
              server {{ listen 127.0.0.1:{self.tls} ssl; root {folder}; ssl_certificate {folder}/certificate; ssl_certificate_key {folder}/key; }} }}""")
        self.start()

    def start(self):
        self.process = subprocess.Popen(["nginx", "-c", self.folder / "nginx.conf", "-e", self.folder / "errors"], stderr=subprocess.DEVNULL,
                                        start_new_session=True)
        wait_for(self.port)

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def sent(self, what=".muster"):
        """Returns the bytes of records, or of other files, that were sent since the last call."""
        time.sleep(0.3)
        lines = (self.folder / "access").read_text().splitlines()
        (self.folder / "access").write_text("")
        return sum(int(line.split()[1]) for line in lines if what in line)


class stub:
    """Answers every request with the same bytes and closes the connection."""

    def __init__(self, answer):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, args=(answer,), daemon=True).start()

    def serve(self, answer):
        while True:
            to, _ = self.listener.accept()
            with to:
                to.recv(65536)
                to.sendall(answer)


class dated(http.server.SimpleHTTPRequestHandler):
    """Marks versions by the first part of a path: /exact by an ETag of the content, /weak by a weak ETag, /second by
    Last-Modified."""
    sent = 0

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def answer(self, body):
        _, kind, name = self.path.split("/")
        content = (self.server.folder / name).read_bytes()
        first, last = 0, len(content) - 1
        if part := self.headers.get("Range"):
            first, last = map(int, part.removeprefix("bytes=").split("-"))
        self.send_response(206 if part else 200)
        if part:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.send_header("Content-Length", last + 1 - first)
        if kind == "second":
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        else:
            tag = hashlib.sha256(content).hexdigest()[:16] if kind == "exact" else "the same"
            self.send_header("ETag", f'W/"{tag}"' if kind == "weak" else f'"{tag}"')
        self.end_headers()
        if body:
            dated.sent += last + 1 - first
            self.wfile.write(content[first:last + 1])

    def log_message(self, *_):
        pass


def check_versions(folder):
    """Checks that a change of the same size within a second is detected, and that only a version of the content itself
    is kept for later runs."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), dated)
    server.folder = folder / "dated"
    server.folder.mkdir()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for kind in ("exact", "weak", "second"):
        cache = folder / f"cache-{kind}"
        source = f"csv:http://127.0.0.1:{server.server_port}/{kind}/t.csv?label=y&cache={cache}"
        for numbers in ("1,0\n2,1\n", "8,0\n9,1\n", "1,0\n2,1\n"):
            (server.folder / "t.csv").write_text(f"a,y\n{numbers}")
            assert digest_of(source) == digest_of(f"csv:{server.folder}/t.csv?label=y"), kind
        dated.sent = 0
        digest_of(source)
        assert (dated.sent == 0) == (kind == "exact") == bool(list(cache.glob("*.cache"))), (kind, dated.sent)
    server.shutdown()


def begun(cache):
    """Waits until a reader has received the size of a file, which it then fetches."""
    until = time.monotonic() + 60
    while not list(cache.glob("*.cache")):
        assert time.monotonic() < until, f"nothing comes to {cache}"
        time.sleep(0.01)


def check_training(folder, server, base):
    """Checks a training with three ranks and two epochs: each byte is sent once to their host, and each record is used
    once an epoch."""
    records = 200_000
    table = folder / "table.csv"
    table.write_text("one,other,third\n" + "".join(f"{k % 101},{k % 7},{k % 13}\n" for k in range(records)))
    run("convert", f"csv:{table}", folder / "floats", "--files", 3)
    whole = sum(file.stat().st_size for file in (folder / "floats").glob("*.muster"))
    (folder / "training").mkdir()
    launcher, trainer = training
    server.sent()
    source = f"{base}/floats?cache={folder}/trained&every=1000000"
    done = subprocess.run([launcher, "-n", "3", trainer, folder / "training", "2", "0", source, "2000"], capture_output=True, text=True,
                          timeout=200, check=False)
    assert done.returncode == 0, done
    assert server.sent() == whole, "each byte comes once for all ranks"
    used = {0: [], 1: []}
    for file in (folder / "training").glob("used-*"):
        for line in file.read_text().splitlines():
            where, ids = line.split(":")
            used[int(where.split()[0])] += map(int, ids.split())
    assert all(sorted(ids) == list(range(records)) for ids in used.values()), {epoch: len(ids) for epoch, ids in used.items()}


def check_files(folder, server, base):
    """Checks files of other formats: the same through the cache as from the disk, and each byte once for all processes
    of the host."""
    make_files(folder)
    there, cache = f"{base}/files", f"&cache={folder}/cache-of-files"
    local = [digest_of(source) for source in sources_of(folder / "files")]
    whole = sum(file.stat().st_size for file in (folder / "files").iterdir())
    server.sent()
    readers = [subprocess.Popen([program, "verify", source, "--json"], stdout=subprocess.PIPE, text=True)
               for source in sources_of(there, cache) for _ in range(3)]
    found = [json.loads(reader.communicate(timeout=120)[0])["digest"] for reader in readers]
    assert found == [digest for digest in local for _ in range(3)], (found, local)
    assert server.sent("/files/") == whole, "each byte comes once"
    assert [digest_of(source) for source in sources_of(there, cache)] == local and server.sent("/files/") == 0

    # A block that is damaged on the disk is fetched again; so is a file that has changed.
    table = folder / "files/table.csv"
    csv = sources_of(there, cache)[0]
    with next(file for file in (folder / "cache-of-files").glob("*.cache") if table.read_bytes()[:1000] in file.read_bytes()[:BLOCK]).open("r+b") as file:
        file.seek(2 * BLOCK)
        file.write(random.randbytes(100))
    assert digest_of(csv) == local[0] and server.sent("/files/") == BLOCK
    names, rows = table.read_text().split("\n", 1)
    table.write_text(f"{names}\n{rows.replace('7', '8')}")
    assert digest_of(csv) == digest_of(f"csv:{table}?label=y") != local[0] and server.sent("/files/") == table.stat().st_size

    # The reader, and then the server, is killed meanwhile: only the rest is fetched.
    slow = sources_of(f"{base}/slow/files", cache)[0]
    for kills_server in (False, True):
        reader = subprocess.Popen([program, "verify", slow.replace("cache-of", f"cache-{kills_server}-of"), "--json"], stdout=subprocess.PIPE, text=True)
        begun(folder / f"cache-{kills_server}-of-files")
        time.sleep(3.5)  # out of nine seconds
        assert reader.poll() is None, "it was to be killed on the way"
        if kills_server:
            server.kill()
            time.sleep(1)
            server.start()
            assert json.loads(reader.communicate(timeout=120)[0])["digest"] == digest_of(csv)
        else:
            reader.kill()
            reader.communicate()
            server.sent()
            assert digest_of(slow.replace("cache-of", f"cache-{kills_server}-of")) == digest_of(csv)
            assert 0 < server.sent("/files/") < table.stat().st_size

    # Files that cannot be read.
    short = f"?label=y&cache={folder}/refused-files&timeout=1"
    (folder / "files/empty.csv").touch()
    refused(f"csv:{there}/nothing.csv{short}", f"{there}/nothing.csv: ", "404")
    refused(f"libsvm:{base}/403/x.svm?cache={folder}/refused-files", f"{base}/403/x.svm: ", "403")
    refused(f"tfrecord:{base}/500/x?timeout=1&cache={folder}/refused-files", f"{base}/500/x: ", "500", "tried again for 1 s")
    refused(f"csv:{there}/empty.csv{short}", f"{there}/empty.csv: ", "is empty")
    refused(f"csv:{there}/table.csv{short}&disk=2000000", f"{there}/table.csv: ", "its limit is reached")
    refused(f"csv:{there}/table.csv?cache={table}", f"{there}/table.csv: ", "cannot be kept in the cache")
    for answer, word in (("Content-Length: 1000\r\nETag: 1", "tried again for 1 s"), ("Content-Length: 4", "no ETag or Last-Modified"), ("ETag: 1", "no length")):
        half = stub(f"HTTP/1.1 200 OK\r\n{answer}\r\n\r\nhalf".encode())
        refused(f"csv:http://127.0.0.1:{half.port}/half.csv{short}", "/half.csv: ", word)
    encrypted = f"https://127.0.0.1:{server.tls}/files/table.csv"
    refused(f"csv:{encrypted}{short}", f"{encrypted}: ", "certificate")
    assert digest_of(f"csv:{encrypted}{short}", SSL_CERT_FILE=str(folder / "certificate")) == digest_of(csv)
    assert "has no file name" in run("inspect", "csv:https://server?header=1", status=2).stderr
    reader = subprocess.Popen([program, "verify", slow.replace("cache-of", "cache-changed-of")], stderr=subprocess.PIPE, text=True)
    begun(folder / "cache-changed-of-files")
    server.kill()
    os.utime(table, (1, 1))
    server.start()
    output = reader.communicate(timeout=120)[1]
    assert reader.returncode == 3 and "/slow/files/table.csv:" in output and "a different version" in output and output.count("\n") == 1, output


def check_default_cache(folder, source, local):
    """Checks the default without cache=: a folder into which no other user may write."""
    for kind in ("new", "open", "link", "of another"):
        place = folder / "temporary" / kind
        place.mkdir(parents=True)
        cache = place / f"muster-cache-{os.getuid()}"
        if kind == "new":
            assert digest_of(source, TMPDIR=str(place)) == digest_of(source, TMPDIR=str(place)) == local
            assert cache.stat().st_mode & 0o777 == 0o700 and list(cache.glob("*.cache"))
            continue
        if kind == "link":
            cache.symlink_to(folder)
        else:
            cache.mkdir()
        if kind == "open":
            cache.chmod(0o777)
        elif kind == "of another":
            if os.getuid() != 0:
                continue
            os.chown(cache, 12345, -1)
        error = run("inspect", source, status=2, TMPDIR=str(place)).stderr
        assert f"{cache}' cannot be the cache" in error and not list(cache.glob("*.cache")), error


def test_nginx(folder):
    make_records(folder)
    local = digest_of(f"records:{folder}/set")
    whole = sum(file.stat().st_size for file in (folder / "set").glob("*.muster"))
    server = nginx(folder)
    base = f"http://127.0.0.1:{server.port}"
    try:
        # Three processes at once: each byte is sent once. A second run only needs the manifest.
        shared = f"{base}/set?cache={folder}/cache"
        readers = [subprocess.Popen([program, "verify", shared, "--json"], stdout=subprocess.PIPE, text=True) for _ in range(3)]
        for reader in readers:
            assert json.loads(reader.communicate(timeout=120)[0])["digest"] == local
        assert server.sent() == whole, "each byte comes once"
        assert digest_of(shared) == local and server.sent() == 0
        assert digest_of(f"shards:{shared}&local=1") == digest_of(f"shards:{folder}/set"), "no file of a server is elsewhere"

        check_versions(folder)
        check_files(folder, server, base)
        if training:
            check_training(folder, server, base)

        # A damaged cache is repaired.
        cached = sorted((folder / "cache").glob("*.cache"))
        assert len(cached) == 3
        with cached[0].open("r+b") as file:
            file.seek(2 * BLOCK)
            file.write(random.randbytes(100))
        assert digest_of(shared) == local and server.sent() == BLOCK

        # The disk space is bounded: blocks without space are fetched again.
        bounded = f"{base}/set?cache={folder}/small&disk={6 * BLOCK}"
        assert digest_of(bounded) == local
        used = sum(file.stat().st_blocks * 512 for file in (folder / "small").iterdir())
        assert used <= 6 * BLOCK, used
        server.sent()
        assert digest_of(bounded) == local and 0 < server.sent() < whole

        # The reader is killed meanwhile: the next reader fetches the rest.
        slow = f"{base}/slow/set?cache={folder}/killed"
        reader = subprocess.Popen([program, "verify", slow])
        begun(folder / "killed")
        time.sleep(3.5)
        assert reader.poll() is None, "it was to be killed on the way"
        reader.kill()
        reader.wait()
        before = server.sent()
        assert digest_of(slow.replace("slow/", "")) == local
        rest = server.sent()
        assert 0 < rest < whole, (before, rest, whole)

        # The server is killed meanwhile and restarted.
        reader = subprocess.Popen([program, "verify", f"{base}/slow/set?cache={folder}/again", "--json"], stdout=subprocess.PIPE, text=True)
        time.sleep(2)
        assert reader.poll() is None
        server.kill()
        time.sleep(1)
        server.start()
        assert json.loads(reader.communicate(timeout=120)[0])["digest"] == local

        # The server is down for too long.
        reader = subprocess.Popen([program, "verify", f"{base}/slow/set?cache={folder}/away&timeout=1"], stderr=subprocess.PIPE, text=True)
        time.sleep(1)
        server.kill()
        output = reader.communicate(timeout=120)[1]
        assert reader.returncode == 8 and "tried again for 1 s" in output and output.count("\n") == 1, output
        assert re.search(r"/slow/set/(records-\w+\.muster|MANIFEST)", output), output
        server.start()

        # Folders that cannot be read.
        options = f"?cache={folder}/refused&timeout=1"
        refused(f"{base}/nowhere{options}", f"{base}/nowhere/MANIFEST: ", "404")
        refused(f"{base}/403/set{options}", f"{base}/403/set/MANIFEST: ", "403")
        refused(f"{base}/500/set{options}", f"{base}/500/set/MANIFEST: ", "500", "tried again for 1 s")
        refused(f"{base}/first/set?cache={folder}/refused", f"{base}/first/set/records-", "sends another range than the requested range")
        half = stub(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
        refused(f"http://127.0.0.1:{half.port}/set{options}", "/set/MANIFEST: ", "tried again for 1 s")
        refused(f"http://127.0.0.1:{free_port()}/set{options}", "/set/MANIFEST: ", "onnect")
        for size in ("0", "-1", "18446744073709551615", "4611686018427387904"):
            lines = ["muster-records 1", f"one.muster 1 {size} 0 0"]
            manifest = "".join(f"{crc32c(line.encode()):08x} {line}\n" for line in lines)
            lies = stub(f"HTTP/1.1 200 OK\r\nContent-Length: {len(manifest)}\r\n\r\n{manifest}".encode())
            refused(f"http://127.0.0.1:{lies.port}/set{options}", f"http://127.0.0.1:{lies.port}/set/one.muster: ", "cannot be a file of")
        encrypted = f"https://127.0.0.1:{server.tls}/set{options}"
        refused(encrypted, f"https://127.0.0.1:{server.tls}/set/MANIFEST: ", "certificate")
        assert digest_of(encrypted, SSL_CERT_FILE=str(folder / "certificate")) == local
        check_default_cache(folder, f"{base}/set", local)
        output = run("inspect", "https://name:secret@127.0.0.1/set", status=2).stderr
        assert "~/.netrc" in output and "secret" not in output, output

        names = sorted(file.name for file in (folder / "set").glob("*.muster"))
        for change in ("shorter", "longer", "other", "missing"):
            broken = folder / change
            shutil.copytree(folder / "set", broken)
            file = broken / names[0]
            if change == "shorter":
                os.truncate(file, file.stat().st_size - 5000)
            elif change == "longer":
                os.truncate(file, file.stat().st_size + 5000)
            elif change == "missing":
                file.unlink()
            else:
                size = {name: (broken / name).stat().st_size for name in names}
                alike = [name for name in names[1:] if size[name] == size[names[0]]]
                other = alike[0] if alike else names[1]
                if not alike:  # the first file differs in size from the others, which are equal
                    file, other = broken / names[1], names[2]
                shutil.copy(folder / "set" / other, file)
            words = {"shorter": "bytes, but the manifest declares", "longer": "bytes, but the manifest declares",
                     "other": "does not match the manifest", "missing": "404"}
            refused(f"{base}/{change}?cache={folder}/cache-{change}&timeout=1", f"{base}/{change}/{file.name}", words[change])
    finally:
        server.kill()


def test_s3(folder):
    make_records(folder)
    local = digest_of(f"records:{folder}/set")
    server = swift(folder)
    try:
        server.put("/bucket")
        for file in (folder / "set").iterdir():
            server.put(f"/bucket/some/set/{file.name}", file.read_bytes())
        access = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.ports['proxy']}", "AWS_ACCESS_KEY_ID": server.user,
                  "AWS_SECRET_ACCESS_KEY": server.key}
        there = f"s3://bucket/some/set?cache={folder}/cache"
        make_files(folder)
        for file in (folder / "files").iterdir():
            server.put(f"/bucket/files/{file.name}", file.read_bytes())
        for near, far in zip(sources_of(folder / "files"), sources_of("s3://bucket/files", f"&cache={folder}/cache")):
            assert digest_of(far, **access) == digest_of(near)
        missing = sources_of("s3://bucket/no", f"&cache={folder}/cache")[0]
        refused(missing, "s3://bucket/no/table.csv: ", "404", **access)
        refused(missing.replace("/no/", "/files/"), "s3://bucket/files/table.csv: ", "403", **access | {"AWS_SECRET_ACCESS_KEY": "another"})
        assert digest_of(there, **access) == local
        assert digest_of(there, **access) == local
        refused(f"s3://bucket/no/set?cache={folder}/cache", "s3://bucket/no/set/MANIFEST: ", "404", **access)
        refused(there, "s3://bucket/some/set/MANIFEST: ", "403", **access | {"AWS_SECRET_ACCESS_KEY": "another"})

        # Killed meanwhile: a lost object server is a 503 of the proxy, or a reply shorter than requested.
        server.kill("object")
        reader = subprocess.Popen([program, "verify", f"s3://bucket/some/set?cache={folder}/again", "--json"], stdout=subprocess.PIPE,
                                  text=True, env=os.environ | access)
        time.sleep(1)
        assert reader.poll() is None
        server.start("object")
        assert json.loads(reader.communicate(timeout=120)[0])["digest"] == local
    finally:
        for kind in list(server.processes):
            server.kill(kind)


for name in ("AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3", "SSL_CERT_FILE", "CURL_CA_BUNDLE"):
    os.environ.pop(name, None)
needed = "nginx" if which == "nginx" else "swift-proxy-server"
if shutil.which(needed) is None:
    print(f"SKIPPED: {needed} is not installed")
    sys.exit(0)
with tempfile.TemporaryDirectory() as place:
    (test_nginx if which == "nginx" else test_s3)(pathlib.Path(place))
print("well")
