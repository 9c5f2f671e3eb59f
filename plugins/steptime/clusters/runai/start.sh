#!/usr/bin/env bash
# Starts a job's script in a pod, and leaves a note of its start and of its end on the volume: Run:ai says
# that a pod failed, and not how. Always the same text; what differs comes as environment variables.
set -u
rank=${RANK:-0}
started=$STEPTIME_STATE/started-$rank
ended=$STEPTIME_STATE/ended-$rank
log=$STEPTIME_LOG
((rank == 0)) || log=$log.$rank # two machines cannot append to one file of a network volume

# Preempted or resumed, the pod comes a second time. A training that starts anew would spoil its own log.
if ! (set -o noclobber && echo "${EPOCHREALTIME/,/.} ${STEPTIME_NODE:-$HOSTNAME}" >"$started") 2>/dev/null; then
  echo "steptime: this pod was started a second time; the job is not run again" >>"$log"
  exit 75
fi

note_end() { # exit code, and how it came to it: by itself, `time-limit`, or `told` by a SIGTERM to the pod
  echo "${EPOCHREALTIME/,/.} $1 $2" >"$ended.tmp" && mv "$ended.tmp" "$ended"
  exit "$1"
}

if [[ ${WORLD_SIZE:-1} != "$STEPTIME_PODS" ]]; then
  echo "steptime: Run:ai started ${WORLD_SIZE:-1} pods where $STEPTIME_PODS were asked for" >>"$log"
  note_end 78 itself
fi

cd "$STEPTIME_DIRECTORY" || note_end 78 itself
how=itself
child=
trap 'how=told; [[ -z $child ]] || kill -TERM "$child" 2>/dev/null' TERM
# Without a tty, `timeout` leads a process group of its own and hands a SIGTERM on to all of it.
timeout --kill-after="$STEPTIME_GRACE_S" "$STEPTIME_TIME_LIMIT_S" \
  bash "$STEPTIME_SCRIPT" </dev/null >>"$log" 2>&1 &
child=$!
[[ $how == itself ]] || kill -TERM "$child" 2>/dev/null # told in the instant before
wait "$child"
code=$?
while kill -0 "$child" 2>/dev/null; do # a signal interrupts `wait`
  wait "$child"
  code=$?
done
if [[ $how == itself ]] && ((SECONDS >= STEPTIME_TIME_LIMIT_S)) && ((code == 124 || code == 137)); then
  how=time-limit
fi
note_end "$code" "$how"
