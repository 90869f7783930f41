#!/usr/bin/env bash
# The tokens that a model pays for the tool list and for results, by two tokenizers, over stdio and over HTTP with
# tokens, where URLs are signed; and for the task of demo/calls, by code and by calls of its own.
#
#   tests/tokens/run.sh [--write] [server binary]     default: target/debug/llm-sandbox, built if it is missing
#
# Compares with the tables in docs/tokens.md, or writes them. Exit code 0: nothing costs more than in the table. 1:
# something does. 2: the set-up failed. 77: there is no npm, and the reason was printed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"
limit_s=300

# The server must have the default settings, besides those that select its engine.
unset_settings SANDBOX_IMAGE SANDBOX_RUNTIME

mode=compare
if [ "${1:-}" = --write ]; then
    mode=write
    shift
fi
if [ $# -gt 1 ]; then
    usage
    exit 2
fi
if ! have node || ! have npm; then
    echo 'skipped: there is no npm, which the tokenizers come from'
    exit 77
fi
prepare_server "$@"
npm_ci "$here" 'the tokenizers'

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
timeout --kill-after=10 "$limit_s" node "$here/measure.mjs" "$mode" "$binary" "$root/docs/tokens.md"
"$root/demo/calls/run.sh" --transcript "$scratch/transcript.json" "$binary" >"$scratch/demo" || {
    cat "$scratch/demo"
    exit 2
}
timeout --kill-after=10 "$limit_s" node "$here/calls.mjs" "$mode" "$binary" "$scratch/transcript.json" "$root"
