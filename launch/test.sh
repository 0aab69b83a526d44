#!/usr/bin/env bash
# Installs the test requirements into .venv and runs the tests: bash launch/test.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

install all,test
[ $# -gt 0 ] || set -- -n 2 --dist=loadfile --no-loadscope-reorder  # everything, on two cores
exec "$python" -m pytest "$@"
