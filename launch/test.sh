#!/usr/bin/env bash
# Installs the test requirements into .venv and runs tests:
#   bash launch/test.sh                     the core: minutes
#   bash launch/test.sh --all               everything
#   bash launch/test.sh tests/data -k NAME  any arguments of pytest, but --help
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=launch/environment.sh
source launch/environment.sh

answer_help "$@"
install all,test

# files_with PATTERN: the test files that contain it. Given no files, pytest imports all of them: 10 s.
files_with() { grep -rlE --include='test_*.py' "$1" tests; }

# suite NAME [pytest arguments]: one of SUITES in tests/conftest.py.
suite() {
  local workers=(-n 2 --dist=loadfile --no-loadscope-reorder) files=()  # fixtures of a file are made once
  case "$1" in
    apps) mapfile -t files < <(echo tests/apps; files_with 'mark\.(e2e|app)' | grep -v '^tests/apps/') ;;
    slow) mapfile -t files < <(files_with 'mark\.slow') ;;
    attack) files=(tests/attack) ;;
    stores) mapfile -t files < <(files_with '\b(stores?|gs|s3)\b') ;;  # their fixtures
    parity) mapfile -t files < <(files_with 'mark\.parity') ;;
  esac
  [ "$1" != attack ] || workers=(-n 2 --dist=worksteal)  # few files, long tests
  case "$1" in apps | slow) workers[1]=3 ;; esac  # servers and runs of several processes wait for each other
  [ "$1" != stores ] || workers=(-n 3 --dist=worksteal)  # a third of the time is back-off
  "$python" -m pytest "${workers[@]}" --suite "$@" "${files[@]}"
}

case "${1:-}" in
  "") suite core ;;
  --all)
    shift
    for name in core apps slow attack stores parity; do
      echo "== $name"
      suite "$name" "$@" || failed="${failed:-} $name"
    done
    [ -z "${failed:-}" ] || { echo "failed:$failed" >&2; exit 1; }
    ;;
  --suite=*) suite "${1#--suite=}" "${@:2}" ;;
  *) exec "$python" -m pytest "$@" ;;
esac
