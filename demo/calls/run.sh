#!/usr/bin/env bash
# Calls out of a sandbox: installs three MCP servers of others into a temporary folder, and lets one cell join what they
# know with an uploaded file.
#
#   demo/calls/run.sh [--engine docker|wasm] [--transcript FILE] [PROGRAM]
#
#   PROGRAM        the server to use. Without it, this checkout's build, made if it is missing
#   --engine       default: SANDBOX_ENGINE, or docker
#   --transcript   writes what a model is given on either way, for tests/tokens
#
# Needs Node 20, npm, Python 3.11, and the image or the runtime of the engine, which demo/run.sh prepares.
# Exit code 0: every result was as expected.
set -euo pipefail

unset CDPATH
calls=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$calls/../.." && pwd)
limit_s=300
server=''
options=()
while [ $# -gt 0 ]; do
    case $1 in
        --engine)
            export SANDBOX_ENGINE=${2:?'--engine needs a value: docker or wasm'}
            shift
            ;;
        --transcript)
            options+=(--transcript "$(realpath -m "${2:?'--transcript needs a file'}")")
            shift
            ;;
        -*)
            sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
            exit 64
            ;;
        *) server=$(realpath "$1") ;;
    esac
    shift
done
if [ -z "$server" ]; then
    server=${CARGO_TARGET_DIR:-$root/target}/debug/llm-sandbox
    [ -x "$server" ] || (cd "$root" && cargo build --locked)
fi
export PYTHONDONTWRITEBYTECODE=1

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
echo "The MCP servers are installed into $folder: filesystem and memory from npm, sqlite from PyPI."
cp "$calls/package.json" "$calls/package-lock.json" "$folder"
(cd "$folder" && npm ci --loglevel=error --no-audit --no-fund >/dev/null)
pip=("$folder/venv/bin/python" -P -m pip)
# Debian's python3 makes no venv with pip in it, unless python3-venv is installed.
if ! python3 -m venv "$folder/venv" >/dev/null 2>&1; then
    python3 -m venv --clear --without-pip "$folder/venv"
    pip=(python3 -P -m pip --python "$folder/venv/bin/python")
fi
"${pip[@]}" install --quiet --disable-pip-version-check -r "$calls/requirements.txt"

timeout --kill-after=10 "$limit_s" \
    python3 "$calls/drive.py" --server "$server" --folder "$folder" ${options[@]+"${options[@]}"}
