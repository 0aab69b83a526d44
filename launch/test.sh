#!/usr/bin/env bash
# Installs what the tests need into .venv and runs them: bash launch/test.sh [pytest's arguments]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

install all,test
exec "$python" -m pytest "$@"
