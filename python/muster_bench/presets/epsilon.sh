#!/bin/sh
# epsilon.sh memory RANKS: whether so many ranks, each with the whole set, fit into what memory is free.
# epsilon.sh files FOLDER: whether the published set is there, packed or not. epsilon.sh unpack FOLDER: unpacks it, once.
set -eu
case $1 in
  memory)
    needed=$(($2 * 4100)) # MB: 500,000 rows of 2,000 floats, and what a rank has besides
    free=$(awk '/^MemAvailable/ { print int($2 / 1000) }' /proc/meminfo)
    [ "$free" -ge $needed ] || { echo "$2 ranks need $needed MB and $free are free"; exit 1; } ;;
  files)
    for name in epsilon_normalized epsilon_normalized.t; do
      [ -e "$2/$name" ] || [ -e "$2/$name.bz2" ] || { echo "there is no $2/$name.bz2"; exit 1; }
    done ;;
  unpack)
    for name in epsilon_normalized epsilon_normalized.t; do
      [ -e "$2/$name" ] || { bunzip2 -c "$2/$name.bz2" >"$2/$name.$$" && mv "$2/$name.$$" "$2/$name"; }
    done ;;
esac
