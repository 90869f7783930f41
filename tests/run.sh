#!/usr/bin/env bash
# Every check there is, from scratch: makes this host ready, builds what is missing, then runs format and
# lint checks, all tests (on plain processes and on containers), the official clients and the demo.
#
#   tests/run.sh          everything
#   tests/run.sh quick    format, lints and all tests that need no engine: for the inner loop
#   tests/run.sh --kubernetes
#                         everything, and the drills on a real Kubernetes, which is built here if it is not there
#
# Safe to run again. Says at the end how long each stage took. Exit code 0: all checks passed.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root"
server=${CARGO_TARGET_DIR:-target}/debug/llm-sandbox

stages=()
stage=''
end_stage() {
    if [ -n "$stage" ]; then stages+=("$(printf '%5d s  %s' "$((SECONDS - stage_began))" "$stage")"); fi
    stage=''
}
stage() {
    end_stage
    stage=$*
    stage_began=$SECONDS
    printf '\n=== %s (%d s) ===\n' "$stage" "$SECONDS"
}
# However it ends: a stage that fails is the last one.
tell_times() {
    local ended=$?
    end_stage
    printf '\n'
    if [ "${#stages[@]}" != 0 ]; then printf '%s\n' "${stages[@]}"; fi
    printf '%5d s  in total\n' "$SECONDS"
    if [ "$ended" = 0 ]; then echo 'All checks passed.'; else echo 'Some checks failed, see above.'; fi
}

format_and_lints() {
    stage 'format'
    cargo fmt --all --check
    stage 'lints'
    cargo clippy --workspace --all-targets --locked -- --deny warnings
}

# Nobody is to find an engine by chance: what needs one is in a module `docker` or `wasm`, or among the drills.
quick() {
    local file rules=() promises=()
    export DOCKER_HOST=unix:///nonexistent/engine.sock
    format_and_lints
    for file in $(git ls-files ':(glob)sandbox-image/**/tests/*.rs'); do
        rules+=(--test "$(basename "$file" .rs)")
    done
    stage 'rules, codecs, and the agent as a process'
    cargo test --workspace --locked --lib --bins "${rules[@]}"
    for file in tests/*.rs tests/*/main.rs; do
        file=${file#tests/}
        case ${file%%/*} in drills | alone | \*.rs) ;; *) promises+=(--test "$(basename "${file%%/*}" .rs)") ;; esac
    done
    stage 'promises and attacks, on plain processes and in memory'
    # Most of them wait for a process most of the time.
    cargo test --workspace --locked "${promises[@]}" -- --skip docker:: --skip wasm:: --test-threads=6
    stage 'what the snippets say of themselves'
    cargo test --workspace --locked --test drills -- the_snippets_are
}

everything() {
    local before left
    stage 'host: engine, base image, and gVisor for the drills under it'
    sandbox-image/prepare-host.sh --gvisor

    format_and_lints

    stage 'build'
    cargo build --workspace --locked

    stage 'runtime of the embedded engine'
    SANDBOX_RUNTIME_DIR=$(dirname "$server")/runtime "$server" runtime install --if-needed

    stage 'sandbox image'
    before=$(unnamed_images)
    "$server" image build --if-needed
    left=$(comm -13 <(printf '%s\n' "$before") <(unnamed_images))
    [ -z "$left" ] || die 'the build left images without a name:' "$left"
    "$server" doctor

    before=$(our_containers)
    stage 'tests'
    all_tests

    stage 'promises on pods, of two servers behind a round robin'
    TEST_REPLICAS=1 cargo test --workspace --locked --test promises -- kubernetes::

    stage 'one caller against a server of 256 MB, briefly'
    LLM_SANDBOX_BIN=$server tests/exhaustion.sh 5

    stage 'the archive in a bucket'
    tests/archive/run.sh "$server"

    stage 'what a model pays'
    tests/tokens/run.sh "$server"

    stage 'official clients'
    tests/clients/run.sh "$server"

    stage 'official clients, with the embedded engine'
    SANDBOX_ENGINE=wasm SANDBOX_RUNTIME_DIR=$(dirname "$(realpath "$server")")/runtime tests/clients/run.sh "$server"

    stage 'workflows in n8n, where it is installed'
    tests/n8n/run.sh "$server"

    stage 'the page and hostile files in a browser'
    tests/browser/run.sh "$server"

    stage 'manifests for Kubernetes'
    tests/kubernetes/manifests.sh

    stage 'Docker Compose'
    tests/compose/run.sh

    stage 'benchmark, a few rounds: that it works, and answers are right'
    LLM_SANDBOX_BIN=$server tests/bench/run.sh --quick

    stage 'demo'
    demo/run.sh

    stage 'demo, with the embedded engine'
    SANDBOX_RUNTIME_DIR=$(dirname "$(realpath "$server")")/runtime demo/run.sh --engine wasm

    stage 'demo of tools of your own'
    SANDBOX_RUNTIME_DIR=$(dirname "$(realpath "$server")")/runtime demo/tools/run.sh "$server"

    stage 'leftovers'
    left=$(comm -13 <(printf '%s\n' "$before") <(our_containers))
    [ -z "$left" ] || die 'containers were left behind:' "$left"
    echo 'no container was left behind'
}
everything_and_kubernetes() {
    everything
    stage 'drills on a real Kubernetes'
    tests/kubernetes/drills.sh
}
# All test programs to their end. Of thousands of tests that start processes on a busy machine one may fail for the
# machine's sake: up to three are tried once more, alone, and are named.
all_tests() {
    local log failed name
    log=$(mktemp)
    if cargo test --workspace --locked --no-fail-fast 2>&1 | tee "$log"; then
        rm "$log"
        return
    fi
    mapfile -t failed < <(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log" | sort -u)
    if grep -q '^error: could not compile' "$log" || [ "${#failed[@]}" = 0 ] || [ "${#failed[@]}" -gt 3 ]; then
        die "${#failed[@]} tests failed:" "${failed[@]}"
    fi
    rm "$log"
    for name in "${failed[@]}"; do
        printf '\nonce more, alone: %s\n' "$name"
        cargo test --workspace --locked -- --exact "$name"
    done
    printf 'passed when tried again, alone: %s\n' "${failed[@]}"
}
unnamed_images() { docker images --quiet --no-trunc --filter dangling=true | sort; }
our_containers() { docker ps --all --quiet --no-trunc --filter label=app=llm-sandbox | sort; }

unset_settings
have cargo || die 'cargo is missing; install Rust 1.95 or newer with rustup.'
case $#-${1:-} in
0-) run=everything ;;
1-quick) run=quick ;;
1---kubernetes) run=everything_and_kubernetes ;;
*)
    usage
    exit 2
    ;;
esac
trap tell_times EXIT
"$run"
