#!/usr/bin/env bash
# One caller with a token tries everything that could exhaust a server with 256 MB, while another caller works.
#
#   tests/exhaustion.sh [--write] [SECONDS] [ATTACK...]
#
# SECONDS is the time of each attack, 60 by default. ATTACK names attacks, all by default. --write puts the figures into
# docs/reliability.md.
#
# LLM_SANDBOX_BIN names another program than the release build. Prints for each attack the rounds and waiting times of
# the other caller, and the server's memory. Exit code 0: no request of the other caller failed, the server stayed under
# 160 MB (a release build), and within 30 s its memory was at most 32 MB above its idle memory.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root"
prepare_release
exec python3 tests/soak/exhaustion.py "$binary" "$@"
