#!/usr/bin/env bash
# Trains on a Slurm cluster, one task a GPU; the tasks find each other. From the root of the clone, which all nodes see:
#
#   bash launch/cluster/slurm.sh [--dry_run] --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 pretrain --config=gpt1 --data=DIR …
#
# The flags before the program are sbatch's, as --NAME=VALUE; `sbatch FLAGS launch/cluster/slurm.sh pretrain …` does the same. First
# `bash launch/test.sh` makes .venv, and `.venv/bin/pip install -c launch/constraints.txt -e '.[all,cuda]'` adds CUDA; without
# .venv it is the python3 of your PATH. All nodes see the data and the workdir. --dry_run, before or after the program,
# prints the commands instead.
#
# Two minutes before the time limit the program saves a checkpoint and the job goes back into the queue, where it resumes;
# so it does after a preemption or the loss of a node, if the cluster allows --requeue. A program that fails is
# started again at most $RETRIES times (3); after a user error (exit code 2) and `scancel` it is not.
#SBATCH --job-name=gpt_jax
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.log
set -euo pipefail

fail() {
  echo "error: $1" >&2
  exit 2
}

submit() {
  local dry_run='' flag flags=() words=()
  cd "$(dirname "${BASH_SOURCE[0]}")/../.."
  for flag; do
    case $flag in
      -h | --help) sed '1d;/^#SBATCH/,$d' launch/cluster/slurm.sh | cut -c3-; return ;;
      --dry[-_]run*) dry_run=1 ;;
      --[a-z]*) flags+=("$flag") ;;
      -*) fail "${flag:0:200}: write sbatch's flags as --NAME=VALUE" ;;
      *) break ;;
    esac
    shift
  done
  for flag; do
    case $flag in
      --dry[-_]run*) dry_run=1 ;;  # no program has this flag
      *) words+=("$flag") ;;
    esac
  done
  set -- ${words[@]+"${words[@]}"}
  check "$@"
  "$python" launch/cluster/check.py slurm ${flags[@]+"${flags[@]}"} "$@" || exit 2
  flags=(sbatch ${flags[@]+"${flags[@]}"} launch/cluster/slurm.sh "$@")
  if [ -n "$dry_run" ]; then
    show "${flags[@]}"
    echo "# in the job:"
    shift
    show srun --kill-on-bad-exit=1 "$python" "launch/$program.py" --distributed "$@"
    # shellcheck disable=SC2016 # Slurm sets it
    echo '# in the job, when it is to be resumed:
scontrol requeue "$SLURM_JOB_ID"'
    return
  fi
  type sbatch >/dev/null 2>&1 || fail "sbatch is not here: submit on a login node of the cluster"
  exec "${flags[@]}"
}

check() {  # before hours in the queue
  program=${1:-}
  [ -n "$program" ] || fail "which program of launch/, such as pretrain?"
  python=.venv/bin/python
  [ -x $python ] || python=python3  # such as that of a conda environment
  "$python" -c 'from importlib.metadata import version; version("jax"), version("absl-py")' 2>/dev/null ||
    fail "there is no .venv here, and python3 has no JAX: bash launch/test.sh makes .venv"
}

show() {
  local word text=''
  for word; do
    [[ $word =~ ^[-A-Za-z0-9_./:=,@%+]+$ ]] || word="'${word//\'/\'\\\'\'}'"
    text+=" $word"
  done
  echo "${text# }"
}

run() {
  local code=0 failures=slurm-$SLURM_JOB_ID.failures
  # The job's script is a copy elsewhere.
  cd "${SLURM_SUBMIT_DIR:?submit this with sbatch, from the root of the clone}"
  check "$@"
  shift
  echo "== $(date -u +%FT%TZ) job $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1))"
  # srun takes these over from the job only up to Slurm 22.05.
  export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
  # --signal is sent to the tasks of srun, not to this script; preemption and scancel end the script, too.
  srun --kill-on-bad-exit=1 "$python" "launch/$program.py" --distributed "$@" || code=$?
  case $code in
    0 | 2 | 130) exit "$code" ;;
    129 | 138 | 143) ;;  # saved after SIGHUP, SIGUSR1 (another --signal), SIGTERM
    *)
      echo "$code" >> "$failures"
      if [ "$(wc -l < "$failures")" -gt "${RETRIES:-3}" ]; then
        echo "error: failed $(wc -l < "$failures") times, the last with exit code $code; not started again" >&2
        exit "$code"
      fi
      ;;
  esac
  echo "== exit code $code: back into the queue"
  scontrol requeue "$SLURM_JOB_ID"
}

# Within an interactive allocation sbatch's flags, which come first, tell the two apart.
if [ -n "${SLURM_JOB_ID:-}" ] && [[ ${1:-} != -* ]]; then run "$@"; else submit "$@"; fi
