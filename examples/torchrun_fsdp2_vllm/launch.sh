#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs FSDP2 under torchrun on some GPUs of a host, vLLM on the others, and an agent between them.
set -euo pipefail
cd "$(dirname "$0")"

# Adapt these.
MODEL=${MODEL:-/models/Qwen3-8B}       # a Hugging Face checkpoint: both sides start from it
TRAIN_ENV=${TRAIN_ENV:-/venvs/train}   # a Python environment with torch, transformers, driftless
VLLM_ENV=${VLLM_ENV:-/venvs/vllm}      # a Python environment with vllm, driftless
TRAIN_GPUS=${TRAIN_GPUS:-0,1,2,3}
VLLM_GPUS=${VLLM_GPUS:-4,5,6,7}
VLLM_OPTIONS=${VLLM_OPTIONS:---tensor-parallel-size 4}
RANKS=${RANKS:-4}
STEPS=${STEPS:-100}
PORT=${PORT:-8000}

trap 'kill $(jobs -p) 2> /dev/null || true; wait' EXIT

read -ra options <<< "$VLLM_OPTIONS"
CUDA_VISIBLE_DEVICES=$VLLM_GPUS VLLM_SERVER_DEV_MODE=1 \
  "$VLLM_ENV/bin/vllm" serve "$MODEL" --host 127.0.0.1 --port "$PORT" \
  --weight-transfer-config '{"backend": "driftless"}' \
  --worker-extension-cls driftless.engines.vllm.WorkerExtension "${options[@]}" &
server=$!
"$VLLM_ENV/bin/driftless" agent --config driftless.yaml --verbose \
  --set "engines[0].url=http://127.0.0.1:$PORT" --set "road.host_shm.name=vllm-$PORT" &
agent=$!

until curl --silent --fail --output /dev/null "http://127.0.0.1:$PORT/health"; do
  kill -0 "$server"                    # exits if the server has ended
  sleep 1
done
CUDA_VISIBLE_DEVICES=$TRAIN_GPUS \
  "$TRAIN_ENV/bin/torchrun" --standalone --nproc-per-node "$RANKS" train.py "$MODEL" "$STEPS"
wait "$agent"                          # 0 only if the engine holds the last version
