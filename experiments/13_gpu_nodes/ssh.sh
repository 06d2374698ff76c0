#!/usr/bin/env bash
# Runs the experiment on hosts that are reached by plain ssh, one after the other, and joins the results.
#
#   experiments/13_gpu_nodes/ssh.sh HOST ...
#
# Every host has this checkout at CHECKOUT, set up by `make setup` and torch. Each gets the label node0,
# node1, ... in the order given: no host name enters a record. GPUS=0,3 chooses among a host's GPUs.
set -euo pipefail

CHECKOUT=${CHECKOUT:-shmsim}
OUT=${OUT:-runs/gpu-nodes}
GPUS=${GPUS:-}
PYTHON=${PYTHON:-.venv/bin/python}

(($#)) || { echo "usage: $0 HOST ..." >&2; exit 2; }

records=()
for host in "$@"; do
    label=node${#records[@]}
    # -tt: Ctrl-C here ends the run there, which stops its processes; the next call goes on with it.
    ssh -tt "$host" "cd '$CHECKOUT' && $PYTHON experiments/run.py 13 --node $label \
        --out '$OUT/$label' ${GPUS:+--gpus $GPUS}"
    mkdir -p "$OUT/$label"
    scp -q "$host:$CHECKOUT/$OUT/$label/*.json" "$OUT/$label/"
    records+=("$OUT/$label/record.json")
done
"$PYTHON" experiments/run.py merge "${records[@]}" --out "$OUT/merged"
