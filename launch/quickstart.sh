#!/usr/bin/env bash
# Installs what the quickstart needs into .venv and runs it:
#   bash launch/quickstart.sh [--workdir=DIR] [--text=FILE,…] [--short]
# They are the flags of launch/quickstart.py, whose --help describes them.
set -euo pipefail
here=$PWD  # where paths in the flags, and runs/, are
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

answer_help "$@"
for argument; do  # before minutes of installing
  case $argument in
    --workdir=* | --text=* | --short) ;;
    *) fail "unknown argument ${argument:0:200} (launch/quickstart.sh --help lists them)" ;;
  esac
done
install all
root=$PWD
cd "$here"
exec "$root/$python" "$root/launch/quickstart.py" "$@"
