#!/bin/sh
# release_twice.sh SOURCE FOLDER: tools/release.sh --dry-run makes the same archive twice, of a clone of the last commit, and
# refuses a working tree with changes. SKIPPED without git.
set -eu
source=$1 folder=$2
git -C "$source" rev-parse HEAD >/dev/null 2>&1 || { echo "SKIPPED: $source is no clone" && exit 0; }
rm -rf "$folder"
git clone -q "$source" "$folder/clone"
"$folder/clone/tools/release.sh" --dry-run "$folder/first" | tail -n 1 >"$folder/first.txt"
"$folder/clone/tools/release.sh" --dry-run "$folder/second" | tail -n 1 >"$folder/second.txt"
cmp "$folder/first.txt" "$folder/second.txt"
(cd "$folder/first" && sha256sum -c SHA256SUMS)
tar -tzf "$folder"/first/muster-*.tar.gz | grep -qx 'muster-[0-9.]*/CMakeLists.txt'
echo >>"$folder/clone/README.md"
if "$folder/clone/tools/release.sh" --dry-run "$folder/third" 2>"$folder/refused.txt"; then exit 1; fi
grep -q 'the working tree has changes' "$folder/refused.txt"
cat "$folder/first.txt"
