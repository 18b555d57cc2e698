#!/bin/sh
# usage: under-load.sh N COMMAND...
# Keep N processes busy beside a command; the status is the command's. It shows what a slow machine makes of the tests.
set -u
case "${1:-}" in
    '' | *[!0-9]*) echo "usage: under-load.sh N COMMAND..." >&2; exit 2 ;;
esac
count=$1
shift
[ $# -gt 0 ] || { echo "under-load.sh: which command?" >&2; exit 2; }

busy=
end() {
    # shellcheck disable=SC2086  # a list of process ids
    [ -z "$busy" ] || kill $busy 2>/dev/null
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
while [ "$count" -gt 0 ]; do
    # It ends by itself when this script is killed.
    sh -c 'while kill -0 "$0" 2>/dev/null; do i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; done' $$ &
    busy="$busy $!"
    count=$((count - 1))
done
"$@"
