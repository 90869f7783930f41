#!/usr/bin/env bash
# The workflows of demo/n8n in a real n8n: reports by webhook and by form, an agent with a model that follows a script,
# ten at the same time, and the messages that people get after errors. Also cells, whose variables stay from call to
# call by ?workspace=, and a run in the background that a workflow polls.
#
#   tests/n8n/run.sh [--install] [server binary]          default: target/debug/llm-sandbox
#   tests/n8n/run.sh [--install] <address> <token>        a server that runs already
#
# With --install n8n is installed in tests/n8n if it is missing: 2.4 GB, minutes. Prints a line for each check, then
# `N passed, N failed`. Takes two or three minutes. Exit code 0: no check failed, or n8n is not installed, which is
# printed. 1: a check failed. 2: the set-up failed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"
limit_s=900

# The Node that n8n needs is installed with it if there is one for this machine.
find_node() {
    local node
    for node in "$here"/node_modules/node-linux-*/bin/node "$(command -v node || true)"; do
        if [ -x "$node" ] && [ "$("$node" --print 'parseInt(process.versions.node)' 2>/dev/null || echo 0)" -ge 24 ]; then
            echo "$node"
            return
        fi
    done
    return 1
}

# The only package that needs its install script, which downloads or builds a library.
build_sqlite() {
    local headers
    find_node >/dev/null || die 'n8n needs Node 24 or newer; install it.'
    step 'its SQLite'
    headers=$(dirname "$(dirname "$(find_node)")")
    (cd "$here" && npm_config_nodedir=$headers npm rebuild --loglevel=error --ignore-scripts=false sqlite3 >/dev/null) ||
        die 'sqlite3 could not be built; python3, make and g++ are needed for that.'
}

# Ends processes that check.mjs could not end because it was killed.
end_leftovers() {
    local group
    while read -r group; do kill -KILL -- "-$group" 2>/dev/null || true; done < <(cat "$scratch/groups" 2>/dev/null)
    rm -rf "$scratch"
}

wants_install=
if [ "${1:-}" = --install ]; then
    wants_install=yes
    shift
fi
case $#-${1:-} in
0-* | 1-[!-]* | 2-http*) ;;
*)
    usage
    exit 2
    ;;
esac

if ! is_installed "$here"; then
    if [ -z "$wants_install" ]; then
        echo "skip n8n: it is not installed; $here/run.sh --install does so, 2.4 GB"
        echo '0 passed, 0 failed'
        exit 0
    fi
    have npm || die 'npm is missing; install Node.js 20 or newer.'
    # The Node that n8n brings is newer than the one that runs npm.
    npm_ci "$here" n8n build_sqlite
fi
node=$(find_node) || die 'n8n needs Node 24 or newer.'
if [ $# = 2 ]; then
    server=$1
    export SANDBOX_TOKEN=$2
else
    prepare_server "$@"
    server=$binary
fi

scratch=$(mktemp -d)
trap end_leftovers EXIT
ended=0
TMPDIR=$scratch PROCESS_GROUPS=$scratch/groups timeout --foreground --kill-after=60 "$limit_s" "$node" "$here/check.mjs" "$server" |
    tee "$scratch/checks" || ended=$?
if [ "$ended" != 0 ]; then echo "FAIL the checks run to their end (exit code $ended)" | tee -a "$scratch/checks"; fi

tally "$scratch/checks"
