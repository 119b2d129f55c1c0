#!/usr/bin/env bash
# Trains a logistic regression, a residual network, and a network whose worker is killed and replaced, on data that the
# programs generate. Uses an installed muster, or installs what is missing (Debian) and builds.
usage='usage: tools/demo.sh [--build]

Trains on two ranks a logistic regression and a few steps of ResNet-20, and on three ranks a network of which one worker
is killed and replaced. Takes the programs of an installed muster if muster-launch is in PATH and the examples are
installed beside it; otherwise builds them in build/demo. A table of the results is the end.
  --build    builds, even where muster is installed'
build_anyway=
case $* in
  "") ;;
  --build) build_anyway=1 ;;
  --help) printf '%s\n' "$usage" && exit 0 ;;
  *) printf 'tools/demo.sh: unknown argument %s\n%s\n' "$1" "$usage" >&2 && exit 2 ;;
esac
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"
work=build/demo
mkdir -p $work

# Sets `programs` and `launcher` to those of an installed muster; fails where there is none.
find_installed() {
  launcher=$(command -v muster-launch) || return 1
  programs=$(dirname -- "$(dirname -- "$launcher")")/libexec/muster
  [ -x "$programs/logistic_regression" ] && [ -x "$programs/resnet" ] && [ -x "$programs/03_elastic_mlp" ]
}

build() {
  install_missing "${build_packages[@]}"
  exec </dev/null  # nothing below asks anything
  say "building $work/examples/logistic_regression, resnet and 03_elastic_mlp (minutes the first time; log: $work/demo.log)"
  # Device code takes minutes more. A unit for each core that all share of the library's sources takes less than half as
  # long as a unit a file; the loops that training spends its time in have their own -O3.
  { configure $work release -DMUSTER_BUILD_EXAMPLES=ON -DMUSTER_BUILD_TESTS=OFF -DMUSTER_BUILD_BENCHMARKS=OFF -DMUSTER_WITH_STACKING=OFF -DMUSTER_WITH_NCCL=OFF \
    -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=$((160 / cores + 1)) "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG" &&
    targets=(logistic_regression resnet 03_elastic_mlp) &&
    { ! cmake --build $work --target help | grep -c '\bmuster_launch\b' >/dev/null || targets+=(muster_launch); } &&
    cmake --build $work --parallel "$cores" --target "${targets[@]}"; } >$work/demo.log 2>&1 || {
    tail -n 40 $work/demo.log >&2
    die "the build failed (see above; whole log: $work/demo.log)"
  }
  programs=$work/examples launcher=
  if [[ " ${targets[*]} " == *" muster_launch "* ]]; then launcher=$work/src/programs/muster-launch; fi
}
{ [ -z "$build_anyway" ] && find_installed && say "muster is installed: $programs"; } || build

# The launcher of the MPI that was built against; there may be several. Without MPI muster's own starts the ranks.
mpirun=$(sed -n 's/^MPIEXEC_EXECUTABLE:[^=]*=//p' $work/CMakeCache.txt 2>/dev/null || true)
[ -x "$mpirun" ] || mpirun=$(command -v mpirun || true)
[ -n "$launcher" ] || [ -x "$mpirun" ] || die "nothing can start ranks (muster-launch needs OpenSSL and CLI11, and there is no mpirun); install libssl-dev and libcli11-dev"
launch=("$launcher" -n 2 --elastic off)
if [ -x "$mpirun" ]; then
  launch=("$mpirun" -n 2)
  if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
  case $("$mpirun" --version) in
    *"Open MPI"*) launch+=(--oversubscribe) ;;  # a machine of one core has one slot
  esac
fi

# train NAME WORDS...: runs the command and shows its output, which $work/NAME.txt keeps.
train() {
  local name=$1
  shift
  say "$*"
  "$@" 2>&1 | tee "$work/$name.txt"
}
# last NAME PATTERN: the last text in the output that the parentheses of the pattern match.
last() { sed -nE "s#.*$2.*#\1#p" "$work/$1.txt" | tail -n 1; }
first() { sed -nE "s#.*$2.*#\1#p" "$work/$1.txt" | head -n 1; }

train logistic "${launch[@]}" "$programs/logistic_regression" --synthetic epsilon:20000 --epochs 10 --batch 200 --goal accuracy=0.85 \
  --json $work/demo.json
say "the same as JSON: $work/demo.json"
train resnet "${launch[@]}" "$programs/resnet" --data cifar-like:1000 --epochs 1 --steps 8 --batch 64 --schedule constant:0.05
[ -z "$launcher" ] || train elastic "$launcher" -n 3 --restart 1 "$programs/03_elastic_mlp"

epoch_loss='epoch [0-9]+: loss ([0-9.e-]+)'
printf '\n%-38s %-6s %s\n' training ranks result
printf '%-38s %-6s accuracy %s, %s samples/s\n' 'logistic regression, data parallel' 2 "$(last logistic 'test accuracy +([0-9.]+)')" "$(last logistic 'samples/s +([0-9.e+]+)')"
printf '%-38s %-6s %s\n' ResNet-20 2 "$(last resnet 'images/s +([0-9.]+)') images/s"
if [ -z "$launcher" ]; then
  printf '%-38s %-6s %s\n' 'a worker is killed and replaced' 3 'skipped: muster-launch is not built (it needs OpenSSL and CLI11)'
  exit 0
fi
deaths=$(grep -c ' died: ' $work/elastic.txt || true) joined=$(last elastic 'generation [0-9]+: ([0-9]+) joined')
printf '%-38s %-6s loss %s, then %s; %s killed, %s joined\n' 'a worker is killed and replaced' 3 "$(first elastic "$epoch_loss")" "$(last elastic "$epoch_loss")" \
  "$deaths" "${joined:-none}"
[ "$deaths" -gt 0 ] && [ -n "$joined" ] || die "no worker was killed and replaced (see above)"
awk -v a="$(first elastic "$epoch_loss")" -v b="$(last elastic "$epoch_loss")" 'BEGIN { exit !(b < a) }' || die "the loss did not fall (see above)"
