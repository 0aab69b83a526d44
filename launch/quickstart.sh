#!/usr/bin/env bash
# Installs what the quickstart needs into .venv and runs it: bash launch/quickstart.sh [launch/quickstart.py's flags]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

install all
exec "$python" launch/quickstart.py "$@"
