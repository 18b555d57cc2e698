#!/bin/sh
# usage: system-packages.sh [smoke]
# Make sure the system programs that the tests start are there: redis-server, rabbitmq-server, PostgreSQL, PgBouncer,
# openssl for certificates, Java for Spark, and a browser that looks at the report. Debian's packages have the
# programs' names, but for Java's. With `smoke` only those of the outages in `make test`, which goes on without them: it says so in a line.
set -eu
only=${1:-}
cd "$(dirname "$0")/.."

can_do_without() {
    [ "$only" = smoke ] || return 0
    left=$(missing)
    [ -z "$left" ] || echo "smoke: not run where these are missing, and they can't be installed here:$left"
    exit 0
}

java_works() {
    # "17.0.15" and the like; Java 8 called itself "1.8".
    version=$("${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${version:-0}" -ge 17 ]
}

missing() {
    for program in redis-server openssl; do
        command -v "$program" >/dev/null 2>&1 || printf ' %s' "$program"
    done
    # The tests run the server itself; its command of the same name is in sbin, which a user's PATH may lack.
    [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || command -v rabbitmqctl >/dev/null 2>&1 || printf ' rabbitmq-server'
    [ -z "$only" ] || return 0
    # Debian keeps the server's programs in a directory for each version, which is not on PATH.
    command -v postgres >/dev/null 2>&1 || [ -n "$(find /usr/lib/postgresql -name postgres 2>/dev/null)" ] ||
        printf ' postgresql'
    command -v pgbouncer >/dev/null 2>&1 || [ -x /usr/sbin/pgbouncer ] || printf ' pgbouncer'
    # By which the kernel ends the tests' servers when the tests are killed.
    command -v setpriv >/dev/null 2>&1 || printf ' util-linux'
    # Any browser of that family will do; only Debian's can be installed from here.
    command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 ||
        command -v google-chrome >/dev/null 2>&1 || printf ' chromium'
    java_works || printf ' default-jre-headless'
}

wanted=$(missing)
[ -n "$wanted" ] || exit 0

status=0
# shellcheck disable=SC2086  # a list of words
scripts/apt-install.sh $wanted || status=$?
if [ "$status" -eq 0 ]; then
    # The tests start their own servers on free ports; Debian's own services stay off, after a reboot too.
    if [ -d /run/systemd/system ]; then
        sudo=
        [ "$(id -u)" -eq 0 ] || sudo="sudo -n"
        for program in $wanted; do
            case $program in
                *-server | postgresql | pgbouncer) $sudo systemctl disable --quiet --now "$program.service" || true ;;
            esac
        done
    fi
    left=$(missing)
    [ -n "$left" ] || exit 0
    can_do_without
    echo "error: installed, but not on PATH:$left ($PATH)." >&2
    exit 1
fi
can_do_without
[ "$status" -eq 2 ] || exit "$status"

echo "error: missing:$wanted: the tests start them, and this user may not install them." >&2
if command -v apt-get >/dev/null 2>&1; then
    echo "       Run: sudo apt-get install -y$wanted" >&2
else
    echo "       Install them with this system's package manager, so that they are on PATH." >&2
fi
exit 1
