#!/usr/bin/env bash
# Trains a logistic regression and a residual network on two ranks, on data it generates: installs what is missing
# (Debian), builds, runs.
usage='usage: tools/demo.sh

Trains a logistic regression and a few steps of ResNet-20 on two ranks, with what it builds of muster in build/demo.'
case $* in
  "") ;;
  --help) printf '%s\n' "$usage" && exit 0 ;;
  *) printf 'tools/demo.sh: unknown argument %s\n%s\n' "$1" "$usage" >&2 && exit 2 ;;
esac
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

install_missing "${build_packages[@]}"
exec </dev/null  # nothing below asks anything

build=build/demo
mkdir -p $build
say "building $build/examples/logistic_regression and resnet (about two minutes the first time; log: $build/demo.log)"
{
  # Two ranks of one host need no network, and no store of a job that changes. A unit for each core that all share of
  # the library's sources takes less than half as long as a unit a file, and what is optimised less two thirds of that; the
  # loops that training spends its time in have their own -O3.
  configure $build release -DMUSTER_BUILD_EXAMPLES=ON -DMUSTER_BUILD_TESTS=OFF -DMUSTER_BUILD_BENCHMARKS=OFF \
    -DMUSTER_WITH_TCP=OFF -DMUSTER_WITH_LIBPQ=OFF -DMUSTER_WITH_PARQUET=OFF -DMUSTER_WITH_ETCD=OFF -DMUSTER_WITH_NCCL=OFF -DMUSTER_WITH_ZSTD=OFF -DMUSTER_WITH_JPEG=OFF -DMUSTER_WITH_SERVE=OFF -DMUSTER_WITH_STACKING=OFF \
    -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=$((160 / cores + 1)) "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG" &&
    cmake --build $build --parallel "$cores" --target logistic_regression resnet
} >$build/demo.log 2>&1 || {
  tail -n 40 $build/demo.log >&2
  die "the build failed (see above; whole log: $build/demo.log)"
}

# The launcher of the MPI that was built against; there may be several.
mpirun=$(sed -n 's/^MPIEXEC_EXECUTABLE:[^=]*=//p' $build/CMakeCache.txt)
[ -x "$mpirun" ] || die "no mpirun was found (muster was built without MPI); install libopenmpi-dev and openmpi-bin"
launch=("$mpirun" -n 2)
if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
case $("$mpirun" --version) in
  *"Open MPI"*) launch+=(--oversubscribe) ;;  # a machine of one core has one slot
esac
train=($build/examples/logistic_regression --synthetic epsilon:20000 --epochs 10 --batch 200 --goal accuracy=0.85
  --json $build/demo.json)
say "${launch[*]} ${train[*]}"
"${launch[@]}" "${train[@]}"
say "the same as JSON: $build/demo.json"

train=($build/examples/resnet --data cifar-like:1000 --epochs 1 --steps 8 --batch 64 --schedule constant:0.05)
say "${launch[*]} ${train[*]}"
"${launch[@]}" "${train[@]}"
