#!/usr/bin/env bash
# The archive in a bucket: the real program against a server of S3 (moto, in tests/archive/.venv).
#
#   tests/archive/run.sh [program]
#
# Needs Python 3.11 and the program's engine. Takes half a minute after the first installation.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=../lib.sh
. "$here/../lib.sh"
unset_settings SANDBOX_ENGINE SANDBOX_IMAGE SANDBOX_RUNTIME_DIR
venv=$here/.venv

have python3 || need_packages 'Python' python3 python3-venv
if ! cmp -s "$here/requirements.txt" "$venv/requirements.stamp"; then
    step 'a server of S3, tests/archive/.venv'
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"
    cp "$here/requirements.txt" "$venv/requirements.stamp"
fi
prepare_server "$@"

scratch=$(mktemp -d)
# shellcheck disable=SC2154 # set by find_server
trap 'kill "$moto" 2>/dev/null || true; rm -rf "$scratch"' EXIT
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$venv/bin/moto_server" -H 127.0.0.1 -p "$port" >"$scratch/moto.log" 2>&1 &
moto=$!
export AWS_ENDPOINT_URL=http://127.0.0.1:$port AWS_REGION=us-east-1
export AWS_ACCESS_KEY_ID=tests AWS_SECRET_ACCESS_KEY=tests
"$venv/bin/python" "$here/s3.py" "$binary" "$scratch" "$moto" | tee "$scratch/checks"
tally "$scratch/checks"
