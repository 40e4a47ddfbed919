#!/usr/bin/env bash
# stages.sh WHO [SECONDS]: runs stages one after the other. It prints each stage before it runs, and at the end the time of
# each, and how many processors were busy meanwhile.
# Standard input lists them, one a line: NAME IF COMMAND. IF is what a failure of the command means:
#   must   the run ends
#   can    the command runs once more, since other load of the machine disturbs whole systems; the run ends if that fails,
#          too. Status 77 means that this machine can't run it; this is reported and is no failure
#   told   it is reported and is no failure: a change is not responsible for other load of the machine
# SECONDS is how long the run may take: all but must is ended then. That is reported and is no failure, unless the command
# had failed before.
# After a stage that failed, and last of all, it repeats the lines that say what failed.
set -uo pipefail
who=$1 limit=${2:-}
names=() policies=() commands=() results=()
while read -r name policy command; do
  [[ -z $name || $name == \#* ]] && continue
  names+=("$name") policies+=("$policy") commands+=("$command")
done

summary() {
  local i
  echo
  echo "$who: stage                seconds  share processors"
  for i in "${!results[@]}"; do
    read -r seconds processors result <<<"${results[i]}"
    printf '%s: %-18s %9d %5d%% %10s  %s\n' "$who" "${names[i]}" "$seconds" $((SECONDS ? 100 * seconds / SECONDS : 0)) "$processors" "$result"
  done
  printf '%s: %-18s %9d\n' "$who" total "$SECONDS"
}

# The time for which this machine's processors have been busy, in hundredths of a second: 0 where no /proc tells it.
busy() { awk '/^cpu / {n = $2 + $3 + $4 + $7 + $8} END {printf "%d\n", n}' /proc/stat 2>/dev/null || echo 0; }

output=$(mktemp)
declare -A groups=() # of processes that run
# shellcheck disable=SC2317 # the trap calls it
finish() {
  local group
  for group in "${!groups[@]}"; do kill -- -"$group" 2>/dev/null; done
  rm -f "$output"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# begin COMMAND...: starts it in a group of its own, which ends with the run, and sets group.
begin() {
  set -m
  "$@" </dev/null &
  group=$!
  set +m
  groups[$group]=
}

# shellcheck disable=SC2317 # begin calls it
expire() { sleep "$2"; kill -- -"$1"; sleep 60; kill -KILL -- -"$1"; }

# run I: runs the command of a stage, with its output in the file output, too, and sets status; expired: to whether it was
# ended for its time.
run() {
  local command to tee
  expired=
  exec {to}> >(exec tee "$output")
  tee=$!
  begin bash -c "${commands[$1]}" >&"$to" 2>&1
  exec {to}>&-
  command=$group
  [[ -z $limit || ${policies[$1]} == must ]] || begin expire "$command" $((limit > SECONDS ? limit - SECONDS : 0)) 2>/dev/null
  wait "$command"
  status=$?
  unset "groups[$command]"
  # What the command said last; a process that it left may hold the output open.
  for _ in {1..10}; do kill -0 "$tee" 2>/dev/null && sleep 0.1; done
  if ((group != command)); then
    kill -- -"$group" 2>/dev/null
    unset "groups[$group]"
    ((status == 0 || SECONDS < limit)) || expired=1
  fi
}

for i in "${!names[@]}"; do
  echo
  echo "$who: $((i + 1))/${#names[@]} ${names[i]}: ${commands[i]} (after $SECONDS s; $(df -h . | awk 'NR == 2 {print $4}') of disk are free; next: ${names[i + 1]:-the summary})"
  begin=$SECONDS before=$(busy) again=
  run "$i"
  first=$status
  if [[ ${policies[i]} == can && $status != 0 && $status != 77 && -z $expired ]]; then
    echo "$who: ${names[i]} failed with status $status, once more"
    again=', the second time'
    run "$i"
    [[ -z $expired ]] || status=$first expired=
  fi
  seconds=$((SECONDS - begin))
  case $status:$expired:${policies[i]} in
    0:*) result=ok$again ;;
    *:1:*) result="NOT FINISHED: the run may take $limit s" ;;
    77::can) result="NOT RUN: this machine can't, see above" ;;
    *:told) result="exceeded or not measured (status $status), see above; no failure" ;;
    *) result="FAILED (status $status)" ;;
  esac
  processors=$(awk -v n=$(($(busy) - before)) -v s="$seconds" 'BEGIN {printf "%.1f\n", n / 100 / (s ? s : 1)}')
  results+=("$seconds $processors $result")
  echo "$who: ${names[i]} $result ($seconds s)"
  if [[ $result == FAILED* ]]; then
    summary
    grep -aE '^ *--- FAIL|_test\.go:[0-9]+: |^panic: |^WARNING: DATA RACE' "$output" | grep -av '^=== ' | cut -c 1-300 | head -n 20
    echo "$who: FAILED: ${names[i]}" >&2
    exit "$status"
  fi
done
summary
echo "$who: ok"
