#!/usr/bin/env bash
# Every check there is, from nothing: makes this host ready, builds what is missing, then runs format and
# lint checks, all tests (on plain processes and on containers), the official clients and the demo.
#
# It takes no options and is safe to run again. Exit code 0: everything holds.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
server=${CARGO_TARGET_DIR:-target}/debug/llm-sandbox
started=$SECONDS

step() { printf '\n=== %s (%d s) ===\n' "$*" "$((SECONDS - started))"; }

# A server's settings would be taken for the tests' own.
while IFS= read -r name; do unset "$name"; done < <(compgen -e SANDBOX_ || true)

if ! command -v cargo >/dev/null 2>&1; then
    echo 'tests: cargo is missing; install Rust 1.90 or newer with rustup.' >&2
    exit 1
fi

step 'host: engine, base image, and gVisor for the drills under it'
sandbox-image/prepare-host.sh --gvisor

step 'format'
cargo fmt --all --check

step 'lints'
cargo clippy --workspace --all-targets --locked -- --deny warnings

step 'build'
cargo build --workspace --locked

step 'sandbox image'
unnamed() { docker images --quiet --no-trunc --filter dangling=true | sort; }
before=$(unnamed)
"$server" image build --if-needed
left=$(comm -13 <(printf '%s\n' "$before") <(unnamed))
if [ -n "$left" ]; then
    printf 'tests: the build has left images without a name:\n%s\n' "$left" >&2
    exit 1
fi
"$server" doctor

step 'tests'
ours() { docker ps --all --quiet --no-trunc --filter label=app=llm-sandbox | sort; }
before=$(ours)
cargo test --workspace --locked

step 'one caller against a server of 256 MB, briefly'
LLM_SANDBOX_BIN=$server tests/exhaustion.sh 5

step 'official clients'
tests/clients/run.sh "$server"

step 'workflows in n8n, where it is installed'
tests/n8n/run.sh "$server"

step 'the page and hostile files in a browser'
tests/browser/run.sh "$server"

step 'Docker Compose'
tests/compose/run.sh

step 'benchmark, a few rounds: that it works, and answers are right'
LLM_SANDBOX_BIN=$server tests/bench/run.sh --quick

step 'demo'
demo/run.sh

step 'leftovers'
left=$(comm -13 <(printf '%s\n' "$before") <(ours))
if [ -n "$left" ]; then
    printf 'tests: containers were left behind:\n%s\n' "$left" >&2
    exit 1
fi
echo 'no container was left behind'
printf '\nEverything holds, after %d s.\n' "$((SECONDS - started))"
