#!/bin/bash
# A program on a Slurm cluster that is put back into the queue when it is asked to end, and resumes from what it saved:
#
#     sbatch --nodes 2 --ntasks-per-node 8 --gpus-per-node 8 --time 4:00:00 requeue.sh my_module:program
#
# One to try it with, as `job` in my_module.py:
#
#     def job(): sys.exit(0 if threeloops.training.elastic.demo.train(Path("run"), steps=1000, every=100) else 75)
#
# Slurm sends SIGTERM to this shell 120 s before the time is over, and when the job is preempted. The tasks get it from
# here. Those that answer with exit status 75 (threeloops.training.elastic.grace.RESUME_ME) have saved; anything else is
# the job's own result. srun would end all tasks as soon as one has a status other than 0, hence --kill-on-bad-exit=0:
# they all leave after the same step. Slurm lets a requeued job wait for 2 minutes before it starts again. A node
# that fails has the job requeued by Slurm itself.
#SBATCH --job-name=threeloops
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
set -uo pipefail
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
srun --kill-on-bad-exit=0 "${PYTHON:-python3}" -m threeloops.training.cluster "$@" &
tasks=$!
trap 'scancel --signal=TERM "$SLURM_JOB_ID.0"' TERM
while true; do
    wait "$tasks"
    status=$?
    kill -0 "$tasks" 2>/dev/null || break  # a signal ends `wait` early
done
if [ "$status" -eq 75 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
