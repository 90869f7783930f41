#!/usr/bin/env bash
# The demo from nothing: makes this host ready, builds what is missing, then shows a model's working day.
#
#   demo/run.sh                  on Docker
#   demo/run.sh --engine wasm    with the embedded engine, without Docker
#
# Safe to run again: what is already there is left alone, so a second start takes seconds. The results land in
# demo/out. Exit code 0: every step was as expected.
set -euo pipefail

demo=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$demo")
venv=$demo/.venv
server=${CARGO_TARGET_DIR:-$root/target}/release/llm-sandbox
export PYTHONDONTWRITEBYTECODE=1

step() { printf 'set-up: %s\n' "$*"; }
die() {
    printf 'set-up: %s\n' "$@" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# The oldest Python that drive.py and its client run on.
python_is_new_enough() { python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; }

# Debian and Ubuntu ship python3 without what makes a working venv.
make_venv() {
    rm -rf "$venv"
    if python3 -m venv "$venv" >/dev/null 2>&1; then return; fi
    rm -rf "$venv"
    if ! have apt-get; then die 'python3 -m venv does not work here; install what your system needs for it.'; fi
    if [ "$(id -u)" != 0 ]; then die 'python3 -m venv does not work here; run: sudo apt-get install python3-venv'; fi
    step 'installing python3-venv'
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null
    python3 -m venv "$venv"
}

engine=docker
if [ "${1:-}" = --engine ] && [ $# = 2 ]; then
    engine=$2
    shift 2
fi
case $engine in docker | wasm) ;; *) die "There is no engine $engine: it is docker or wasm." ;; esac
export SANDBOX_ENGINE=$engine
if [ $# -gt 0 ]; then
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    case $1 in -h | --help) exit 0 ;; *) exit 64 ;; esac
fi

if [ "$engine" = docker ]; then
    step 'Docker engine and base image'
    "$root/sandbox-image/prepare-host.sh"
fi

step 'the server, cargo build --release --locked'
have cargo || die 'cargo is missing. Install Rust from https://rustup.rs, then start again.'
(cd "$root" && cargo build --release --locked --quiet)

if [ "$engine" = docker ]; then
    step 'the sandbox image'
    "$server" image build --if-needed
else
    step 'the runtime of the embedded engine'
    "$server" runtime install --if-needed
fi
checks=$("$server" doctor 2>&1) || die 'llm-sandbox doctor reports a fault:' "$checks"

step "the demo's own client (demo/.venv)"
have python3 || die 'python3 is missing; the demo needs 3.11 or newer.'
python_is_new_enough || die "python3 is $(python3 --version); the demo needs 3.11 or newer."
# The stamp is written last: a venv that was not finished is made again.
if ! cmp -s "$demo/requirements.txt" "$venv/requirements.stamp" || ! "$venv/bin/python" -c '' 2>/dev/null; then
    make_venv
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$demo/requirements.txt"
    cp "$demo/requirements.txt" "$venv/requirements.stamp"
fi

exec "$venv/bin/python" "$demo/drive.py" --server "$server"
