# shellcheck shell=bash disable=SC2034
# Sourced by demo.sh and test.sh: goes to the root of the repository, gets what is missing from Debian, configures.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
script=tools/$(basename -- "$0")

say() { printf '==> %s\n' "$*"; }
die() {
  printf '%s: %s\n' "$script" "$*" >&2
  exit 1
}

# installed PACKAGE: whether it is there, or for a tool, whether the tool is, wherever it came from.
installed() {
  case $1 in
    g++ | cmake | python3) command -v "$1" >/dev/null && return ;;
    make) { command -v make || command -v ninja; } >/dev/null && return ;;
    pkg-config) { command -v pkg-config || command -v pkgconf; } >/dev/null && return ;;
  esac
  [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# install_missing PACKAGE...: installs with apt those that are not there, or says what to run. Touches no network when
# nothing is missing.
install_missing() {
  if ! command -v dpkg-query >/dev/null; then
    say "this is not Debian, so nothing is installed; needed is what Debian calls: $*"
    return
  fi
  local package missing=() as_root=()
  for package in "$@"; do
    installed "$package" || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0

  local line="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
      as_root=(sudo)
      say "installing with sudo apt-get: ${missing[*]}"
    else
      die "packages are missing and this user cannot install them; as root run: $line"
    fi
  else
    say "installing with apt-get: ${missing[*]}"
  fi
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120)
  "${as_root[@]}" "${apt[@]}" update && "${as_root[@]}" "${apt[@]}" install -y --no-install-recommends "${missing[@]}" ||
    die "apt-get failed (see above); once that is mended run this again, or as root: $line"
}

# configure FOLDER PRESET OPTION...: into FOLDER, with Ninja where there is one and nobody chose otherwise. Where there is
# ccache nothing is compiled twice, in another clone neither.
configure() {
  local folder=$1 preset=$2 cache=$1/CMakeCache.txt generator=() compiler=()
  shift 2
  if [ -f "$cache" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$cache"; then
    say "$folder was configured for another folder: configuring it anew"
    rm -rf "$cache" "$folder/CMakeFiles"
  fi
  if [ ! -f "$cache" ] && [ -z "${CMAKE_GENERATOR:-}" ] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
  if command -v ccache >/dev/null; then
    compiler=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
    export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    # -march=native is another option on each kind of machine, which ccache does not know.
    CCACHE_NAMESPACE=$({ grep -m1 -iE '^(flags|features)' /proc/cpuinfo || true; } | sha256sum | cut -c-16)
    export CCACHE_NAMESPACE
  fi
  cmake --preset "$preset" -B "$folder" "${generator[@]}" "${compiler[@]}" "$@"
}

# Packages that the library and its main programs are built with, and mpirun.
build_packages=(g++ cmake make pkg-config libopenmpi-dev openmpi-bin libeigen3-dev libtbb-dev libcli11-dev
  nlohmann-json3-dev zlib1g-dev libssl-dev libpmix-dev libzstd-dev libjpeg-dev libpng-dev libpq-dev libcurl4-openssl-dev
  libboost-dev libsimdjson-dev)
cores=$(nproc)
