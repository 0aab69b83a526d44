#!/usr/bin/env bash
# On each host of a TPU VM, called by launch/cluster/tpu_vm.sh: runs one program, detached from the connection.
#
#   bash launch/cluster/tpu_worker.sh start SUM SETUP PROGRAM FLAGS… | state [SUM] | log LINES | stop SECONDS
#
# ~/gpt_jax_run has the log of all attempts, the checksum SUM of the command, its exit code, and a lock that is held
# while it runs.
set -euo pipefail
clone="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
run="$HOME/gpt_jax_run"
attempts=5  # that end at the same step, before `state` says that there is no use in another

step() {  # the newest step of the log, such as 1,200/10,000
  tail -c 100000 "$run/log" 2>/dev/null | grep -o 'step [0-9,]*/[0-9,]*' | tail -n 1 || true
}

running() {
  [ -e "$run/lock" ] && ! flock --nonblock "$run/lock" true
}

# start SUM SETUP PROGRAM FLAGS…: returns at once. The program inherits the lock, which is free as soon as all of the
# program has ended, whatever ended it.
start() {
  mkdir -p "$run"
  exec 9>>"$run/lock"
  flock --nonblock 9 || { echo "error: a program is running already" >&2; exit 2; }
  [ "$(cat "$run/sum" 2>/dev/null)" = "$1" ] || rm -f "$run/failures"
  rm -f "$run/exit_code" "$run/stopped" "$run/pid"
  echo "$1" > "$run/sum"
  shift
  setsid nohup bash "${BASH_SOURCE[0]}" attempt "$@" </dev/null >>"$run/log" 2>&1 &
  echo "gpt_jax: started"
}

attempt() {
  local child code=0
  echo $$ > "$run/pid"
  trap : TERM  # `stop` sends it to the whole group; this shell stays to write the exit code
  echo "== $(date -u +%FT%TZ) launch/$2.py ${*:3}"
  program "$@" &
  child=$!
  wait "$child" || code=$?
  while [ "$code" -gt 128 ] && kill -0 "$child" 2>/dev/null; do  # SIGTERM ends `wait`, too
    code=0
    wait "$child" || code=$?
  done
  echo "== $(date -u +%FT%TZ) exit code $code"
  case $code in
    0 | 129 | 138 | 143) ;;
    *) echo "$code $(step)" >> "$run/failures" ;;
  esac
  echo "$code" > "$run/exit_code"
}

program() {
  local setup=$1 name=$2 recent='import sys, ensurepip; sys.exit(sys.version_info < (3, 11))'
  shift 2
  [ -z "$setup" ] || bash -euc "$setup"
  if ! python3.11 -c 'import ensurepip' 2>/dev/null && ! python3 -c "$recent" 2>/dev/null; then
    # Images with Ubuntu 22.04 have Python 3.10. A new host may be busy with updates of its own.
    sudo apt-get -qq -o DPkg::Lock::Timeout=300 update
    sudo DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install -y python3.11-venv
  fi
  cd "$clone"
  # shellcheck source=launch/environment.sh
  source launch/environment.sh
  install all,tpu,gcs
  exec "$python" "launch/$name.py" --distributed "$@"
}

# state [SUM]: of the command with this checksum, or of any.
state() {
  local code same=1
  [ -z "$1" ] || [ "$(cat "$run/sum" 2>/dev/null)" = "$1" ] || same=''
  if running; then
    echo "gpt_jax: $([ -n "$same" ] && echo running || echo another) $(step)"
  elif [ -z "$same" ]; then
    echo "gpt_jax: none"
  elif [ -e "$run/stopped" ]; then
    echo "gpt_jax: stopped $(step)"
  elif [ -e "$run/exit_code" ]; then
    code="$(cat "$run/exit_code")"
    if [ -e "$run/failures" ] && [ "$(grep -cxF "$code $(step)" "$run/failures")" -ge $attempts ]; then
      echo "gpt_jax: failed $attempts times with exit code $code $(step)"
    else
      echo "gpt_jax: ended $code $(step)"
    fi
  else
    echo "gpt_jax: none"  # never started, or the host was restarted
  fi
}

stop() {
  mkdir -p "$run"
  touch "$run/stopped"
  while running && [ ! -e "$run/pid" ]; do
    sleep 0.2  # it is just being started
  done
  if running; then
    kill -TERM -- "-$(cat "$run/pid")" 2>/dev/null || true
    flock --timeout="$1" "$run/lock" true || { echo "gpt_jax: still running after $1 s $(step)"; exit 1; }
  fi
  state ''
}

case ${1:-} in
  start | attempt) "$@" ;;
  state) state "${2:-}" ;;
  log) exec tail -n "$2" -F "$run/log" ;;
  stop) stop "$2" ;;
  -h | --help) sed '1d;/^[^#]/,$d' "${BASH_SOURCE[0]}" | cut -c3- ;;
  *) echo "error: launch/cluster/tpu_vm.sh calls this; no command '${1:-}' (--help lists them)" >&2; exit 2 ;;
esac
