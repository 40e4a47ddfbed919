#!/usr/bin/env bash
# overlay.sh, sourced: replaces sources for the compiler only (go build -overlay). $work is a directory for the copies
# and other temporary files of the script.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
overlay=() # '"FILE": "COPY"' of each

# replace FILE BEFORE AFTER: FILE must contain BEFORE once.
replace() {
  local file text rest copy
  file=$(realpath "$1")
  copy=$work/${file//\//-}
  [[ -e $copy ]] || { cp "$file" "$copy" && overlay+=("\"$file\": \"$copy\""); }
  text=$(<"$copy")
  rest=${text#*"$2"}
  if [[ $rest == "$text" || $rest == *"$2"* ]]; then
    echo "${0##*/}: want \"$2\" once in $1; update $0" >&2
    exit 1
  fi
  printf '%s\n' "${text/"$2"/"$3"}" >"$copy"
}

# add FILE COPY: adds a source that doesn't exist.
add() { overlay+=("\"$1\": \"$2\""); }

# write_overlay: writes the overlay and prints its name.
write_overlay() {
  (IFS=, && printf '{"Replace": {%s}}\n' "${overlay[*]}") >"$work/overlay.json"
  echo "$work/overlay.json"
}
