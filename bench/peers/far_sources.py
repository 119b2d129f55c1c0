#!/usr/bin/python3
"""Measures samples a second of remote data: muster's records and TFRecord files through the cache, compared with MosaicML Streaming and
tf.data. Each reads an epoch of shuffled batches of 128 with an empty cache (cold) and, in the same process, another epoch (warm).

    bench/peers/far_sources.py --streaming PYTHON --tensorflow PYTHON [--build build/release] [--server nginx,s3] [--mbit 200]

The samples are the same random bytes in each contender's format, as large as CIFAR-10's; each uses the same server: nginx, or Swift
with its S3 (as tests/programs/far.py starts them). PYTHON are interpreters that have mosaicml-streaming, and tensorflow-cpu with
boto3. The cold time begins before a source is opened, with all libraries loaded. Contenders take turns; medians and their
ratios are printed. With --mbit the link is a loopback device with that rate (needs root and iproute2).

Streaming has no client for HTTP, so it reads nginx through its client for S3 (boto3), as it reads Swift. tf.data has neither since
its file systems moved to tensorflow-io, which does not load with TensorFlow 2.21: a function called by tf.data fetches files, 8 at
once, by urllib or boto3, and TFRecordDataset reads them.
"""
import argparse
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BYTES = 3072
BATCH = 128


def rates_of(begin, epoch):
    """Returns samples a second of a first and a second epoch."""
    cold = epoch() / (time.perf_counter() - begin)
    begin = time.perf_counter()
    return f"cold {cold:.0f}, warm {epoch() / (time.perf_counter() - begin):.0f} samples/s"


def by_streaming(remote, local, workers):
    import torch
    from streaming import StreamingDataset
    begin = time.perf_counter()
    data = StreamingDataset(remote=remote, local=local, shuffle=True, shuffle_seed=1, batch_size=BATCH)
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH, num_workers=workers, prefetch_factor=4, persistent_workers=True)
    return rates_of(begin, lambda: sum(len(batch["y"]) for batch in loader))


def by_tensorflow(remote, local, count):
    import urllib.request
    import boto3
    import tensorflow as tf

    def fetch(name):
        path = pathlib.Path(local, name.decode())
        if not path.exists():
            part = path.with_suffix(".part")
            if remote.startswith("s3://"):
                bucket, key = remote[5:].split("/", 1)
                boto3.client("s3", endpoint_url=os.environ["S3_ENDPOINT_URL"]).download_file(bucket, f"{key}/{path.name}", str(part))
            else:
                urllib.request.urlretrieve(f"{remote}/{path.name}", part)
            part.rename(path)
        return str(path).encode()

    os.makedirs(local, exist_ok=True)
    begin = time.perf_counter()
    names = tf.data.Dataset.from_tensor_slices([f"{k:03d}.tfrecord" for k in range(count)]).shuffle(count, seed=1)
    paths = names.map(lambda name: tf.numpy_function(fetch, [name], tf.string, stateful=False), num_parallel_calls=8)
    records = paths.interleave(lambda path: tf.data.TFRecordDataset(path, buffer_size=1 << 20), cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE)
    batches = records.shuffle(8192, seed=1).batch(BATCH).map(lambda payloads: tf.io.decode_raw(payloads, tf.uint8),
                                                             num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    return rates_of(begin, lambda: sum(len(batch) for batch in batches))


def make_mds(raw, folder):
    import numpy
    from streaming import MDSWriter
    with MDSWriter(out=folder, columns={"x": f"ndarray:uint8:{BYTES}", "y": "int"}, size_limit=1 << 24) as writer, open(raw, "rb") as file:
        for k in range(os.path.getsize(raw) // BYTES):
            writer.write({"x": numpy.frombuffer(file.read(BYTES), numpy.uint8), "y": k % 10})


def make_tfrecords(raw, folder):
    import tensorflow as tf
    count = os.path.getsize(raw) // BYTES
    per_file = max(1, (1 << 24) // BYTES)
    with open(raw, "rb") as file:
        for number, first in enumerate(range(0, count, per_file)):
            with tf.io.TFRecordWriter(f"{folder}/{number:03d}.tfrecord") as writer:
                for _ in range(first, min(first + per_file, count)):
                    writer.write(file.read(BYTES))


def run(*words, **environment):
    output = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, text=True, env=os.environ | environment, check=False, timeout=600)
    if output.returncode != 0:
        sys.exit(f"{words} has ended with {output.returncode}")
    return output.stdout


def servers_of_tests():
    """Returns nginx and swift of tests/programs/far.py, without its main part."""
    text = (ROOT / "tests/programs/far.py").read_text()
    names = {"__name__": "servers"}
    sys.argv, kept = ["far.py", "", ""], sys.argv
    exec(compile(text[:text.index("\nfor name in (")], "far.py", "exec"), names)  # pylint: disable=exec-used
    sys.argv = kept
    return names["nginx"], names["swift"]


def measure(options, name, folder, base, environment):
    build = options.build
    files = ",".join(f"{base}/tf/{file.name}" for file in sorted((folder / "tf").iterdir()))
    places = {key: folder / f"at-{key}" for key in ("records", "tfrecord", "streaming", "tensorflow")}
    count = len(list((folder / "tf").iterdir()))
    remote = "s3://bucket" if name == "s3" else base
    contenders = {
        "muster, records": lambda: run(build / "bench/peers/read_source", f"{base}/set?cache={places['records']}", options.threads, **environment),
        "muster, tfrecord": lambda: run(build / "bench/peers/read_source", f"tfrecord:{files}?cache={places['tfrecord']}", options.threads, **environment),
        "Streaming": lambda: run(options.streaming, __file__, "--peer", "streaming", "s3://bucket/mds", places["streaming"], options.workers, **environment),
        "tf.data": lambda: run(options.tensorflow, __file__, "--peer", "tensorflow", f"{remote}/tf", places["tensorflow"], count, **environment)}
    rates = {contender: {"cold": [], "warm": []} for contender in contenders}
    for _ in range(options.rounds):
        for contender, read in contenders.items():
            for kind, rate in re.findall(r"(cold|warm) (\d+)", read()):
                rates[contender][kind].append(int(rate))
        for place in places.values():
            shutil.rmtree(place)
    for kind in ("cold", "warm"):
        found = {contender: statistics.median(all_of[kind]) for contender, all_of in rates.items()}
        for contender, rate in found.items():
            link = f", {rate * BYTES * 8 / 1e6 / options.mbit:.2f} of the link" if options.mbit else ""
            print(f"{name}, {kind}: {contender} {rate:.0f} samples/s ({min(rates[contender][kind]):.0f} to {max(rates[contender][kind]):.0f}){link}; "
                  f"muster's records {found['muster, records'] / rate:.1f} times", flush=True)


def main():
    if sys.argv[1:2] == ["--peer"]:
        peer, remote, local, number = sys.argv[2:]
        read = by_streaming if peer == "streaming" else by_tensorflow
        print(f"{peer}: {read(remote, local, int(number))}")
        return
    if sys.argv[1:2] == ["--make"]:
        (make_mds if sys.argv[2] == "mds" else make_tfrecords)(*sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--streaming", required=True)
    parser.add_argument("--tensorflow", required=True)
    parser.add_argument("--server", default="nginx,s3")
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of muster, beside the one that reads")
    parser.add_argument("--workers", type=int, default=2, help="processes of Streaming's loader")
    parser.add_argument("--mbit", type=int, default=0)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.mbit and not options.inside:
        sys.exit(subprocess.run(["unshare", "-n", sys.executable, *sys.argv, "--inside"], check=False).returncode)
    if options.mbit:
        run("ip", "link", "set", "lo", "up")
        run("tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", f"{options.mbit}mbit", "burst", "256kb", "limit", "4mb")
    nginx, swift = servers_of_tests()
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        raw = folder / "raw"
        with raw.open("wb") as file:
            for _ in range(options.samples):
                file.write(os.urandom(BYTES))
        served = folder / "bucket"
        (served / "tf").mkdir(parents=True)
        run(options.build / "src/programs/muster-data", "convert", f"raw:{raw}?shape={BYTES}", served / "set", "--file-bytes", "16MiB")
        run(options.streaming, __file__, "--make", "mds", raw, served / "mds")
        run(options.tensorflow, __file__, "--make", "tf", raw, served / "tf", TF_CPP_MIN_LOG_LEVEL="3")
        raw.unlink()
        print(f"{options.samples} samples of {BYTES} bytes; {len(os.sched_getaffinity(0))} processors")
        common = {"AWS_REGION": "us-east-1", "TF_CPP_MIN_LOG_LEVEL": "3", "TMPDIR": str(folder)}
        if "nginx" in options.server:
            server = nginx(folder)
            access = common | {"S3_ENDPOINT_URL": f"http://127.0.0.1:{server.port}", "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
            try:
                measure(options, "nginx", served, f"http://127.0.0.1:{server.port}/bucket", access)
            finally:
                server.kill()
        if "s3" in options.server:
            server = swift(folder)
            try:
                server.put("/bucket")
                for file in served.rglob("*"):
                    if file.is_file() and "at-" not in str(file):
                        server.put(f"/bucket/{file.relative_to(served)}", file.read_bytes())
                end = f"http://127.0.0.1:{server.ports['proxy']}"
                access = common | {"S3_ENDPOINT_URL": end, "AWS_ENDPOINT_URL": end, "AWS_ACCESS_KEY_ID": server.user,
                                   "AWS_SECRET_ACCESS_KEY": server.key}
                measure(options, "s3", served, "s3://bucket", access)
            finally:
                for kind in list(server.processes):
                    server.kill(kind)


if __name__ == "__main__":
    main()
