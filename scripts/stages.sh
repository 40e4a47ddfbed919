#!/usr/bin/env bash
# stages.sh WHO [SECONDS]: runs stages one after the other. It prints each stage before it runs, and at the end the time of
# each, and how many processors were busy meanwhile.
# Standard input lists them, one a line: NAME IF COMMAND. IF is what a failure of the command means:
#   must   the run ends
#   can    the command runs once more, since other load of the machine disturbs whole systems; the run ends if that fails,
#          too. Status 77 means that this machine can't run it; this is reported and is no failure
#   beside the same, of a command that mostly waits: it starts with the run, beside other stages, and is awaited at its line
#   told   it is reported and is no failure: a change is not responsible for other load of the machine
# SECONDS is how long the run may take: all but must ends then, which is reported and is no failure.
# After a stage that failed, and last of all, it repeats the lines that say what failed.
set -uo pipefail
who=$1 limit=${2:-}
names=() policies=() commands=() results=() jobs=()
while read -r name policy command; do
  [[ -z $name || $name == \#* ]] && continue
  names+=("$name") policies+=("$policy") commands+=("$command")
done

summary() {
  local i
  echo
  echo "$who: stage                seconds  share processors"
  for i in "${!results[@]}"; do
    read -r seconds busy result <<<"${results[i]}"
    printf '%s: %-18s %9d %5d%% %10s  %s\n' "$who" "${names[i]}" "$seconds" $((SECONDS ? 100 * seconds / SECONDS : 0)) "$busy" "$result"
  done
  printf '%s: %-18s %9d\n' "$who" total "$SECONDS"
}

# The time for which this machine's processors have been busy, in hundredths of a second: 0 where no /proc tells it.
busy() { awk '/^cpu / {n = $2 + $3 + $4 + $7 + $8} END {printf "%d\n", n}' /proc/stat 2>/dev/null || echo 0; }

work=$(mktemp -d)
# shellcheck disable=SC2317 # the trap calls it
finish() {
  local job
  for job in "${jobs[@]}"; do kill -- -"$job" 2>/dev/null; done
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# run POLICY COMMAND: status 124 if the time of the run is over.
run() {
  local until=()
  [[ -z $limit || $1 == must ]] || until=(timeout --kill-after=10 $((limit > SECONDS ? limit - SECONDS : 1)))
  "${until[@]}" bash -c "$2" </dev/null 2>&1
}

# stage I: runs a stage, and sets status, and seconds to how long that took. Its output is also in the file output.
stage() {
  local begin=$SECONDS
  status=0 again=
  run "${policies[$1]}" "${commands[$1]}" | tee "$output" || status=$?
  if [[ ${policies[$1]} != [mt]* && $status != 0 && $status != 77 && $status != 124 ]]; then
    echo "$who: ${names[$1]} failed with status $status, once more"
    status=0 again=', the second time'
    run "${policies[$1]}" "${commands[$1]}" | tee "$output" || status=$?
  fi
  seconds=$((SECONDS - begin))
}

set -m # each job has a group of processes, which ends with the run
for i in "${!names[@]}"; do
  [[ ${policies[i]} == beside ]] || continue
  echo "$who: ${names[i]} starts, beside other stages"
  (output=$work/$i && stage "$i" && echo "$status $seconds $again" >"$work/$i.result") >"$work/$i.log" 2>&1 &
  jobs[i]=$!
done
set +m

for i in "${!names[@]}"; do
  echo
  echo "$who: $((i + 1))/${#names[@]} ${names[i]}: ${commands[i]} (after $SECONDS s; $(df -h . | awk 'NR == 2 {print $4}') of disk are free; next: ${names[i + 1]:-the summary})"
  if [[ ${policies[i]} == beside ]]; then
    wait "${jobs[i]}"
    unset "jobs[i]"
    cat "$work/$i.log"
    read -r status seconds again <"$work/$i.result"
    output=$work/$i processors=-
  else
    before=$(busy) output=$work/output
    stage "$i"
    processors=$(awk -v n=$(($(busy) - before)) -v s="$seconds" 'BEGIN {printf "%.1f\n", n / 100 / (s ? s : 1)}')
  fi
  case $status:${policies[i]} in
    0:*) result=ok$again ;;
    124:can | 124:beside | 124:told) result="NOT FINISHED: the run may take $limit s" ;;
    77:can | 77:beside) result="NOT RUN: this machine can't, see above" ;;
    *:told) result="exceeded or not measured (status $status), see above; no failure" ;;
    *) result="FAILED (status $status)" ;;
  esac
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
