# shellcheck shell=bash disable=SC2154
# Sourced by slurm-local.sh and kube-local.sh: processes of $folder, with a file of the process's number and a log each.

# living FILE: the process in it, if it is one of this folder.
living() {
  local pid
  pid=$(cat "$1" 2>/dev/null) && [ -n "$pid" ] && grep -qaF "$folder" "/proc/$pid/cmdline" "/proc/$pid/environ" 2>/dev/null && echo "$pid"
}

# await WHAT COMMAND...: until it succeeds, for two minutes.
await() {
  local name=$1 until=$((SECONDS + 120))
  shift
  while [ $SECONDS -lt $until ]; do
    ! timeout 10 "$@" >/dev/null 2>&1 || return 0
    sleep 0.2
  done
  echo "$name does not answer" >&2
  return 1
}

start() { # start NAME COMMAND...
  local name=$1
  shift
  setsid "$@" >>"$folder/$name.log" 2>&1 </dev/null &
  echo $! >"$folder/$name.pid"
}
