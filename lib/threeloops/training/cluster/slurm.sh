#!/bin/bash
# A program on the machines of a Slurm cluster, one process per GPU (or per core, on gloo):
#
#     sbatch --nodes 2 --ntasks-per-node 8 --gpus-per-node 8 slurm.sh my_module:program
#
# The first machine is the meeting point. Two jobs that share it need ports of their own, so the port comes from the
# job's number.
#SBATCH --job-name=threeloops
#SBATCH --output=%x-%j.out
set -euo pipefail
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec srun --kill-on-bad-exit=1 "${PYTHON:-python3}" -m threeloops.training.cluster "$@"
