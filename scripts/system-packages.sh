#!/bin/sh
# Make sure the system programs that the tests start are there.
set -eu
cd "$(dirname "$0")/.."

command -v redis-server >/dev/null 2>&1 && exit 0

status=0
scripts/apt-install.sh redis-server || status=$?
if [ "$status" -eq 0 ]; then
    # The tests start their own servers on free ports; Debian's own service stays off, after a reboot too.
    if [ -d /run/systemd/system ]; then
        sudo=
        [ "$(id -u)" -eq 0 ] || sudo="sudo -n"
        $sudo systemctl disable --quiet --now redis-server.service || true
    fi
    command -v redis-server >/dev/null 2>&1 && exit 0
    echo "error: installed redis-server, but it is not on PATH ($PATH)." >&2
    exit 1
fi
[ "$status" -eq 2 ] || exit "$status"

echo "error: redis-server is missing: the tests start it, and this user may not install it." >&2
if command -v apt-get >/dev/null 2>&1; then
    echo "       Run: sudo apt-get install -y redis-server" >&2
else
    echo "       Install Redis 6.2 or newer with this system's package manager, so that" >&2
    echo "       redis-server is on PATH." >&2
fi
exit 1
