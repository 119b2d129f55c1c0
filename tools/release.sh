#!/usr/bin/env bash
# Checks and makes the files of a release, and prints their digests. Installs what is missing (Debian).
usage='usage: tools/release.sh [--dry-run] FOLDER

Checks the versions, the changelog and the licences, that the working tree is committed, and that the manual agrees with
the code; runs tools/test.sh --all; makes in FOLDER the archive of the sources, the packages of Debian and the wheel of
Python, and tests the packages in a bare root. The last lines are the digests, which FOLDER/SHA256SUMS has too.
  --dry-run  checks, and makes the archive alone: no tests, no packages'
dry=
if [ "${1:-}" = --dry-run ]; then dry=1 && shift; fi
case ${1:-} in
  --help) printf '%s\n' "$usage" && exit 0 ;;
  "" | -*) printf 'tools/release.sh: a release needs a folder\n%s\n' "$usage" >&2 && exit 2 ;;
esac
mkdir -p "$1"
folder=$(cd -- "$1" && pwd)
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

[ -z "$(ls -A "$folder")" ] || die "$folder is not empty (old files would be among the new ones); name another folder"
[ -z "$(git status --porcelain)" ] || die "the working tree has changes (the archive has the last commit); commit them"
version=$(python3 tests/repository/release.py .) || die "the files are not ready for a release (see above); mend them"
for check in "manual.py ." "architecture.py ." "outward.py ." "scan.py ." "words.py ."; do
  # shellcheck disable=SC2086
  printed=$(python3 tests/repository/$check 2>&1) || {
    printf '%s\n' "$printed" >&2
    die "tests/repository/$check fails (see above); mend it"
  }
done
say "version $version, commit $(git rev-parse --short HEAD)"

# The same bytes for the same commit: gzip records no time.
git archive --format=tar --prefix="muster-$version/" HEAD | gzip -9n >"$folder/muster-$version.tar.gz"
if [ -z "$dry" ]; then
  tools/test.sh --all
  install_missing "${build_packages[@]}" debootstrap lintian python3-venv
  say "building the packages of Debian in build/debian"
  configure build/debian debian
  cmake --build build/debian --parallel "$cores"
  cpack -G DEB --config build/debian/CPackConfig.cmake -B "$folder" >build/debian/cpack.log || die "cpack failed (build/debian/cpack.log)"
  rm -rf "$folder/_CPack_Packages"
  python3 tests/repository/packages.py . "$folder"
  say "building the wheel"
  python3 -m venv build/release-venv
  build/release-venv/bin/pip --quiet wheel --no-deps --wheel-dir "$folder" ./python
fi
cd "$folder"
find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs sha256sum | tee SHA256SUMS
