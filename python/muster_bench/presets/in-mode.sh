#!/bin/sh
# in-mode.sh BUILD RANKS MODE PROGRAM...: a training under the launcher that its mode needs. MODE is one of muster's; ps, with
# a rank more, which serves (ps:CONSISTENCY for another than the default); or elastic-kill, an elastic job of which one rank is
# killed (SIGKILL) after its first epoch, and started again.
set -u
build=$1 ranks=$2 mode=$3
shift 3
case $mode in
  elastic-kill) ;;
  ps) exec mpirun --oversubscribe -n $((ranks + 1)) "$@" --mode ps ;;
  ps:*) exec mpirun --oversubscribe -n $((ranks + 1)) "$@" --mode ps --consistency "${mode#ps:}" ;;
  *) exec mpirun --oversubscribe -n "$ranks" "$@" --mode "$mode" ;;
esac
: >job.txt # not that of an earlier run
"$build/src/programs/muster-launch" -n "$ranks" --restart 1 "$@" >job.txt 2>&1 &
job=$!
while kill -0 $job 2>/dev/null && ! grep -q '^ *1  ' job.txt; do sleep 0.1; done # the line of the first epoch
sleep 0.3
victim=$(pgrep -P $job | tail -n 1)
[ -z "$victim" ] || kill -KILL "$victim"
wait $job
status=$?
cat job.txt
if [ -z "$victim" ] && [ $status = 0 ]; then
  echo "in-mode.sh: the job ended before a rank could be killed (its epochs are too short); use more of them" >&2
  status=1
fi
exit $status
