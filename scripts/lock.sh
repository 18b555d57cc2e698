#!/bin/sh
# Pin requirements/dev.in, with hashes, for CPython >= 3.11 on every platform. The tool that does it
# (uv) lives in a throw-away environment. Pins that still fit are kept, unless UPGRADE is set.
set -eu
cd "$(dirname "$0")/.."
pins=requirements/dev.txt

python=$(PYTHON="${PYTHON:-python3}" scripts/find-python.sh)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

echo "lock: fetching uv"
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip --quiet --disable-pip-version-check install "uv>=0.9"

[ ! -e "$pins" ] || cp "$pins" "$work/dev.txt"
echo "lock: resolving"
"$work/venv/bin/uv" pip compile --quiet --universal --python "$python" --python-version 3.11 \
    --generate-hashes --no-emit-index-url --no-emit-find-links \
    --custom-compile-command "make lock" ${UPGRADE:+--upgrade} \
    --output-file "$work/dev.txt" requirements/dev.in >/dev/null

if grep -n '://' "$work/dev.txt" >&2; then
    echo "error: the pins name a download address (above); $pins is left as it was." >&2
    exit 1
fi
cat "$work/dev.txt" >"$pins"
echo "lock: wrote $pins ($(grep -c '==' "$pins") packages)"
