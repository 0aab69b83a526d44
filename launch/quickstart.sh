#!/usr/bin/env bash
# Installs what the quickstart needs into .venv and runs it: bash launch/quickstart.sh [launch/quickstart.py's flags]
set -euo pipefail
here=$PWD  # where paths in the flags, and runs/, are
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

install all
root=$PWD
cd "$here"
exec "$root/$python" "$root/launch/quickstart.py" "$@"
