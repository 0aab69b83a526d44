#!/usr/bin/env bash
# Builds the documentation site into build/docs/site: bash launch/docs.sh. A warning fails it. Installs the extra `docs`
# into .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

answer_help "$@"
[ $# = 0 ] || fail "unexpected argument ${1:0:200}: launch/docs.sh takes none"

install docs
"$python" launch/docs/collect.py build/docs
export NO_MKDOCS_2_WARNING=1
"$python" -m mkdocs build --strict --quiet --clean --config-file build/docs/mkdocs.yml
if grep -rlE '<(script|link|img)[^>]+(src|href)="?(https?:)?//' --include='*.html' build/docs/site; then
  echo "error: the pages above load something from the network" >&2
  exit 1
fi
echo "open build/docs/site/index.html; for its search: python -m http.server -d build/docs/site"
