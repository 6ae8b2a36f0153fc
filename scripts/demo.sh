#!/usr/bin/env bash
# The main job on made-up data: no GPU, no cluster, nothing left behind.
#
#   scripts/demo.sh [--params N --steps K --dir DIR ...]      options of `driftless demo`
set -euo pipefail
cd "$(dirname "$0")/.."
exec build/bin/driftless demo "$@"
