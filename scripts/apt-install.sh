#!/bin/sh
# usage: apt-install.sh PACKAGE...
# Install Debian packages when we may (root, or sudo without a password); start none of their services.
# Exit 2: we may not, or there is no apt-get here; the caller says what to do.
set -eu

command -v apt-get >/dev/null 2>&1 || exit 2
if [ "$(id -u)" -eq 0 ]; then
    as_root() { "$@"; }
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root() { sudo -n "$@"; }
else
    exit 2
fi

# Two of these may run at the same time: one waits for the other's end.
mkdir -p build
exec 9>build/apt.lock
! command -v flock >/dev/null 2>&1 || flock 9

# invoke-rc.d asks this file before it starts a service; 101 means "not allowed".
policy=/usr/sbin/policy-rc.d
log=$(mktemp)
made_policy=
clean_up() {
    rm -f "$log"
    [ -z "$made_policy" ] || as_root rm -f "$policy"
}
trap clean_up EXIT
trap 'exit 130' INT TERM
if [ ! -e "$policy" ]; then
    made_policy=yes
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
fi

install() {
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -y --no-install-recommends install "$@" >"$log" 2>&1
}

echo "apt: installing $*"
if ! install "$@"; then
    # Often just a package index that is missing or old.
    echo "apt: updating the package index and trying again"
    as_root apt-get -qq update >>"$log" 2>&1 || true
    if ! install "$@"; then
        cat "$log" >&2
        echo "error: apt-get could not install: $*" >&2
        exit 1
    fi
fi
