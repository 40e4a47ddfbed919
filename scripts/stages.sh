#!/usr/bin/env bash
# stages.sh WHO [SECONDS]: runs stages one after the other. It prints each stage before it runs, and at the end the time of
# each, and how many processors were busy meanwhile.
# Standard input lists them, one a line: NAME IF COMMAND. IF is what a failure of the command means:
#   must   the run ends
#   can    the command runs once more, since other load of the machine disturbs whole systems; the run ends if that fails,
#          too. Status 77 means that this machine can't run it; this is reported and is no failure
#   beside the same, of a command that mostly waits: it starts with the run, beside other stages, and is awaited at its line
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

work=$(mktemp -d)
declare -A groups=() # of processes that run, by the first of each
# shellcheck disable=SC2317 # the trap calls it
finish() {
  local group
  for group in "${!groups[@]}"; do kill -- -"$group" 2>/dev/null; done
  rm -rf "$work"
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

# start I: starts the command of a stage, and sets group.
start() {
  begin bash -c "${commands[$1]}" 2>&1
  if [[ -n $limit && ${policies[$1]} != must ]]; then
    local command=$group
    begin expire "$command" $((limit > SECONDS ? limit - SECONDS : 0)) 2>/dev/null
    groups[$command]=$group
    group=$command
  fi
}

# await GROUP: waits for a command of start, and sets status; expired: to whether it was ended for its time.
await() {
  wait "$1"
  status=$? expired=
  if [[ -n ${groups[$1]} ]]; then
    kill -- -"${groups[$1]}" 2>/dev/null
    unset "groups[${groups[$1]}]"
    ((status == 0 || SECONDS < limit)) || expired=1
  fi
  unset "groups[$1]"
}

beside=() # groups, by the index of the stage
for i in "${!names[@]}"; do
  [[ ${policies[i]} == beside ]] || continue
  echo "$who: ${names[i]} starts, beside other stages"
  start "$i" >"$work/$i"
  beside[i]=$group
done

for i in "${!names[@]}"; do
  echo
  echo "$who: $((i + 1))/${#names[@]} ${names[i]}: ${commands[i]} (after $SECONDS s; $(df -h . | awk 'NR == 2 {print $4}') of disk are free; next: ${names[i + 1]:-the summary})"
  begin=$SECONDS before=$(busy) output=$work/$i again=
  if [[ -n ${beside[i]:-} ]]; then
    await "${beside[i]}"
    cat "$output"
    begin=0
  else
    start "$i" > >(tee "$output")
    await "$group"
  fi
  first=$status
  if [[ ${policies[i]} == can || ${policies[i]} == beside ]] && ((status != 0 && status != 77)) && [[ -z $expired ]]; then
    echo "$who: ${names[i]} failed with status $status, once more"
    again=', the second time'
    start "$i" > >(tee "$output")
    await "$group"
    [[ -z $expired ]] || status=$first expired=
  fi
  seconds=$((SECONDS - begin))
  case $status:$expired:${policies[i]} in
    0:*) result=ok$again ;;
    *:1:*) result="NOT FINISHED: the run may take $limit s" ;;
    77::can | 77::beside) result="NOT RUN: this machine can't, see above" ;;
    *:told) result="exceeded or not measured (status $status), see above; no failure" ;;
    *) result="FAILED (status $status)" ;;
  esac
  processors=$(awk -v n=$(($(busy) - before)) -v s="$seconds" 'BEGIN {printf "%.1f\n", n / 100 / (s ? s : 1)}')
  [[ -z ${beside[i]:-} ]] || processors=-
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
