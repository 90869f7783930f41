#!/usr/bin/env bash
# One caller with a token tries everything that could exhaust a server which has 256 MB, while another works.
#
#   tests/exhaustion.sh [--write] [SECONDS] [ATTACK...]
#
# SECONDS are for each attack, 60 if left out; all attacks if none is named. --write puts the figures into
# docs/reliability.md.
#
# LLM_SANDBOX_BIN names another program than the release build. Prints for each attack what the other caller
# had of the server and what the server's memory was. Exit code 0: nothing of the other's failed, the server
# stayed under 160 MB (a release build) and was back at what it had idle, and 32 MB, within 30 s.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root"
prepare_release
exec python3 tests/soak/exhaustion.py "$binary" "$@"
