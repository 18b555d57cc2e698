#!/bin/sh
# Remove caches and build results; .venv stays.
set -eu
cd "$(dirname "$0")/.."

rm -rf .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist htmlcov
rm -rf plugins/*/build plugins/*/dist
find . \( -name .venv -o -name .git \) -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
