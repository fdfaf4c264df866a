#!/bin/sh
# Print the Python that makes an environment: `sh scripts/find_python.sh .venv`.
# PYTHON=… wins. Without it, a working environment keeps its own Python, and a new one gets the newest on PATH that
# scripts/make_venv.py accepts. If there is none, the error ends with one command that gets one.
environment=$1
command=
seen=

try() { # print $1 and stop if it can make an environment; otherwise leave the reason in $reason
    reason="cannot be found"
    command -v "$1" >/dev/null || return
    if reason=$("$1" "${0%/*}/make_venv.py" --check 2>/dev/null); then
        printf '%s\n' "$1"
        exit 0
    fi
    reason=${reason:-"does not run"} # a name that pyenv knows, for example, without a version behind it
    seen="$seen
  $1 $reason"
    case $reason in *": apt install "*) command=${command:-${reason#*: }} ;; esac
}

if [ -n "$PYTHON" ]; then
    try "$PYTHON"
    echo "error: PYTHON=$PYTHON $reason" >&2
    exit 1
fi
for python in "$environment/bin/python" python3.14 python3.13 python3.12 python3.11 python3; do
    try "$python"
done
echo "error: no Python on PATH can make $environment$seen
Run this command, then make again: ${command:-uv venv --seed --python 3.13 $environment}" >&2
exit 1
