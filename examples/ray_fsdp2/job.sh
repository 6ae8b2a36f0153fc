#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Submits train.py to a running Ray cluster (RAY_ADDRESS), and waits for its end.
#
#   ./job.sh [KEY=VALUE ...]      settings over driftless.yaml
set -euo pipefail
cd "$(dirname "$0")"

# Adapt these.
MODEL=${MODEL:-/shared/models/Qwen3-8B}      # a Hugging Face checkpoint that all nodes can read
STEPS=${STEPS:-100}
TRAINERS=${TRAINERS:-4}                      # actors; each gets a GPU if the cluster has GPUs
ROLLOUTS=${ROLLOUTS:-4}

ray job submit --address "${RAY_ADDRESS:-http://127.0.0.1:8265}" --working-dir . \
  --runtime-env-json "{\"env_vars\": {\"TRAINERS\": \"$TRAINERS\", \"ROLLOUTS\": \"$ROLLOUTS\"}}" \
  -- python train.py "$MODEL" "$STEPS" "$@"
