# shellcheck shell=bash
# Sourced by the other scripts, in the repository root: makes .venv if it is missing and installs the package.

# install EXTRAS: installs gpt_jax[EXTRAS] at the versions of launch/constraints.txt; sets $python to its interpreter.
install() {
  local candidate base="" stamp
  if [ ! -x .venv/bin/python ]; then
    for candidate in python3 python3.12 python3.11 python3.13 python3.14; do
      if "$candidate" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        base=$candidate
        break
      fi
    done
    [ -n "$base" ] || { echo "error: needs Python 3.11 or newer with venv and pip (Debian: apt install python3-venv)" >&2; exit 2; }
    echo "creating .venv with $("$base" --version)"
    "$base" -m venv .venv
  fi
  python=.venv/bin/python
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "error: .venv has $("$python" --version), but 3.11 or newer is needed; remove .venv and try again" >&2; exit 2; }

  local state
  state="$(cat setup.py launch/constraints.txt | cksum)"
  for stamp in .venv/installed-*; do  # an earlier call may have installed these extras, and more
    case ",${stamp#.venv/installed-}," in *",$1,"*)
      [ "$(cat "$stamp")" != "$state" ] || return 0
    ;; esac
  done
  echo "installing gpt_jax[$1] into .venv (once; takes a few minutes)"
  # Python compiles what is imported, when it is: a small part of what is installed.
  "$python" -m pip install --quiet --disable-pip-version-check --no-compile --constraint launch/constraints.txt --editable ".[$1]"
  echo "$state" > ".venv/installed-$1"
}
