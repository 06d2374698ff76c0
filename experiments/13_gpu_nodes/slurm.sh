#!/usr/bin/env bash
#SBATCH --job-name=shmsim-gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --exclusive
#SBATCH --time=01:00:00
# One task on each node, each with results of its own on the shared file system; then they are joined.
#
#   sbatch experiments/13_gpu_nodes/slurm.sh          # from the checkout, set up by `make setup` and torch
#
# A job that was cut off goes on where it was when it is submitted again.
set -euo pipefail

OUT=${OUT:-runs/gpu-nodes}
PYTHON=${PYTHON:-.venv/bin/python}

# SLURM_NODEID is 0, 1, ...: a label that says nothing about the cluster. Slurm has set
# CUDA_VISIBLE_DEVICES to what the job was given.
export OUT PYTHON
srun --kill-on-bad-exit=0 bash -c \
    '"$PYTHON" experiments/run.py 13 --node "node$SLURM_NODEID" --out "$OUT/node$SLURM_NODEID"'
"$PYTHON" experiments/run.py merge "$OUT"/node*/record.json --out "$OUT/merged"
