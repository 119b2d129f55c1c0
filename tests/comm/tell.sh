#!/bin/sh
# usage: tell.sh PROGRAM WORDS...
# Runs it as a rank of mpirun. Every line that it says begins with whose it is, "0: ready", so that the launcher's own
# end hides nobody's; its process and its status are such lines too: "0: pid 1234", "0: status 137".
{
  # shellcheck disable=SC2016
  sh -c 'echo "pid $$"; exec "$@"' sh "$@" 2>&1
  echo "status $?"
} | while read -r line; do echo "${MUSTER_TEST_NAME:-$OMPI_COMM_WORLD_RANK}: $line"; done
