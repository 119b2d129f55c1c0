#!/bin/sh
# pods.sh PODS CORES: whether this machine has so many cores for each of so many pods.
[ "$(nproc)" -ge $(($1 * $2)) ] || { echo "$1 pods of $2 cores need $(($1 * $2)) of them, here are $(nproc): see muster-bench manifests"; exit 1; }
