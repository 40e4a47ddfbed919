#!/usr/bin/env bash
# demo.sh run|start|stop [PROGRAM...]: runs PROGRAM as the stack $STACK in the foreground; or starts it in the
# background and returns when it has printed that it is ready; or stops it.
set -euo pipefail
cd "$(dirname "$0")/.."
action=$1 stack=${STACK:-demo}
shift
[[ $stack =~ ^[A-Za-z0-9_-][A-Za-z0-9._-]{0,31}$ ]] || {
  echo "STACK \"$stack\": want 1 to 32 letters, digits, '.', '_' or '-', not starting with '.'" >&2
  exit 2
}
dir=.run/$stack pidfile=.run/$stack/pid log=.run/$stack/demo.log
mkdir -p "$dir"
chmod 700 "$dir"

# The program and its children inherit descriptor 9, and with it the lock on the pid file, which the kernel releases
# when the last of them has exited: a stale pid is never taken for a running program.
exec 9>>"$pidfile"

if [[ $action == stop ]]; then
  flock --nonblock 9 && { echo "stack $stack is not running"; exit; }
  pid=$(<"$pidfile")
  [[ /proc/$pid/fd/9 -ef $pidfile ]] || { echo "stack $stack is just starting or ending; try again" >&2; exit 1; }
  kill "$pid"
  flock --timeout 20 9 || { kill -KILL "$pid"; flock --timeout 20 9; }
  echo "stopped stack $stack (pid $pid)"
  exit
fi

flock --nonblock 9 || {
  echo "stack $stack runs already (pid $(<"$pidfile")); end it with: make stop STACK=$stack, or run another, with" \
    "other addresses: make run STACK=NAME EDGE=HOST:PORT" >&2
  exit 1
}
echo "starting stack $stack; its logs are in $dir"
if [[ $action == run ]]; then
  echo $$ >"$pidfile"
  exec "$@"
fi
setsid "$@" >"$log" 2>&1 </dev/null &
pid=$!
echo $pid >"$pidfile"
trap 'kill $pid' INT TERM
until grep -q '^gatehouse ready' "$log"; do
  kill -0 $pid 2>/dev/null || { tail -n 40 "$log" >&2; wait $pid; exit 1; }
  sleep 0.1
done
cat "$log"
