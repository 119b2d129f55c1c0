#!/usr/bin/env bash
# Builds and runs the tests: installs what is missing (Debian), builds, runs CTest.
usage='usage: tools/test.sh [--library | --full]

Builds muster (in build/release, warnings are errors) and runs every test of CTest but the long ones.
  --library  of these, only the tests of the library and its programs (in build/library): without examples, serving, the
             benchmarks and their platform
  --full     also the long ones (soaks, benchmarks as smoke tests), and the tests under AddressSanitizer with
             UndefinedBehaviorSanitizer (build/asan) and under ThreadSanitizer (build/tsan)
Up to three tests that fail are run again with nothing beside them, and named if they pass then: a fault that is drawn
may meet a moment that only a busy machine has. The last line is "N passed, M failed, K skipped"; the exit status is 0
if nothing failed.'
what=all
for argument in "$@"; do
  case $argument in
    --library | --full) what=${argument#--} ;;
    --help) printf '%s\n' "$usage" && exit 0 ;;
    *) printf 'tools/test.sh: unknown argument %s\n%s\n' "$argument" "$usage" >&2 && exit 2 ;;
  esac
done
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

install_missing "${build_packages[@]}" ccache clang catch2 libbenchmark-dev libdnnl-dev python3 python3-yaml \
  python3-matplotlib python3-optuna python3-psycopg2 python3-jsonschema python3-croniter python3-venv python3-setuptools python3-wheel elfutils etcd-server haproxy nginx redis-server python3-redis python3-sklearn python3-grpcio swift swift-account swift-container swift-object swift-proxy python3-swift openssl iproute2 iptables python3-onnx \
  doxygen codespell snakemake dataset-fashion-mnist munge slurmctld slurmd slurmdbd slurm-client mariadb-server-core mariadb-client-core python3-aiohttp python3-prometheus-client prometheus chromium python3-kubernetes containerd runc containernetworking-plugins conntrack
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
parts=()  # what is tested, whatever the folder was configured for: one that is left out since a package is missing is a failure
if command -v dpkg-query >/dev/null; then
  here=(-DPython3_EXECUTABLE=/usr/bin/python3)
  for part in MPI TBB ZLIB TCP ZSTD JPEG LIBPQ ETCD HTTP; do parts+=("-DMUSTER_WITH_$part=ON"); done
  [ $what = library ] || parts+=(-DMUSTER_WITH_SERVE=ON -DMUSTER_WITH_STACKING=ON)
fi
[ $what = library ] || parts+=(-DMUSTER_BUILD_EXAMPLES=ON -DMUSTER_BUILD_BENCHMARKS=ON)

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

# build_and_test PRESET TEST_PRESET OPTION...
build_and_test() {
  local preset=$1 tests=$2 report=$PWD/build/$1/test-report.xml
  shift 2
  say "building build/$preset"
  # Several files at a time: half the work for the compiler. tests/repository builds the library file by file.
  configure "build/$preset" "$preset" -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=8 -DMUSTER_WERROR=ON -DMUSTER_BUILD_TESTS=ON \
    "${here[@]}" "$@"
  cmake --build "build/$preset" --parallel "$cores"
  say "testing build/$preset"
  rm -f "$report"
  # More at a time than there are cores: what most of them do is wait, for a process to die or a deadline to pass. Those
  # that compute say for how many (PROCESSORS).
  ctest --preset "$tests" --parallel $((cores * 4)) --output-junit "$report" || true  # the report tells what failed
  [ -s "$report" ] || die "ctest wrote no report (see above)"
  # A test that could not be run (no such program, a failed fixture) stands in the report as skipped: it has failed.
  local all good left_out bad
  all=$(count '<testcase ' "$report") good=$(count '<testcase .* status="run"' "$report")
  left_out=$(count -e '<skipped message="SKIP_' -e '<testcase .* status="disabled"' "$report")
  bad=$((all - good - left_out))
  [ "$bad" -eq 0 ] || failures "$report"
  if [ "$bad" -gt 0 ] && [ "$bad" -le 3 ]; then
    say "testing build/$preset: what failed, again"
    if ctest --preset "$tests" --rerun-failed; then
      mapfile -t -O ${#retried[@]} retried < <(sed -n 's/.*<testcase name="\([^"]*\)".* status="fail".*/\1/p' "$report")
      bad=0
    fi
  fi
  passed=$((passed + all - left_out - bad)) skipped=$((skipped + left_out)) failed=$((failed + bad))
}

case $what in
  library) build_and_test library library "${parts[@]}" ;;
  full)
    build_and_test release release-full "${parts[@]}"
    build_and_test asan asan -DMUSTER_BUILD_EXAMPLES=ON
    build_and_test tsan tsan -DMUSTER_BUILD_EXAMPLES=ON
    ;;
  *) build_and_test release release "${parts[@]}" ;;
esac

[ ${#retried[@]} -eq 0 ] || printf 'failed at first, passed when run again: %s\n' "${retried[@]}"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
