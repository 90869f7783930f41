#!/usr/bin/env bash
# Tools of your own: fetches their programs, compiles one with tools, and calls each.
#
#   demo/tools/run.sh             with a build of this checkout, made if it is missing
#   demo/tools/run.sh PROGRAM     with this build of the server
#
# Needs no Docker. The first start compiles each program for this processor, which takes a minute.
set -euo pipefail

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$tools/../.." && pwd)

"$tools/fetch.sh"
if [ $# -gt 0 ]; then
    server=$(realpath "$1")
else
    server=${CARGO_TARGET_DIR:-$root/target}/debug/llm-sandbox
    (cd "$root" && cargo build --locked)
fi
python3 "$tools/drive.py" --server "$server"
