#!/usr/bin/env bash
# Thousands of mixed calls, good and hostile, over ten sessions of one real server on containers. Prints calls, answers
# by code, the server's memory and descriptors over time, and leftovers.
#
#   tests/soak.sh [MINUTES]          5 if omitted; SOAK_SEED repeats a run's choices
#   tests/soak.sh --http [MINUTES]   the same with fifty callers of five principals over HTTP
#   ... --write [MINUTES]            also writes the measurements to docs/reliability.md
#
# Exit code 0: every answer was the right one, memory and descriptors did not grow, nothing is left.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
server=$(realpath -m "${CARGO_TARGET_DIR:-target}/release/llm-sandbox")
cargo build --release --locked --quiet
"$server" image build --if-needed
driver=soak
options=()
while [[ ${1:-} = --* ]]; do
    case $1 in
    --http) driver=web ;;
    --write) options=(--write) ;;
    *)
        sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
        exit 64
        ;;
    esac
    shift
done
exec python3 "tests/soak/$driver.py" "$server" "${1:-5}" "${options[@]}"
