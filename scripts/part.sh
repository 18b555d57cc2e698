#!/bin/sh
# usage: part.sh NICENESS TITLE COMMAND...
# Run a part of the tests beside others: what it says is shown in one piece when it has ended, and its status is that of
# the command. The niceness leaves the processor to the tests that watch the clock.
set -u
niceness=$1
title=$2
shift 2

said=$(mktemp)
trap : INT # goes to the command as well; what it says of it is to be seen
nice -n "$niceness" "$@" >"$said" 2>&1
status=$?
echo "test: $title"
cat "$said"
rm -f "$said"
exit "$status"
