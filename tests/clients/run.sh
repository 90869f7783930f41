#!/usr/bin/env bash
# The server with the official MCP clients, over stdio and over HTTP, with and without tokens: TypeScript SDK 1.x and
# 2.x, MCP inspector, Python SDK. Then the official conformance suite, the notebook of a session under Jupyter's
# nbformat, and, if it is installed in claude_code, Claude Code with a model that follows a script.
#
#   tests/clients/run.sh [--one | --oauth] [server binary]     default: target/debug/llm-sandbox, built if it is missing
#
# --one runs only the Python SDK, over stdio and over HTTP. --oauth runs only the SDKs that sign in at an authorization
# server (oauth/).
#
# SANDBOX_ENGINE=wasm, with SANDBOX_RUNTIME_DIR, selects the embedded engine. SANDBOX_ENGINE=kubernetes, with KUBECONFIG
# and SANDBOX_KUBERNETES_NAMESPACE, selects pods; with TEST_REPLICAS=1 each server over HTTP is two servers, behind a
# round robin of connections.
#
# Installs missing programs, and keeps those that are installed. Prints a line for each check, then
# `N passed, N failed`. Takes five or six minutes. Exit code 0: no check failed. 1: a check failed. 2: the set-up failed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"
venv=$root/tests/.venv
claude=$here/claude_code
client_limit_s=300
start_limit_s=20
export PYTHONDONTWRITEBYTECODE=1 ANN_TOKEN=ann-0123456789abcdef BEN_TOKEN=ben-fedcba9876543210

# The servers must have the settings of the tests, besides those that select their engine.
unset_settings SANDBOX_ENGINE SANDBOX_IMAGE SANDBOX_RUNTIME SANDBOX_RUNTIME_DIR SANDBOX_KUBERNETES_NAMESPACE

prepare_node() {
    if ! have node || ! have npm; then need_packages 'Node.js' nodejs npm; fi
    [ "$(node --print 'parseInt(process.versions.node)')" -ge 20 ] ||
        die "Node.js is $(node --version); 20 or newer is needed."
    npm_ci "$here" 'the Node clients'
    npm_ci "$here/oauth" 'an authorization server'
}

# The test uses the client of the demo. The stamp is written last, as in npm_ci.
prepare_python() {
    local wanted=("$root/demo/requirements.txt" "$here/requirements.txt")
    have python3 || need_packages 'Python' python3 python3-venv
    if ! cat "${wanted[@]}" | cmp -s - "$venv/requirements.stamp" || ! "$venv/bin/python" -c '' 2>/dev/null; then
        step 'the Python client, tests/.venv'
        rm -rf "$venv"
        python3 -m venv "$venv" >/dev/null 2>&1 || {
            need_packages 'python3 -m venv' python3-venv
            python3 -m venv --clear "$venv"
        }
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${wanted[@]/#/--requirement=}"
        cat "${wanted[@]}" >"$venv/requirements.stamp"
    fi
}

# Clients pass on little of their environment, and keep the server's process to themselves. So they start it by a
# command that sets the necessary variables and writes its process id to a file.
write_server_command() {
    {
        echo '#!/usr/bin/env bash'
        local name
        for name in "${!DOCKER_@}" "${!XDG_RUNTIME_DIR@}" "${!SANDBOX_ENGINE@}" "${!SANDBOX_IMAGE@}" \
            "${!SANDBOX_RUNTIME@}" "${!KUBECONFIG@}" "${!SANDBOX_KUBERNETES@}"; do
            printf 'export %s=%q\n' "$name" "${!name}"
        done
        echo 'export SANDBOX_HTTP_PORT="${SANDBOX_HTTP_PORT:-0}" SANDBOX_LOG_FILE='
        printf 'echo $$ >>%q\n' "$scratch/pids"
        printf 'exec %q "$@"\n' "$binary"
    } >"$scratch/llm-sandbox"
    chmod +x "$scratch/llm-sandbox"
    : >"$scratch/pids"
}

# start_http <name> [setting=value]...: starts a server; its address is then in $scratch/<name>.url.
start_http() {
    if [ -z "${TEST_REPLICAS:-}" ]; then start_one "$@"; else start_two "$@"; fi
}
# Like start_one, with two servers that share their callers, behind a round robin.
start_two() {
    local name=$1 number addresses=() pid
    shift
    (umask 077 && openssl rand -hex 32 >"$scratch/$name.key")
    for number in 1 2; do
        start_one "$name-$number" "$@" "SANDBOX_KEY_FILE=$scratch/$name.key" "SANDBOX_PEER_ADDRESS=127.0.0.1:$(free_port)"
        addresses+=("$(sed -n 's|^http://\([^/]*\).*|\1|p' "$scratch/$name-$number.url")")
    done
    node "$here/round_robin.mjs" "${addresses[@]}" >"$scratch/$name.address" &
    pid=$!
    balancers+=("$pid")
    until [ -s "$scratch/$name.address" ]; do sleep 0.1; done
    echo "http://$(<"$scratch/$name.address")/mcp" >"$scratch/$name.url"
}
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
start_one() {
    local name=$1 pid
    shift
    (cd "$scratch" && exec env "$@" "$scratch/llm-sandbox" serve --http 2>"$scratch/$name.log") &
    pid=$!
    http_servers+=("$pid")
    local waited=0
    until sed -n 's/.*url="\(http[^"]*\)".*/\1/p' "$scratch/$name.log" 2>/dev/null | grep . >"$scratch/$name.url"; do
        if ! kill -0 "$pid" 2>/dev/null || [ $((waited += 1)) -gt $((start_limit_s * 10)) ]; then
            printf 'FAIL The server for %s starts\n' "$name"
            sed 's/^/     /' "$scratch/$name.log"
            return
        fi
        sleep 0.1
    done
}

stop_http() {
    local pid
    for pid in "${http_servers[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${http_servers[@]}"; do wait "$pid" || echo "FAIL A server over HTTP ends well (exit code $?)"; done
    http_servers=()
    if [ "${#balancers[@]}" != 0 ]; then kill "${balancers[@]}" 2>/dev/null || true; fi
    balancers=()
}

# client <name> <command>...: its checks, and a failed one if it did not end by itself.
client() {
    local name=$1 ended=0 started=$SECONDS
    shift
    timeout "$client_limit_s" "$@" || ended=$?
    echo "time $name: $((SECONDS - started)) s"
    if [ "$ended" != 0 ]; then echo "FAIL $name: the checks run to their end (exit code $ended)"; fi
}

servers() {
    local pid
    # The program is compared, too: another process may have the same number now.
    while read -r pid; do ps -o pid=,args= -p "$pid" | grep -F "$binary" || true; done <"$scratch/pids"
}

# Containers of the servers started here: other servers may run on this host.
containers() {
    local id owner pid
    docker ps --all --filter label=app=llm-sandbox --format '{{.ID}} {{.Label "llm-sandbox.owner"}}' |
        while read -r id owner; do
            IFS=/ read -r _ _ _ pid _ <<<"$owner"
            if grep -qx "${pid:-none}" "$scratch/pids"; then echo "$id"; fi
        done
}

# nothing_left <sentence> <what lists it>
nothing_left() {
    local left tries=0
    # Processes that got a signal to end may still be ending.
    while :; do
        left=$($2) || left='that could not be found out'
        if [ -z "$left" ] || [ $((tries += 1)) -gt 10 ]; then break; fi
        sleep 0.2
    done
    if [ -z "$left" ]; then echo "ok   $1"; else printf 'FAIL %s\n     %s\n' "$1" "${left//$'\n'/ }"; fi
}

# Claude Code is too large to be installed without a request.
have_claude() { compgen -G "$claude/node_modules/@anthropic-ai/claude-code-*/claude" >/dev/null; }

checks() {
    local python=$venv/bin/python http_servers=() balancers=() lanes=() lane stdio http patient
    trap stop_http EXIT
    if [ "$one" != oauth ]; then
        start_http open
        start_http guarded SANDBOX_AUTH_TOKENS="ann:$ANN_TOKEN,ben:$BEN_TOKEN"
        stdio=(stdio "$scratch/llm-sandbox")
        http=(http "$(<"$scratch/open.url")" "$(<"$scratch/guarded.url")")
    fi
    if [ "$one" = oauth ]; then
        oauth
    elif [ "$one" = one ]; then
        client 'Python, stdio' "$python" "$here/python_sdk.py" "${stdio[@]}" &
        lanes+=($!)
        client 'Python, HTTP' "$python" "$here/python_sdk.py" "${http[@]}" &
        lanes+=($!)
    else
        all_clients
    fi
    for lane in "${lanes[@]}"; do
        wait "$lane" || echo "FAIL the clients run to their end (exit code $?)"
    done
    stop_http
    nothing_left "None of the $(wc -l <"$scratch/pids") servers is left" servers
    if [ "${SANDBOX_ENGINE:-docker}" = docker ]; then nothing_left 'None of their containers is left' containers; fi
}

# The SDKs' own flows of OAuth, with a server that accepts the tokens of a real authorization server. Shares the
# variables of `checks`.
oauth() {
    local port waited=0
    node "$here/oauth/issuer.mjs" >"$scratch/issuer" 2>"$scratch/issuer.log" &
    balancers+=("$!")
    until [ -s "$scratch/issuer" ]; do
        if [ $((waited += 1)) -gt $((start_limit_s * 10)) ]; then
            echo 'FAIL The authorization server starts'
            sed 's/^/     /' "$scratch/issuer.log"
            return
        fi
        sleep 0.1
    done
    port=$(free_port)
    start_one oauth SANDBOX_HTTP_PORT="$port" SANDBOX_PUBLIC_URL="http://127.0.0.1:$port" SANDBOX_PRELOAD=none \
        SANDBOX_OAUTH_ISSUER="$(<"$scratch/issuer")" SANDBOX_OAUTH_SCOPES=sandbox.use
    client 'OAuth, TypeScript' node "$here/oauth/typescript.mjs" "$(<"$scratch/oauth.url")"
    client 'OAuth, Python' "$python" "$here/oauth/python.py" "$(<"$scratch/oauth.url")"
}

# Two clients run at a time, beside those that only wait. Shares the variables of `checks`.
all_clients() {
    oauth
    # For runs that idle for a minute, all at the same time.
    start_http patient SANDBOX_AUTH_TOKENS="ann:$ANN_TOKEN" SANDBOX_EXEC_TIMEOUT_S=90 \
        SANDBOX_PRELOAD=none SANDBOX_POOL_SIZE=0 SANDBOX_MAX_SESSIONS=12
    patient=(http none "$(<"$scratch/patient.url")")

    client 'TypeScript, long runs' node "$here/long.mjs" "${patient[@]}" &
    lanes+=($!)
    client 'Python, long runs' "$python" "$here/long.py" "${patient[@]}" &
    lanes+=($!)
    {
        client 'Inspector, stdio' node "$here/inspector.mjs" "${stdio[@]}"
        client 'Inspector, HTTP' node "$here/inspector.mjs" "${http[@]}"
        client 'Python, HTTP' "$python" "$here/python_sdk.py" "${http[@]}"
        if have_claude; then
            client 'Claude Code, stdio' node "$claude/claude_code.mjs" "${stdio[@]}"
            client 'Claude Code, HTTP' node "$claude/claude_code.mjs" "${http[@]}"
        else
            echo "skip Claude Code: it is not installed; (cd $claude && npm ci) does so, 400 MB"
        fi
    } &
    lanes+=($!)
    {
        client 'TypeScript, stdio' node "$here/typescript.mjs" "${stdio[@]}"
        client 'TypeScript, stdio, cells' node "$here/typescript_cells.mjs" "${stdio[@]}"
        client 'TypeScript, HTTP' node "$here/typescript.mjs" "${http[@]}"
        client 'TypeScript, HTTP, cells' node "$here/typescript_cells.mjs" "${http[@]}"
        client 'Python, stdio' "$python" "$here/python_sdk.py" "${stdio[@]}"
        client 'README' node "$here/readme.mjs" "$scratch/llm-sandbox" "$(<"$scratch/guarded.url")" "$python"
        client 'Notebook' "$python" "$here/notebook.py" "$(<"$scratch/guarded.url")"
        client 'Conformance' node "$here/conformance.mjs" "${http[@]}"
    } &
    lanes+=($!)
    if have_claude; then
        client 'Claude Code, a long run' node "$claude/claude_code.mjs" "${patient[@]}" 65 &
        lanes+=($!)
    fi
}

one=''
case "${1:-}" in
    --one | --oauth)
        one=${1#--}
        shift
        ;;
esac
if [ $# -gt 1 ]; then
    usage
    exit 2
fi
prepare_server "$@"
if [ "$one" != one ]; then prepare_node; fi
prepare_python

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
write_server_command
# An interrupted or incomplete list of checks counts as a failure.
ended=0
checks | tee "$scratch/checks" || ended=$?

tally "$scratch/checks" && [ "$ended" = 0 ]
