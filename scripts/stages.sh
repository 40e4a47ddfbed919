#!/usr/bin/env bash
# stages.sh WHO [SECONDS]: runs stages one after the other. It prints each stage before it runs, and at the end the time of
# each, and how many processors were busy meanwhile.
# Standard input lists them, one a line: NAME IF COMMAND. IF is what a failure of the command means:
#   must   the run ends
#   can    the command runs once more, since other load of the machine disturbs whole systems; the run ends if that fails,
#          too. Status 77 means that this machine can't run it; this is reported and is no failure
#   told   it is reported and is no failure: a change is not responsible for other load of the machine
# SECONDS is how long the run may take: what would be no failure if it failed, and second attempts, end then, which is
# reported, too.
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
    read -r seconds busy result <<<"${results[i]}"
    printf '%s: %-18s %9d %5d%% %10s  %s\n' "$who" "${names[i]}" "$seconds" $((SECONDS ? 100 * seconds / SECONDS : 0)) "$busy" "$result"
  done
  printf '%s: %-18s %9d\n' "$who" total "$SECONDS"
}

# The time for which this machine's processors have been busy, in hundredths of a second: 0 where no /proc tells it.
busy() { awk '/^cpu / {n = $2 + $3 + $4 + $7 + $8} END {printf "%d\n", n}' /proc/stat 2>/dev/null || echo 0; }

output=$(mktemp)
trap 'rm -f "$output"' EXIT

# run POLICY COMMAND: status 124 if the time of the run is over.
run() {
  local until=()
  [[ -z $limit || $1 == must ]] || until=(timeout --kill-after=10 $((limit > SECONDS ? limit - SECONDS : 1)))
  "${until[@]}" bash -c "$2" </dev/null 2>&1 | tee "$output"
}

for i in "${!names[@]}"; do
  echo
  echo "$who: $((i + 1))/${#names[@]} ${names[i]}: ${commands[i]} (after $SECONDS s; $(df -h . | awk 'NR == 2 {print $4}') of disk are free; next: ${names[i + 1]:-the summary})"
  begin=$SECONDS busy=$(busy) status=0
  run "${policies[i]}" "${commands[i]}" || status=$?
  again=
  if [[ ${policies[i]} == can && $status != 0 && $status != 77 && $status != 124 ]]; then
    echo "$who: ${names[i]} failed with status $status, once more"
    again=', the second time' status=0
    run "${policies[i]}" "${commands[i]}" || status=$?
  fi
  case $status:${policies[i]} in
    0:*) result=ok$again ;;
    124:can | 124:told) result="NOT FINISHED: the run may take $limit s" ;;
    77:can) result="NOT RUN: this machine can't, see above" ;;
    *:told) result="exceeded or not measured (status $status), see above; no failure" ;;
    *) result="FAILED (status $status)" ;;
  esac
  results+=("$((SECONDS - begin)) $(awk -v a="$busy" -v b="$(busy)" -v s=$((SECONDS - begin)) 'BEGIN {printf "%.1f\n", (b - a) / 100 / (s ? s : 1)}') $result")
  echo "$who: ${names[i]} $result ($((SECONDS - begin)) s)"
  if [[ $result == FAILED* ]]; then
    summary
    grep -aE '^ *--- FAIL|_test\.go:[0-9]+: |^panic: |^WARNING: DATA RACE' "$output" | grep -av '^=== ' | cut -c 1-300 | head -n 20
    echo "$who: FAILED: ${names[i]}" >&2
    exit "$status"
  fi
done
summary
echo "$who: ok"
