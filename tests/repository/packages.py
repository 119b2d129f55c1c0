#!/usr/bin/env python3
"""Checks the packages of Debian: lintian finds no error; in a bare root the packages are installed, upgraded and purged, and
README's program and a project that asks for comm alone are built against them and run.

usage: packages.py SOURCE PACKAGES [--build FOLDER] [--root FOLDER]

SOURCE is a clone, PACKAGES a folder with the .deb files. With --build they are first made by cpack, of the build in FOLDER. The
root is a minbase by debootstrap, kept in --root (default: ~/.cache/muster/bookworm) and never written to: each run has a
layer of its own above the root. Prints the seconds of each step. Ends with "SKIPPED: " and the reason without root, network
or debootstrap."""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "examples"))
import digits  # noqa: E402

# "$1" is the root, "$2" a folder with the layer, "$3" the folder that the root has as /work, "$4" the command.
INSIDE = """
mkdir -p "$2/upper" "$2/lower" "$2/root" "$1.archives"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/lower" "$2/root"
mkdir -p "$2/root/work"
mount --bind "$3" "$2/root/work"
mount --bind "$1.archives" "$2/root/var/cache/apt/archives"
mount -t proc proc "$2/root/proc"
mount --rbind /dev "$2/root/dev"
cp /etc/resolv.conf "$2/root/etc/" 2>/dev/null || true
exec chroot "$2/root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \\
  DEBIAN_FRONTEND=noninteractive sh -ec "cd /work; $4"
"""
README = """cmake_minimum_required(VERSION 3.22)
project(readme LANGUAGES CXX)
find_package(muster 0.1 REQUIRED)
add_executable(mnist mnist.cpp)
target_link_libraries(mnist PRIVATE muster::muster)
"""
EXAMPLE = """apt-get -qq install -y --no-install-recommends libcli11-dev libeigen3-dev libtbb-dev nlohmann-json3-dev libboost-dev >/dev/null
cmake -S /usr/share/muster/examples -B examples >/dev/null && cmake --build examples --target 01_allreduce >/dev/null && examples/01_allreduce --ranks 4"""
APT = "apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends"


def run(words, **more):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **more)
    if done.returncode != 0:
        errors = [line for line in done.stdout.splitlines() if line.startswith("E: ")]
        sys.exit(f"{' '.join(map(str, words))[:200]} ends with {done.returncode}:\n" + "\n".join(errors or [done.stdout[-3000:]]))
    return done.stdout


class Root:
    """A bare Debian with one layer that this run writes to."""

    def __init__(self, base, layer, work):
        self.words = base, layer, work

    def run(self, name, command):
        begin = time.monotonic()
        text = run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", INSIDE, "sh", *self.words, command], timeout=900)
        print(f"{time.monotonic() - begin:6.1f} s  {name}", flush=True)
        return text


def make_root(base):
    if os.geteuid() != 0:
        sys.exit(print("SKIPPED: a root needs root"))
    if (base / "etc/debian_version").exists() and (base.parent / f"{base.name}.made").exists():
        return
    if not shutil.which("debootstrap"):
        sys.exit(print("SKIPPED: there is no debootstrap (apt-get install debootstrap)"))
    shutil.rmtree(base, ignore_errors=True)
    base.parent.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(["debootstrap", "--variant=minbase", "bookworm", base, "http://deb.debian.org/debian"], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        sys.exit(print(f"SKIPPED: debootstrap made no root (no network?): {made.stdout[-200:]}"))
    (base.parent / f"{base.name}.made").touch()


def next_release(package, folder):
    """Writes the package with the next release number, as an upgrade has it."""
    with tempfile.TemporaryDirectory() as opened:
        run(["dpkg-deb", "-R", package, opened])
        control = pathlib.Path(opened) / "DEBIAN/control"
        text = control.read_text(encoding="utf-8")
        control.write_text(re.sub(r"(Version: |\(= )([\d.]+)-1\b", r"\g<1>\g<2>-2", text), encoding="utf-8")
        run(["dpkg-deb", "--root-owner-group", "-Znone", "-b", opened, folder])


def check_lint(packages):
    if not shutil.which("lintian"):
        sys.exit(print("SKIPPED: there is no lintian (apt-get install lintian)"))
    begin = time.monotonic()
    run(["lintian", "--allow-root", "--fail-on", "error", *packages])
    print(f"{time.monotonic() - begin:6.1f} s  lintian finds no error in {len(packages)} packages", flush=True)


def check_root(root, work):
    names = sorted(re.match(r"[^_]+", path.name)[0] for path in (work / "first").iterdir())
    files = {name: f"./first/{name}_*.deb" for name in names}
    libraries = [name for name in names if re.fullmatch(r"libmuster-.*\d", name) and "-mpi" not in name]
    root.run("apt-get update, and the compiler", f"apt-get -qq update; {APT} g++ cmake make >/dev/null")
    root.run("libmuster-dev and its libraries", f"{APT} {' '.join(files[name] for name in [*libraries, 'libmuster-dev'])}")
    text = root.run("no MPI came with them", "! dpkg -l | grep -i openmpi; dpkg -l 'libmuster*' | grep -c ^ii")
    if int(text.split()[-1]) != len(libraries) + 1:
        sys.exit(f"these are not all packages of {names}:\n{text}")
    root.run("a project that asks for comm", "cmake -S consumers/find_package_comm -B comm >/dev/null; cmake --build comm >/dev/null; comm/consumer --ranks 2 | grep '2 ranks over'; comm/parts | grep -qx 'comm are linked'")
    root.run("README's program is configured and built", "cmake -S readme -B built -DCMAKE_BUILD_TYPE=Release >/dev/null; cmake --build built >/dev/null")
    text = root.run("README's program trains", "cd readme; ../built/mnist --ranks 2")
    losses = re.findall(r"^epoch \d: loss (\S+), 6000 samples", text, re.M)
    if len(losses) != 5 or float(losses[-1]) > 0.01:
        sys.exit(f"README's program did not learn:\n{text}")
    root.run("the other packages", f"{APT} {' '.join(files.values())}; muster-info --version; muster-data --help >/dev/null; muster-launch -n 2 --elastic off comm/consumer | grep '2 ranks over'; muster-store --help >/dev/null")
    root.run("README's program links muster::mpi now, and an example of the install is built", "cmake -S readme -B with_mpi >/dev/null; grep -q libmuster_mpi with_mpi/CMakeFiles/mnist.dir/link.txt; " + EXAMPLE)
    root.run("an upgrade of all", f"{APT} ./second/*.deb; dpkg -l '*muster*' | grep ^ii | grep -vq -- '-2 ' && exit 1; comm/consumer --ranks 2 | grep '2 ranks over'")
    left = root.run("purged", f"apt-get -qq purge -y {' '.join(names)} >/dev/null; ldconfig; (ldconfig -p; dpkg -l) | grep muster || true; find / -xdev -path /work -prune -o -path /proc -prune -o -name '*muster*' -print | grep -v /archives/ || true")
    if left.strip():
        sys.exit(f"after the purge these are left:\n{left}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("packages", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "muster/bookworm")
    options = parser.parse_args()
    make_root(options.root)
    if options.build:
        shutil.rmtree(options.packages, ignore_errors=True)
        run(["cpack", "-G", "DEB", "--config", options.build / "CPackConfig.cmake", "-B", options.packages.resolve()])
    packages = sorted(options.packages.glob("*.deb"))
    if len(packages) < 8:
        sys.exit(f"{options.packages} has {len(packages)} packages; the libraries of the layers alone are 6")
    check_lint(packages)
    with tempfile.TemporaryDirectory(prefix="muster-packages-", dir=options.root.parent) as folder:
        work = pathlib.Path(folder) / "work"
        for name in ("first", "second", "readme"):
            (work / name).mkdir(parents=True)
        for package in packages:
            shutil.copy(package, work / "first")
            next_release(package, work / "second")
        shutil.copytree(options.source / "tests/consumers", work / "consumers")
        shutil.copy(options.source / "examples/mnist/mlp.hpp", work / "readme")
        shutil.copy(options.source / "examples/mnist/main.cpp", work / "readme/mnist.cpp")
        (work / "readme/CMakeLists.txt").write_text(README, encoding="utf-8")
        digits.draw(str(work / "readme"), 6000)
        check_root(Root(options.root, pathlib.Path(folder) / "layer", work), work)


main()
