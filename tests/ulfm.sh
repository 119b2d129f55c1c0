#!/usr/bin/env bash
# Builds muster in a Debian trixie of its own, which has Open MPI 5, and runs the tests of MPI and of elastic jobs there, under
# mpirun --with-ft ulfm. Not part of the tests that run by default: it fetches some 300 MB the first time.
#
#   tests/ulfm.sh [--root FOLDER] [--jobs N]                    # all over MPI, and what dies there
#   tests/ulfm.sh [--root FOLDER] [--jobs N] --only REGEX       # tests by CTest's names, of a build of everything
#   tests/ulfm.sh [--root FOLDER] [--jobs N] --kills            # 100 jobs each of 3 and of 4 ranks with kills, over MPI and tcp
#   tests/ulfm.sh [--root FOLDER] --shell COMMAND...            # anything else in there, from the folder of the sources
#
# Data is taken from MUSTER_TEST_DATA, by default ../shared/data beside the sources; without it its tests are skipped.
# As root, for chroot. The root and its build are kept in FOLDER (default: ~/.cache/muster/trixie). Ends with 77, and says why,
# where there is no debootstrap, no right to it or no network.
set -euo pipefail
sources=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
root=${XDG_CACHE_HOME:-$HOME/.cache}/muster/trixie
jobs=$(nproc)
only='over mpi|own MPI|mpirun|ulfm'
but='resnet'  # the tests that the programs are not built for
targets="test_program test_over_processes test_survivors test_trouble test_chosen test_opened test_adopt"
targets+=" test_elastic_worker test_training_program logistic_regression muster_launch muster_store"
labels="-LE long"
shell=()
while [ $# -gt 0 ]; do
  case $1 in
    --root) root=$2 && shift 2 ;;
    --jobs) jobs=$2 && shift 2 ;;
    --only) only=$2 but='^\$' targets=all && shift 2 ;;
    --kills) only='ulfm.*killed, 100 rounds' labels='-V' targets=test_elastic_worker && shift ;;
    --shell) shift && shell=("$@") && break ;;
    *) echo "tests/ulfm.sh: unknown argument '$1'" >&2 && exit 2 ;;
  esac
done
skip() {
  echo "SKIPPED: $*"
  exit 77
}

[ "$(id -u)" = 0 ] || skip "chroot needs root"
packages=openmpi-bin,libopenmpi-dev,g++,cmake,ninja-build,ccache,catch2,python3-minimal,libpython3-stdlib,zlib1g-dev,libssl-dev
packages+=,libeigen3-dev,libcli11-dev,nlohmann-json3-dev,procps,ca-certificates
if [ ! -x "$root/usr/bin/mpirun" ]; then
  command -v debootstrap >/dev/null || skip "there is no debootstrap (apt-get install debootstrap)"
  rm -rf "$root"
  mkdir -p "$root"
  # What it cannot configure, for want of a virtual package, apt can.
  debootstrap --variant=minbase "--include=$packages" trixie "$root" http://deb.debian.org/debian >"$root.log" 2>&1 || true
  if [ ! -x "$root/usr/bin/mpirun" ]; then
    tail -n 3 "$root.log"
    skip "debootstrap got no Open MPI (no network? $root.log)"
  fi
fi

inside() {
  unshare --mount --fork bash -euc '
    root=$1 sources=$2 data=$3
    shift 3
    mkdir -p "$root/muster" "$root/shared/data" "$root/dev/shm"
    mount --bind "$sources" "$root/muster"
    if [ -d "$data" ]; then mount --bind "$data" "$root/shared/data"; fi
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --rbind /sys "$root/sys"
    grep -q " $(hostname)\$" "$root/etc/hosts" 2>/dev/null || echo "127.0.0.1 localhost $(hostname)" >>"$root/etc/hosts"
    exec chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 CCACHE_DIR=/root/ccache \
      OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 \
      PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 bash -euc "cd /muster; $*"
  ' bash "$root" "$sources" "${MUSTER_TEST_DATA:-$sources/../shared/data}" "$@"
}

if [ ! -e "$root/configured" ]; then
  inside "export DEBIAN_FRONTEND=noninteractive; apt-get -qq update; apt-get -qq -y --fix-broken install" >>"$root.log" 2>&1 ||
    skip "apt could not configure the root ($root.log)"
  touch "$root/configured"
fi
if [ ${#shell[@]} -gt 0 ]; then
  inside "${shell[@]}"
  exit
fi
inside "cmake -S . -B /root/build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DMUSTER_WITH_MPI=ON \
  -DMUSTER_BUILD_TESTS=ON -DMUSTER_BUILD_EXAMPLES=ON -DMUSTER_BUILD_BENCHMARKS=OFF >/root/configure.log
  cmake --build /root/build -j $jobs --target $targets
  ctest --test-dir /root/build --output-on-failure -R '$only' -E '$but' $labels"
