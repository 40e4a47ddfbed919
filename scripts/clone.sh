# shellcheck shell=bash
# To be sourced in the root: goes to a clone of HEAD, in which nothing was built, in the new directory $work; `remove` deletes it, as
# the end of the script does. Caches of the user (Go, pip, npm) count as there.
source=$PWD
unset ENVOY
[[ -z $(git status --porcelain) ]] || echo "$(basename "$0"): changes that are not committed are not tested" >&2
work=$(mktemp -d)
remove() { cd / && chmod -R u+w "$work" && rm -rf "$work"; }
trap remove EXIT
git clone --quiet "$source" "$work/clone"
cd "$work/clone" || exit
