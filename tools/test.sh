#!/usr/bin/env bash
# Builds and runs the tests: installs what is missing (Debian), builds, runs CTest.
usage='usage: tools/test.sh [--quick | --all | --full]

Builds muster (warnings are errors) and runs a tier of its tests:
  --quick  tests of the layers, the shortest ones, and checks of the sources: before each commit
           (none) library, programs, examples, serving, benchmark platform: before a pull request
  --all    also the benchmarks, stacking, Slurm, Kubernetes exports, Swift, MariaDB, PostgreSQL, a browser: what CI runs
  --full   also the long ones (soaks), and the tests under AddressSanitizer with UndefinedBehaviorSanitizer (build/asan)
           and under ThreadSanitizer (build/tsan)
The first two tiers build in build/test, with -O1, the others in build/release. docs/testing.md describes the tiers.
Up to three tests that fail run again with no other test beside them, and are named if they pass then. The last line is
"N passed, M failed, K skipped"; the exit status is 0 if none failed.'
tier=default
for argument in "$@"; do
  case $argument in
    --quick | --all | --full) tier=${argument#--} ;;
    --help) printf '%s\n' "$usage" && exit 0 ;;
    *) printf 'tools/test.sh: unknown argument %s\n%s\n' "$argument" "$usage" >&2 && exit 2 ;;
  esac
done
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

test_packages=(ccache clang clang-format clang-tidy catch2 codespell curl doxygen etcd-server haproxy iproute2 iptables
  libsqlite3-dev nginx openssl python3 python3-aiohttp python3-matplotlib python3-prometheus-client python3-yaml
  snakemake)
all_packages=(chromium conntrack containerd containernetworking-plugins dataset-fashion-mnist debootstrap elfutils libbenchmark-dev
  libgrpc++-dev libhiredis-dev liblinear-dev libprotobuf-dev lintian locales mariadb-client-core mariadb-server-core munge
  postgresql prometheus protobuf-compiler-grpc python3-croniter python3-grpcio python3-jsonschema python3-kubernetes python3-onnx
  python3-optuna python3-psycopg2 python3-redis python3-setuptools python3-sklearn python3-swift python3-venv
  python3-wheel redis-server runc slurm-client slurmctld slurmd slurmdbd swift swift-account swift-container swift-object
  swift-proxy universal-ctags)
install_missing "${build_packages[@]}" "${test_packages[@]}"
case $tier in all | full) install_missing "${all_packages[@]}" ;; esac
case $tier in full) install_missing g++-aarch64-linux-gnu qemu-user ;; esac  # another processor
exec </dev/null  # nothing below asks anything
for variable in "${!MUSTER_@}"; do  # the tests choose their own settings; MUSTER_TEST_* says where their data is
  [[ $variable == MUSTER_TEST_* ]] || unset "$variable"
done

# Of two mpirun that find no such folder one fails (Open MPI 4.1: its mkdir says that it exists), and the last of those
# that end removes it: so it stays while the tests run.
sessions=${TMPDIR:-/tmp}/ompi.$(uname -n | cut -d. -f1).$(id -u)/tests.$$
mkdir -p "$sessions"
trap 'rmdir "$sessions" "${sessions%/*}" 2>/dev/null || true' EXIT

here=()   # where the packages above are
parts=()  # what is built, whatever the folder was configured for: a part left out since a package is missing is a failure
if command -v dpkg-query >/dev/null; then
  here=(-DPython3_EXECUTABLE=/usr/bin/python3)
  for part in MPI TBB ZLIB TCP ZSTD JPEG LIBPQ ETCD HTTP SERVE; do parts+=("-DMUSTER_WITH_$part=ON"); done
fi
case $tier in
  all | full) parts+=(-DMUSTER_BUILD_BENCHMARKS=ON -DMUSTER_WITH_STACKING=ON -DMUSTER_WITH_TORCH=OFF -DMUSTER_WITH_PARQUET=OFF -DMUSTER_WITH_NCCL=AUTO) ;;
  *) parts+=(-DMUSTER_BUILD_BENCHMARKS=OFF -DMUSTER_WITH_STACKING=OFF -DMUSTER_WITH_TORCH=OFF -DMUSTER_WITH_PARQUET=OFF -DMUSTER_WITH_NCCL=OFF) ;;
esac

# The label of a test is the first tier that runs it; a test without a label is in the default tier.
case $tier in
  quick) tests=(-L '^quick$') ;;
  default) tests=(-LE '^(all|long)$') ;;
  all) tests=(-LE '^long$') ;;
  full) tests=() ;;
esac

passed=0 failed=0 skipped=0 retried=()

# count PATTERN... FILE: lines that match; none is not a failure here.
count() { grep -c "$@" || true; }

# failures REPORT: names the tests that failed, with the end of what they said.
failures() {
  python3 - "$1" <<'END'
import sys, xml.etree.ElementTree as tree
for case in tree.parse(sys.argv[1]).iter("testcase"):
    if case.get("status") == "fail":
        print(f"--- {case.get('name')} failed:", *case.findtext("system-out", "").splitlines()[-20:], sep="\n")
END
}

# build_and_test PRESET BATCH OPTION...: builds the preset, BATCH sources in a unit, runs the tests of the tier, and adds to the counts.
build_and_test() {
  local preset=$1 batch=$2 report=$PWD/build/$1/test-report.xml
  shift 2
  say "building build/$preset"
  configure "build/$preset" "$preset" -DCMAKE_UNITY_BUILD=ON "-DCMAKE_UNITY_BUILD_BATCH_SIZE=$batch" -DMUSTER_WERROR=ON -DMUSTER_BUILD_TESTS=ON \
    "${here[@]}" "$@"
  local targets=()
  [ $tier != quick ] || targets=(--target quick)
  cmake --build "build/$preset" --parallel "$cores" "${targets[@]}"
  say "testing build/$preset"
  rm -f "$report"
  # More tests at a time than there are cores: most tests wait, for a process to die or a deadline to pass. Tests that
  # compute name the number of cores (PROCESSORS).
  local run=(ctest --test-dir "build/$preset" --output-on-failure --no-tests=error "${tests[@]}")
  "${run[@]}" --parallel $((cores * 4)) --output-junit "$report" || true  # the report names the failures
  [ -s "$report" ] || die "ctest wrote no report (see above)"
  # A test that could not be run (no such program, a failed fixture) stands in the report as skipped: it has failed.
  local all good left_out bad
  all=$(count '<testcase ' "$report") good=$(count '<testcase .* status="run"' "$report")
  left_out=$(count -e '<skipped message="SKIP_' -e '<testcase .* status="disabled"' "$report")
  bad=$((all - good - left_out))
  [ "$bad" -eq 0 ] || failures "$report"
  if [ "$bad" -gt 0 ] && [ "$bad" -le 3 ]; then
    say "testing build/$preset: what failed, again"
    if "${run[@]}" --rerun-failed; then
      mapfile -t -O ${#retried[@]} retried < <(sed -n 's/.*<testcase name="\([^"]*\)".* status="fail".*/\1/p' "$report")
      bad=0
    fi
  fi
  passed=$((passed + all - left_out - bad)) skipped=$((skipped + left_out)) failed=$((failed + bad))
}

linker=()  # 110 programs: a quarter of a second less for each
for name in lld gold; do
  if command -v "ld.$name" >/dev/null; then linker=("-DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=$name") && break; fi
done
case $tier in
  quick | default) build_and_test test 40 -DMUSTER_BUILD_EXAMPLES=ON "${linker[@]}" "${parts[@]}" ;;
  *) build_and_test release 40 -DMUSTER_BUILD_EXAMPLES=ON "${parts[@]}" ;;
esac
if [ $tier = full ]; then
  tests=(-LE '^long$')
  build_and_test asan 8 -DMUSTER_BUILD_EXAMPLES=ON
  build_and_test tsan 8 -DMUSTER_BUILD_EXAMPLES=ON
fi

[ ${#retried[@]} -eq 0 ] || printf 'failed at first, passed when run again: %s\n' "${retried[@]}"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
