#!/usr/bin/env bash
# Runs one program on every task of a Slurm job, one task a GPU; the tasks find each other.
#
#   sbatch --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 launch/slurm.sh pretrain --config=configs/gpt1.py --data=DIR --workdir=DIR
#
# Submit it from the clone, which all nodes see, after `bash launch/test.sh` made .venv and
# `.venv/bin/pip install -c launch/constraints.txt -e '.[all,cuda]'` added CUDA. DIR is on a file system that all nodes
# see. Slurm's SIGTERM two minutes before the time limit saves a checkpoint; the same command resumes from it.
#SBATCH --job-name=gpt_jax
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --output=slurm-%j.log
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?submit this with sbatch, from the root of the clone}"
program=${1:?which program of launch/, such as pretrain}
shift

exec srun .venv/bin/python "launch/$program.py" --distributed "$@"
