#!/usr/bin/env bash
# Runs one program on every host of a Cloud TPU VM, from your own machine; the hosts find each other.
#
#   bash launch/tpu_vm.sh TPU_NAME ZONE pretrain --config=configs/gpt1.py --data=DIR --workdir=DIR
#
# Needs gcloud, logged in, and hosts with Python 3.11 or newer (on Ubuntu 22.04 images: apt install python3.11-venv).
# Copies this clone's last commit to each host, installs it there with the extra `tpu`, and starts
# launch/PROGRAM.py --distributed on all of them at once. DIR is on a file system that every host mounts (Filestore, a
# bucket through gcsfuse). Given again after an interruption it resumes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ $# -ge 3 ] || { sed -n '2,4p' "launch/${BASH_SOURCE[0]##*/}" | cut -c3- >&2; exit 2; }
name=$1 zone=$2 program=$3
shift 3

archive="$(mktemp)"
trap 'rm -f "$archive"' EXIT
git archive --format=tar.gz HEAD > "$archive"
gcloud compute tpus tpu-vm scp "$archive" "$name:gpt_jax.tar.gz" --zone="$zone" --worker=all
gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all --command="
  set -e
  mkdir -p gpt_jax && tar -xzf gpt_jax.tar.gz -C gpt_jax && cd gpt_jax
  source launch/environment.sh
  install all,tpu
  exec \$python launch/$program.py --distributed $(printf '%q ' "$@")"
