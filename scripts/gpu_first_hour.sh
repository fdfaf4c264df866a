#!/usr/bin/env bash
# The first hour on a machine with a GPU, in three calls, the most valuable first. Run them in the repository's root:
#
#   bash scripts/gpu_first_hour.sh 1    faults:  the GPU tests, every kernel against float64, every cell of every lab
#   bash scripts/gpu_first_hour.sh 2    numbers: roofline, precision and memory, kernel times, hardware counters
#   bash scripts/gpu_first_hour.sh 3    record:  a graded class, and the kernels beside other tools
#
# Written for PyTorch 2.11, Triton 3.6 and Python 3.12, and works without a network. The other packages come from the
# wheels in WHEELS (wheels/), which `make wheels FOR=3.12` fills on a machine that has one.
#
# A call ends within LIMIT seconds (525) and a failure does not stop it. Call it again to continue, also after an error.
# Results are in OUT (first_hour/): evidence/*/evidence.json, and summary_N.txt with what was printed.
#
# First, in a checkout with `.venv`: `PY=.venv/bin/python bash scripts/gpu_first_hour.sh --dry-run` prints all commands
# of the three calls, and checks that every module, test and imported name in them exists. PY is the Python to use
# (python3).
set -u

DRY_RUN=
[ "${1:-}" = --dry-run ] && { DRY_RUN=--dry-run; shift; }
CALLS=${1:-1 2 3}
PY=${PY:-python3} OUT=${OUT:-first_hour} LIMIT=${LIMIT:-525} WHEELS=${WHEELS:-wheels} DEVICE=${DEVICE:-cuda}
SITE=${SITE:-${TMPDIR:-/tmp}/threeloops-site}
START=$SECONDS
if [ -z "$DRY_RUN" ] && [[ ! $CALLS =~ ^[123]$ ]]; then
  echo "usage: bash scripts/gpu_first_hour.sh 1|2|3, or --dry-run [1|2|3]" >&2
  exit 2
fi
if [ ! -f grader/threeloops_grader/cli.py ]; then
  echo "$PWD has no grader/threeloops_grader/cli.py: run this in the root of the repository" >&2
  exit 2
fi

export PYTHONPATH="$PWD/lib:$PWD/grader:$PWD:$SITE${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
unset TRITON_INTERPRET

collect() {
  local group
  case $1 in
    1) group=faults ;;
    2) group=numbers ;;
    3) group=record ;;
    *) echo "call $1: expected 1, 2 or 3" >&2; return 2 ;;
  esac
  echo "$PY -m threeloops_grader.cli evidence --device $DEVICE --part $group --budget $2 --out $OUT/evidence"
  "$PY" -m threeloops_grader.cli evidence --device "$DEVICE" --part "$group" --budget "$2" --out "$OUT/evidence" $DRY_RUN
}

if [ -n "$DRY_RUN" ]; then
  code=0
  for call in $CALLS; do
    echo "== call $call"
    collect "$call" "$LIMIT" || code=$?
  done
  exit $code
fi

mkdir -p "$OUT"
{
  if ls "$WHEELS"/*.whl > /dev/null 2>&1 && [ ! -d "$SITE/nbformat" ]; then
    timeout 120 "$PY" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$SITE" "$WHEELS"/*.whl
  fi
  # The first import of torch on a cold machine may take a minute, which would otherwise count against the first part.
  timeout 150 "$PY" -c '
import sys, torch, triton
print("Python", sys.version.split()[0], "torch", torch.__version__, "triton", triton.__version__)
for device in range(torch.cuda.device_count()):
    about = torch.cuda.get_device_properties(device)
    print(about.name, about.multi_processor_count, "SMs", round(about.total_memory / 2**30), "GiB")'
  collect "$CALLS" $((LIMIT - (SECONDS - START)))
  code=$?
  command -v nvidia-smi > /dev/null && nvidia-smi --format=csv,noheader \
    --query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw
  echo "call $CALLS: exit $code after $((SECONDS - START)) s; results in $OUT/"
  exit $code
} 2>&1 | tee "$OUT/summary_$CALLS.txt"
exit "${PIPESTATUS[0]}"
