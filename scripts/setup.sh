#!/bin/sh
# usage: setup.sh VENV
# Make (or bring up to date) the virtual environment: the pinned dependencies, then PairMQ and its
# plugins in editable form. $PYTHON chooses the interpreter.
set -eu
cd "$(dirname "$0")/.."
venv=$1

can_make_venv() { "$1" -c 'import venv; from ensurepip import version' >/dev/null 2>&1; }

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(PYTHON="${PYTHON:-python3}" scripts/find-python.sh)
    if ! can_make_venv "$python"; then
        # Debian keeps ensurepip in a package of its own.
        package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        status=0
        scripts/apt-install.sh "$package" || status=$?
        if [ "$status" -eq 2 ]; then
            echo "error: $python cannot make virtual environments: its venv or ensurepip module is missing." >&2
            if command -v apt-get >/dev/null 2>&1; then
                echo "       Run: sudo apt-get install -y $package" >&2
            else
                echo "       Install them, or name another Python: make setup PYTHON=/path/to/python3" >&2
            fi
            exit 1
        fi
        [ "$status" -eq 0 ] || exit "$status"
        if ! can_make_venv "$python"; then
            echo "error: installed $package, but $python still cannot make virtual environments." >&2
            echo "       Name another Python: make setup PYTHON=/path/to/python3" >&2
            exit 1
        fi
    fi
    echo "setup: making $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
else
    echo "setup: keeping $venv ($("$venv/bin/python" --version))"
fi

pip() { "$venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

# The pins are complete, so nothing needs to be resolved. Spark, of which a wheel is built first, takes as long as all
# others: it is installed beside them.
work=$(mktemp -d)
spark=
trap '[ -z "$spark" ] || kill "$spark" 2>/dev/null || true; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
awk '/^[^ #]/ { spark = /^pyspark==/ } { print >(spark ? "'"$work"'/spark.txt" : "'"$work"'/others.txt") }' requirements/dev.txt
install_pins() { pip install --no-deps --no-compile --require-hashes --requirement "$work/$1.txt"; }

echo "setup: installing the pinned dependencies"
install_pins spark &
spark=$!
install_pins others

set -- --editable .
for project in plugins/*/pyproject.toml; do
    if [ -e "$project" ]; then
        set -- "$@" --editable "${project%/pyproject.toml}"
    fi
done
echo "setup: installing PairMQ and its plugins"
pip install --no-deps --no-build-isolation "$@"
wait "$spark"
spark=

# pip compiles in one process; compileall uses all processors. Not what programs rarely import, which is compiled then,
# nor what is no Python, but a template.
rarely='pip|setuptools|pkg_resources|mypy|mypyc|matplotlib|fontTools|PIL|django|pymdownx|backrefs|babel|pygments/lexers'
"$venv/bin/python" -m compileall -q -j 0 -x "/(tests?|testing|locale|templates|lib2to3)/|/site-packages/($rarely)/" \
    "$venv/lib" || true
echo "setup: done"
