#!/bin/sh
# Print a CPython >= 3.11: $PYTHON if it is one, else a newer one on PATH.
set -eu

wanted=${PYTHON:-python3}
for python in "$wanted" python3.13 python3.12 python3.11; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        [ "$python" = "$wanted" ] || echo "$wanted is not Python 3.11 or newer; using $python" >&2
        echo "$python"
        exit 0
    fi
done
echo "error: no Python 3.11 or newer found (tried $wanted, python3.13, python3.12, python3.11)." >&2
echo "       Install one, or name it: make setup PYTHON=/path/to/python3" >&2
exit 1
