# shellcheck shell=bash
# Sourced by the other scripts, in the repository root: makes .venv if it is missing and installs the package.

# Many container images set it: then each process compiles all that it imports anew, a second or more.
unset PYTHONDONTWRITEBYTECODE

# fail MESSAGE: a user error.
fail() {
  echo "error: $1" >&2
  exit 2
}

# answer_help ARGUMENTS: prints the comment at the top of the calling script, and exits, if the first one is --help.
answer_help() {
  case ${1:-} in
    -h | --help) sed '1d;/^[^#]/,$d' "launch/${0##*/}" | cut -c3-; exit ;;
  esac
}

# An editable install through the link would give the other clone this one's package.
refuse_link() {
  [ ! -L .venv ] || fail ".venv is a link to $(readlink .venv), without gpt_jax[$1]: install that there, or remove the link"
}

# install EXTRAS: installs gpt_jax[EXTRAS] at the versions of launch/constraints.txt; sets $python to its interpreter.
install() {
  local candidate base="" stamp state
  if [ ! -x .venv/bin/python ]; then
    refuse_link "$1"
    for candidate in python3 python3.12 python3.11 python3.13 python3.14; do
      if "$candidate" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        base=$candidate
        break
      fi
    done
    [ -n "$base" ] || fail "needs Python 3.11 or newer with venv and pip (Debian: apt install python3-venv)"
    echo "creating .venv with $("$base" --version)"
    "$base" -m venv .venv
  fi
  python=.venv/bin/python
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail ".venv has $("$python" --version), but 3.11 or newer is needed; remove .venv and try again"

  state="$(cat setup.py launch/constraints.txt | cksum)"
  for stamp in .venv/installed-*; do  # an earlier call may have installed these extras, and more
    case ",${stamp#.venv/installed-}," in *",$1,"*)
      [ "$(cat "$stamp")" != "$state" ] || return 0
    ;; esac
  done
  refuse_link "$1"
  echo "installing gpt_jax[$1] into .venv (once; takes a few minutes)"
  # Python compiles what is imported, when it is: a small part of what is installed.
  "$python" -m pip install --quiet --disable-pip-version-check --no-compile --constraint launch/constraints.txt --editable ".[$1]"
  echo "$state" > ".venv/installed-$1"
}
