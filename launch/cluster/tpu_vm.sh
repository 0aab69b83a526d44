#!/usr/bin/env bash
# Trains on a Cloud TPU VM, from your own machine, which may be switched off meanwhile.
#
#   bash launch/cluster/tpu_vm.sh create NAME --zone=ZONE --project=PROJECT --accelerator_type=v5litepod-16 [--spot]
#   bash launch/cluster/tpu_vm.sh run NAME --zone=ZONE --project=PROJECT [--retry …] pretrain --config=gpt1 --data=DIR …
#   bash launch/cluster/tpu_vm.sh status|logs|stop NAME --zone=ZONE --project=PROJECT
#
# Needs gcloud, logged in, with an SSH key that asks no questions. Flags stand before the program, but for --dry_run:
#   --zone, --project      or CLOUDSDK_COMPUTE_ZONE and CLOUDSDK_CORE_PROJECT in the environment
#   --accelerator_type     such as v5litepod-16, v6e-16, v5p-16, v4-16
#   --runtime_version      image of the hosts; by default the one of the accelerator
#   --spot                 cheaper; Google may take it back at any time
#   --create_flag=FLAG     passed to `gcloud … queued-resources create`; may be repeated
#   --setup=COMMAND        run: what each host does first, such as to mount a file system; must bear repetition
#   --retry                run: go on after a preemption; takes the flags of create, to make the TPU again
#   --every=SECONDS        run --retry: look again and again, until the program ends; without it once, for cron
#   --lines=100            logs: lines of the past
#   --timeout=300          stop: seconds to wait for the checkpoint
#   --delete --yes         stop: delete the TPU afterward
#   --dry_run              print the commands instead
# `run` sends the clone's last commit to every host and starts launch/PROGRAM.py --distributed there, in the
# background. The same command resumes a run. Exit codes: 0 done, 2 a user error, 1 the cloud refused or cannot be
# reached: try again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

fail() {  # fail MESSAGE [CODE]
  echo "error: $1" >&2
  exit "${2:-2}"
}

zone=${CLOUDSDK_COMPUTE_ZONE:-} project=${CLOUDSDK_CORE_PROJECT:-} accelerator='' runtime='' setup='' every=''
spot='' retry='' delete='' yes='' dry_run='' lines=100 timeout=300 create_flags=(--async)

usage() {
  sed '1d;/^[^#]/,$d' "launch/cluster/${BASH_SOURCE[0]##*/}" | cut -c3-
}

parse() {
  local flag
  case ${1:-} in --dry[-_]run*) dry_run=1; shift ;; esac
  case ${1:-} in
    create | run | status | logs | stop) ;;
    -h | --help) usage; exit ;;
    '') usage >&2; exit 2 ;;
    delete) fail "no command 'delete': stop ${2:-NAME} --delete --yes saves a checkpoint and deletes the TPU" ;;
    *) fail "no command '${1:0:200}': must be create, run, status, logs or stop (--help describes them)" ;;
  esac
  command=$1 name=${2:-}
  case $name in '' | -*) fail "$command: the NAME of the TPU comes next, such as $command my-tpu --zone=ZONE" ;; esac
  [[ $name =~ ^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$ ]] ||
    fail "NAME=${name:0:200}: must be lower-case letters, digits and hyphens, beginning with a letter"
  shift 2
  for flag; do
    case $flag in
      --zone=*) zone=${flag#*=} ;;
      --project=*) project=${flag#*=} ;;
      --accelerator_type=*) accelerator=${flag#*=} ;;
      --runtime_version=*) runtime=${flag#*=} ;;
      --create_flag=*) create_flags+=("${flag#*=}") ;;
      --setup=*) setup=${flag#*=} ;;
      --every=*) every=${flag#*=} ;;
      --lines=*) lines=${flag#*=} ;;
      --timeout=*) timeout=${flag#*=} ;;
      --zone | --project | --accelerator_type | --runtime_version | --create_flag | --setup | --every | --lines | --timeout)
        fail "$flag needs a value: $flag=VALUE" ;;
      --spot) spot=1 ;;
      --retry) retry=1 ;;
      --delete) delete=1 ;;
      --yes) yes=1 ;;
      --dry[-_]run*) dry_run=1 ;;
      -*) fail "unknown flag ${flag:0:200} (--help lists them; the program's own come after its name)" ;;
      *) break ;;
    esac
    shift
  done
  arguments=()
  for flag; do
    case $flag in
      --dry[-_]run*) dry_run=1 ;;  # no program has this flag
      *) arguments+=("$flag") ;;
    esac
  done
}

check() {
  local number python
  [[ $zone =~ ^[a-z]+-[a-z]+[0-9]+-[a-z]$ ]] ||
    fail "--zone=${zone:0:200}: give a zone such as us-west4-a, here or in CLOUDSDK_COMPUTE_ZONE"
  [[ $project =~ ^[a-z][-a-z0-9.:]*$ ]] ||
    fail "--project=${project:0:200}: give the ID of a project, here or in CLOUDSDK_CORE_PROJECT"
  for number in "$lines" "$timeout" "${every:-1}"; do
    [[ $number =~ ^[1-9][0-9]{0,7}$ ]] ||
      fail "${number:0:200}: --lines, --timeout and --every take a positive integer"
  done
  [ -z "$every" ] || [ -n "$retry" ] || fail "--every needs --retry"
  [ -z "$delete" ] || [ -n "$yes" ] || fail "--delete also needs --yes: it deletes $name with its disks"
  if [ "$command" = create ] || [ -n "$retry" ]; then
    check_accelerator
  fi
  if [ "$command" = run ]; then
    [ ${#arguments[@]} -gt 0 ] || fail "run: which program of launch/, such as pretrain?"
    [ -e "launch/${arguments[0]}.py" ] || fail "there is no launch/${arguments[0]:0:200}.py"
    python=.venv/bin/python
    [ -x $python ] || python=python3
    if "$python" -c 'from importlib.metadata import version; version("jax"), version("absl-py")' 2>/dev/null; then
      "$python" launch/cluster/check.py tpu "--setup=$setup" "--accelerator_type=$accelerator" "${arguments[@]}" || exit 2
    else
      echo "warning: there is no .venv here to check the flags of ${arguments[0]} with; bash launch/test.sh makes it" >&2
    fi
  elif [ ${#arguments[@]} -gt 0 ]; then
    fail "unexpected argument ${arguments[0]:0:200} of $command"
  fi
  [ -n "$dry_run" ] || type gcloud >/dev/null 2>&1 ||
    fail "gcloud is not installed (https://cloud.google.com/sdk/docs/install)"
}

check_accelerator() {  # and the image that belongs to it (https://cloud.google.com/tpu/docs/runtimes)
  local image
  case $accelerator in
    v6e-[0-9]*) image=v2-alpha-tpuv6e ;;
    v5p-[0-9]*) image=v2-alpha-tpuv5 ;;
    v5litepod-[0-9]*) image=v2-alpha-tpuv5-lite ;;
    v[234]-[0-9]*) image=tpu-ubuntu2204-base ;;
    tpu7x* | v7*) fail "--accelerator_type=${accelerator:0:200}: this API ends at v6e; use launch/cluster/kubernetes.yaml" ;;
    *) fail "--accelerator_type=${accelerator:0:200}: must be such as v5litepod-16, v6e-16, v5p-16 or v4-16" ;;
  esac
  runtime=${runtime:-$image}
}

show() {  # prints a command, to be copied; not to standard output, which may be captured
  local word text=''
  for word; do
    [[ $word =~ ^[-A-Za-z0-9_./:=,@%+]+$ ]] || word="'${word//\'/\'\\\'\'}'"
    text+=" $word"
  done
  echo "${text# }" >&3
}

tpus() {  # tpus WORDS…: gcloud compute tpus WORDS… for this zone and project, or prints it
  local words=(gcloud compute tpus "$@" "--zone=$zone" "--project=$project" --quiet)
  if [ -n "$dry_run" ]; then
    show "${words[@]}"
  else
    "${words[@]}" </dev/null
  fi
}

reason() {  # the first line of gcloud's errors
  local line
  line="$(grep -m1 -E 'ERROR|[Ee]rror' "$errors" || head -n1 "$errors" || true)"
  echo "${line:0:300}"
}

# Prints the state of the queued resource or, where that is ACTIVE, of the TPU in it; NONE if there is none.
tpu_state() {
  local state node
  if [ -n "$dry_run" ]; then
    tpus queued-resources describe "$name" '--format=value(state.state)'
    tpus tpu-vm describe "$name" '--format=value(state)'
    echo ACTIVE
    return
  fi
  if ! state="$(tpus queued-resources describe "$name" '--format=value(state.state)' 2>"$errors")"; then
    grep -q NOT_FOUND "$errors" || { echo "error: $(reason)" >&2; return 1; }
    echo NONE
    return
  fi
  if [ "$state" = ACTIVE ]; then
    if ! node="$(tpus tpu-vm describe "$name" '--format=value(state)' 2>"$errors")"; then
      grep -q NOT_FOUND "$errors" || { echo "error: $(reason)" >&2; return 1; }
      node=PREEMPTED
    fi
    case $node in
      READY) ;;
      TERMINATED) state=PREEMPTED ;;
      *) state=$node ;;
    esac
  fi
  echo "$state"
}

create() {
  tpus queued-resources create "$name" "--node-id=$name" "--accelerator-type=$accelerator" \
    "--runtime-version=$runtime" ${spot:+--spot} "${create_flags[@]}" 2>"$errors" && return
  if grep -qE 'RESOURCE_EXHAUSTED|[Qq]uota' "$errors"; then
    echo "error: over the project's quota (more of it, another --zone, or a smaller TPU): $(reason)" >&2
    return 1
  fi
  echo "error: $(reason)" >&2
  grep -qE 'INVALID_ARGUMENT|PERMISSION_DENIED|UNAUTHENTICATED|ALREADY_EXISTS' "$errors" && return 2
  return 1
}

delete() {
  tpus queued-resources delete "$name" --force 2>"$errors" || { echo "error: $(reason)" >&2; return 1; }
}

persist() {  # persist WORDS…: `tpus`, up to three times: connections to a host that has just started may fail
  local wait
  for wait in 5 15 ''; do
    if tpus "$@" >"$work/output" 2>"$errors"; then
      cat "$work/output"
      return
    fi
    [ -z "$wait" ] || sleep "$wait"
  done
  echo "error: $name cannot be reached: $(reason)" >&2
  return 1
}

worker() {  # worker WORDS…: the command for a host that runs launch/cluster/tpu_worker.sh there, if the clone is there
  local there=gpt_jax/launch/cluster/tpu_worker.sh
  echo "if [ -e $there ]; then bash $there$(printf ' %q' "$@"); else echo gpt_jax: none; fi"
}

report() {  # report WORKER [SUM]: prints the state of the hosts, a line for each
  persist tpu-vm ssh "$name" "--worker=$1" --command="$(worker state "${2:-}")"
}

start() {
  local archive=$work/gpt_jax.tar.gz unpack
  unpack='mkdir -p gpt_jax && find gpt_jax -mindepth 1 -maxdepth 1 ! -name .venv -exec rm -rf {} +'
  unpack+=' && tar -xzf gpt_jax.tar.gz -C gpt_jax'
  if [ -n "$dry_run" ]; then
    show git archive --format=tar.gz "--output=$archive" HEAD
  else
    git diff --quiet HEAD || echo "warning: uncommitted changes are not sent" >&2
    git archive --format=tar.gz "--output=$archive" HEAD || return
  fi
  persist tpu-vm scp "$archive" "$name:gpt_jax.tar.gz" --worker=all || return
  # Once: where it was started before the connection broke, the next try would find it running.
  tpus tpu-vm ssh "$name" --worker=all 2>"$errors" \
    --command="$unpack && $(worker start "$sum" "$setup" "${arguments[@]}")" ||
    { echo "error: $name: $(reason)" >&2; return 1; }
}

# What --retry does once. Returns 0 when there is nothing left to do, 10 while there is, 1 and 2 as this script.
again() {
  local state
  state="$(tpu_state)" || return 1
  if [ -n "$dry_run" ]; then
    echo "# where that is SUSPENDED or FAILED, or the TPU PREEMPTED:" >&3
    delete
    create
    echo "# where it is ACTIVE:" >&3
  fi
  case $state in
    ACTIVE) go_on ;;
    SUSPENDED | FAILED | PREEMPTED)
      echo "$name: $state, making it again"
      delete || return
      renewed=1
      create || return
      return 10
      ;;
    NONE)
      # Only what this process deleted: otherwise it was `stop --delete`, which must not be undone.
      [ -n "$renewed" ] || { echo "error: there is no $name: create it" >&2; return 2; }
      create || return
      return 10
      ;;
    *) echo "$name: $state, waiting"; return 10 ;;
  esac
}

go_on() {  # starts the program on a TPU that is there, unless it runs, has finished or was stopped
  local states
  states="$(report all "$sum")" || return 1
  case $states in
    *'gpt_jax: another'*) echo "error: $name runs another command; stop it first" >&2; return 2 ;;
    *'gpt_jax: running'*) summary "$states"; return 10 ;;
    *'gpt_jax: '* | '') ;;
    *) echo "error: $name: no answer from its hosts" >&2; return 1 ;;
  esac
  if [ -n "$retry" ] && [ -z "$dry_run" ]; then
    case $states in
      *'gpt_jax: stopped'*) echo "$name: was stopped; \`run\` without --retry starts it again"; return 0 ;;
      *'gpt_jax: ended 2'*) echo "error: $name: exit code 2, a user error; see \`logs\`" >&2; return 2 ;;
      *'gpt_jax: ended 130'*) echo "$name: was interrupted (exit code 130); \`run\` without --retry starts it again"; return 0 ;;
    esac
    if ! grep -F 'gpt_jax: ' <<<"$states" | grep -qv 'gpt_jax: ended 0'; then
      echo "$name: finished"
      return 0
    fi
    states="$(report 0 "$sum")" || return 1  # process 0 has the log, which says whether it gets further
    case $states in *'gpt_jax: failed'*) summary "$states" >&2; return 1 ;; esac
  fi
  [ -n "$dry_run" ] || echo "$name: starting ${arguments[0]}"
  start || return
  return 10
}

summary() {  # "NAME: running step 1,200/10,000, on 4 hosts"
  local lines newest
  lines="$(grep -o 'gpt_jax: .*' <<<"$1" || true)"
  newest="$(grep -m1 'step ' <<<"$lines" || head -n1 <<<"$lines")"  # process 0 alone logs the step
  newest="${newest#gpt_jax: }"
  echo "$name: ${newest% }, $(grep -c . <<<"$lines") host(s) answered"
}

run() {
  local code renewed='' state
  if [ -z "$retry" ]; then
    require_active "see \`status\`, or use run --retry"
    go_on || code=$?
    [ "${code:-10}" = 10 ] || exit "$code"
    return
  fi
  while :; do
    code=0
    again || code=$?
    case $code in
      0 | 2) exit "$code" ;;
      10) code=0 ;;
    esac
    { [ -n "$every" ] && [ -z "$dry_run" ]; } || exit "$code"
    sleep "$every"
  done
}

status() {
  local state states
  state="$(tpu_state)" || exit 1
  case $state in
    ACTIVE)
      states="$(report all)" || exit 1
      [ -n "$dry_run" ] || summary "$states"
      ;;
    NONE) echo "$name: not there" ;;
    SUSPEND* | PREEMPTED) echo "$name: preempted or suspended ($state)" ;;
    FAILED) echo "$name: the request failed (FAILED)" ;;
    DELETING) echo "$name: being deleted" ;;
    *) echo "$name: queued ($state)" ;;
  esac
}

require_active() {
  local state
  state="$(tpu_state)" || exit 1
  [ "$state" = ACTIVE ] || fail "$name is $state, not ACTIVE: $1" 1
}

stop() {
  local state states=''
  state="$(tpu_state)" || exit 1
  if [ "$state" = ACTIVE ]; then
    # Once: a second SIGTERM would end the run before its checkpoint is complete.
    states="$(tpus tpu-vm ssh "$name" --worker=all --command="$(worker stop "$timeout")" 2>"$errors")" ||
      fail "$name has not stopped, nothing was deleted: $(grep -o 'gpt_jax: still.*' <<<"$states" || reason)" 1
    [ -n "$dry_run" ] || summary "$states"
  else
    echo "$name: nothing runs ($state)"
  fi
  if [ -n "$delete" ] && [ "$state" != NONE ]; then
    delete || exit 1
    [ -n "$dry_run" ] || echo "$name: deleted"
  fi
}

parse "$@"
check
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
errors=$work/errors
exec 3>&1
case $command in
  create)
    create || exit
    [ -n "$dry_run" ] || echo "$name: queued; \`status\` tells when it is there"
    ;;
  run)
    sum="$(printf '%s\n' "$setup" "${arguments[@]}" | cksum | cut -d' ' -f1)"
    run
    ;;
  status) status ;;
  logs)
    require_active "there is no log"
    tpus tpu-vm ssh "$name" --worker=0 --command="$(worker log "$lines")"
    ;;
  stop) stop ;;
esac
