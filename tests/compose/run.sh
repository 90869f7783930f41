#!/usr/bin/env bash
# The real docker-compose.yml, in a copy of this clone without its .env: up, a whole session from the host and from
# a neighbour, what the containers may do, sudden deaths, restarts, and down.
#
#   tests/compose/run.sh             builds the server's image as `docker compose up` does: up to ten minutes
#   tests/compose/run.sh FOLDER      makes it from the programs llm-sandbox and llm-sandbox-relay in the folder, for
#                                    example target/debug: seconds
#
# The script touches only a Compose project of its own. The image llm-sandbox:compose stays, and without FOLDER the
# server's image does, too. Prints a line for each check, then `N passed, N failed`. The checks take half a minute.
# Exit code 0: no check failed. 1: a check failed. 2: the set-up failed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"
build_limit_s=3600
limit_s=180

ok() { echo "ok   $*"; }
# fail <sentence> [what was found]
fail() {
    printf 'FAIL %s\n' "$1"
    if [ $# -gt 1 ]; then printf '%s\n' "$2" | sed 's/^/     /'; fi
}
# equal <sentence> <found> <wanted>
equal() { if [ "$2" = "$3" ]; then ok "$1"; else fail "$1" "found: $2, wanted: $3"; fi; }

case $#-${1:-} in
    0- | 1-[!-]*) ;;
    1--h | 1---help) usage && exit 0 ;;
    *) usage && exit 2 ;;
esac
programs=()
if [ $# -gt 0 ]; then
    programs=("$1/llm-sandbox" "$1/llm-sandbox-relay")
    for program in "${programs[@]}"; do
        [ -x "$program" ] || die "There is no program at $program."
    done
    # Nothing is compiled, so the base image of the sandboxes has all that the Dockerfile needs.
    export RUST_IMAGE=debian:trixie-slim BUILD_IMAGE=debian:trixie-slim
fi

unset_settings
# Here it is a file that Compose mounts.
unset "${!COMPOSE_@}" SANDBOX_CONFIG_FILE

step 'engine, Docker Compose, base images'
"$root/sandbox-image/prepare-host.sh" --compose >/dev/null || die 'this host cannot be made ready, see above'
have python3 || die 'python3 is missing'

scratch=$(mktemp -d)
copy=$scratch/clone
COMPOSE_PROJECT_NAME=llm-sandbox-test-$$
SANDBOX_HTTP_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export COMPOSE_PROJECT_NAME SANDBOX_HTTP_PORT
base=http://localhost:$SANDBOX_HTTP_PORT
image=llm-sandbox:compose
own_image=$COMPOSE_PROJECT_NAME:own
server_image=$COMPOSE_PROJECT_NAME:server
export COMPOSE_FILE=$copy/docker-compose.yml
foreign=''

compose() { timeout "$limit_s" docker compose --project-directory "$copy" "$@"; }
tidy() {
    if [ -n "$foreign" ]; then docker rm --force "$foreign" >/dev/null 2>&1 || true; fi
    if [ -d "$copy" ]; then compose down --volumes --remove-orphans --timeout 30 >/dev/null 2>&1 || true; fi
    docker rmi "$own_image" "$server_image" >/dev/null 2>&1 || true
    rm -rf "$scratch"
}
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

step 'a copy of the clone'
mkdir "$copy"
(cd "$root" && git ls-files --cached --others --exclude-standard -z | xargs -0 cp --parents -t "$copy" 2>/dev/null) || true
[ -f "$copy/docker-compose.yml" ] || die 'the clone could not be copied; is this a git work tree?'
rm -f "$copy/.env"

# use_programs <program>...: has Compose make the server's image, under a name of its own, from these programs.
use_programs() {
    local tree=$scratch/server/image program
    step 'the programs and the libraries that they need'
    install -D --strip -t "$tree/usr/bin" "$@"
    # ldd fails for a static program, which needs none.
    for program in "$@"; do ldd "$program" 2>/dev/null || true; done | awk '/^\t.*\// { print $(NF - 1) }' | sort -u |
        xargs --no-run-if-empty cp --parents --dereference -t "$tree"
    cat >"$scratch/programs.yml" <<END
services:
  sandbox:
    image: $server_image
    build: { additional_contexts: { build: $scratch/server } }
  engine: { image: $server_image }
  image: { image: $server_image }
END
    COMPOSE_FILE+=:$scratch/programs.yml
}
if [ $# -gt 0 ]; then use_programs "${programs[@]}"; fi

container() { compose ps --all --quiet "$1"; }
inspect() { docker inspect --format "$2" "$(container "$1")"; }
token() { compose exec -T sandbox llm-sandbox token "$@"; }
session() { TOKEN=$token timeout "$limit_s" python3 "$here/session.py" "$@"; }
from_neighbour() {
    timeout "$limit_s" docker run --rm --interactive --network "${COMPOSE_PROJECT_NAME}_default" --env TOKEN="$token" \
        --entrypoint python3 "$image" - "$@" <"$here/session.py"
}
# Containers of the session with this name, and of a server by its owner label.
of_session() { docker ps --all --quiet --filter label=app=llm-sandbox --filter "label=session_id=$1"; }
of_owner() { docker ps --all --quiet --filter label=app=llm-sandbox --filter "label=llm-sandbox.owner=$1"; }
owner_of() { docker inspect --format '{{index .Config.Labels "llm-sandbox.owner"}}' "$(of_session "$1")"; }

# until_so <command>...: waits until it succeeds; false if it never does.
until_so() {
    local tries=0
    until "$@"; do
        if [ $((tries += 1)) -gt 300 ]; then return 1; fi
        sleep 0.2
    done
}
# none_left <sentence> <owner>
none_left() { if until_so none_owned "$2"; then ok "$1"; else fail "$1" "$(of_owner "$2")"; fi; }
is_there() { [ -n "$(of_session "$1")" ]; }
none_owned() { [ -z "$(of_owner "$1")" ]; }

# start <sentence>
start() {
    local said=$scratch/up.log
    if limit_s=$build_limit_s compose up --detach --wait >"$said" 2>&1; then
        ok "$1"
    else
        fail "$1" "$(tail -n 30 "$said"; compose logs --no-color --tail 20 2>&1)"
        return 1
    fi
}

# A session whose program does not end, started in the background; sets owner.
leave_session() {
    session "$base" "$1" >/dev/null 2>&1 &
    until_so is_there "$1" || { fail "A session is started"; return 1; }
    owner=$(owner_of "$1")
}

confined() {
    local service=$1 user=$2 found
    mapfile -t found < <(inspect "$service" '{{.Config.User}}
{{.HostConfig.ReadonlyRootfs}}
{{.HostConfig.CapDrop}} {{.HostConfig.CapAdd}} {{.HostConfig.Privileged}}
{{.HostConfig.SecurityOpt}}
{{.HostConfig.Memory}} {{.HostConfig.PidsLimit}}')
    equal "$service runs as $user" "${found[0]:-}" "$user"
    equal "$service has a read-only root" "${found[1]:-}" true
    equal "$service has no capability" "${found[2]:-}" '[ALL] [] false'
    case ${found[3]:-} in
        *no-new-privileges:true*) ok "$service gets no new privileges" ;;
        *) fail "$service gets no new privileges" ;;
    esac
    case ${found[4]:-} in
        '' | 0\ * | *\ 0 | *nil*) fail "$service has limits of memory and processes" ;;
        *) ok "$service has limits of memory and processes" ;;
    esac
}

# works <sentence>: a whole session from the host succeeds.
works() {
    local said
    if said=$(session "$base" 2>&1) && ! grep -q '^FAIL' <<<"$said"; then ok "$1"; else fail "$1" "$said"; fi
}

# A settings file of the operator's own, with callers whose tokens are files, limits, and a certificate.
file_checks() {
    local folder=$copy/mine
    mkdir "$folder" "$folder/secrets"
    sed '/tokens_file/d' "$copy/sandbox-image/server/config.yaml" >"$folder/config.yaml"
    cat >>"$folder/config.yaml" <<'END'
sandbox: { max_memory_mb: 700, max_disk_mb: 200 }
tls: { cert: /etc/llm-sandbox/secrets/cert.pem, key: /etc/llm-sandbox/secrets/key.pem }
callers:
  - { name: ann, token: "file:secrets/ann" }
END
    echo secret-of-ann >"$folder/secrets/ann"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 2 -subj /CN=localhost \
        -addext subjectAltName=DNS:localhost -keyout "$folder/secrets/key.pem" -out "$folder/secrets/cert.pem" 2>/dev/null
    chmod -R a+rX "$folder"
    printf 'SANDBOX_CONFIG_FILE=./mine/config.yaml\nSECRETS_DIR=./mine/secrets\nSANDBOX_PRELOAD=none\n' >"$copy/.env"
    start 'A settings file, with secrets and a certificate, is used' || return
    token=secret-of-ann base=https://localhost:$SANDBOX_HTTP_PORT
    export SSL_CERT_FILE=$folder/secrets/cert.pem
    leave_session file || return
    equal 'The relay reads it, too' "$(docker inspect --format '{{.HostConfig.Memory}}' "$(of_session file)")" 700000000
    works 'A session over HTTPS runs to its end'
    rm -r "$copy/.env"
    unset SSL_CERT_FILE
    base=http://localhost:$SANDBOX_HTTP_PORT
    start 'Without it the server is as before' || return
    token=$(token)
    if SANDBOX_HTTP_HOST=0.0.0.0 compose up --detach --wait >/dev/null 2>&1; then
        fail 'A port beyond this machine needs TLS, or leave to do without'
    else
        ok 'A port beyond this machine needs TLS, or leave to do without'
    fi
    case $(compose logs --no-color sandbox 2>&1) in
        *SANDBOX_ALLOW_INSECURE_HTTP=true*) ok 'And the log names the ways out' ;;
        *) fail 'And the log names the ways out' ;;
    esac
    start 'It is started again on this machine alone' || return
}

checks() {
    local owner='' token='' log='' own=''

    step "docker compose build"
    (cd "$copy" && limit_s=$build_limit_s compose build) >"$scratch/build.log" 2>&1 ||
        { fail 'The image of the server is built' "$(tail -n 30 "$scratch/build.log")"; return; }
    ok 'The image of the server is built'
    start 'docker compose up ends in a healthy server, without a .env' || return

    equal 'It listens on this machine only' "$(inspect sandbox '{{(index (index .NetworkSettings.Ports "8080/tcp") 0).HostIp}}')" 127.0.0.1
    confined sandbox 65532:65532
    confined engine 0:65532
    confined image 0:0
    equal 'The server has no path of the host but the settings file' \
        "$(inspect sandbox '{{range .Mounts}}{{if ne .Type "volume"}}{{println .Source}}{{end}}{{end}}' | LC_ALL=C sort -u | xargs)" \
        "/dev/null $copy/sandbox-image/server/config.yaml"
    equal 'The relay has no network' "$(inspect engine '{{.HostConfig.NetworkMode}}')" none
    if compose exec -T sandbox sh -c true >/dev/null 2>&1; then fail 'There is no shell'; else ok 'There is no shell'; fi

    token=$(token)
    equal 'There is a token of 256 bits' "$(grep -cE '^[0-9a-f]{64}$' <<<"$token")" 1
    compose cp sandbox:/var/log/llm-sandbox/sandbox.log "$scratch/sandbox.log" >/dev/null 2>&1 || true
    equal 'The log has the command that prints it' "$(grep -c 'docker compose exec sandbox llm-sandbox token' "$scratch/sandbox.log")" 1
    if compose exec -T sandbox llm-sandbox doctor >"$scratch/doctor.log" 2>&1; then
        ok 'llm-sandbox doctor is content'
    else
        fail 'llm-sandbox doctor is content' "$(cat "$scratch/doctor.log")"
    fi

    echo "from the host, $base:"
    session "$base" || fail 'The session from the host runs to its end'
    echo 'from a neighbour, http://sandbox:8080:'
    from_neighbour http://sandbox:8080 || fail 'The session from a neighbour runs to its end'

    # Like the sandbox of a server on another machine: whether that server runs is unknown here, so it must not be
    # removed.
    foreign=$(docker run --detach --network none --label app=llm-sandbox --label session_id=foreign \
        --label llm-sandbox.owner=v1/elsewhere/1/1/1 --entrypoint sleep "$image" 3600)
    leave_session first || return
    docker kill --signal KILL "$(container sandbox)" >/dev/null
    none_left 'A server that is killed leaves no sandbox' "$owner"
    start 'It is started again' || return

    leave_session second || return
    docker kill --signal KILL "$(container engine)" >/dev/null
    none_left 'A relay that is killed leaves no sandbox' "$owner"
    start 'The relay is started again' || return
    works 'The server works with it'

    leave_session third || return
    compose restart sandbox >/dev/null 2>&1
    none_left 'A restart leaves no sandbox' "$owner"
    start 'The server is healthy after a restart' || return
    equal 'The token is the same' "$(token)" "$token"
    works 'And it works'
    equal "Another server's sandbox was left alone" "$(docker inspect --format '{{.State.Status}}' "$foreign")" running
    docker rm --force "$foreign" >/dev/null
    foreign=''

    mkdir "$scratch/own"
    printf 'FROM %s\nLABEL own=yes\n' "$image" >"$scratch/own/Dockerfile"
    docker build --quiet --tag "$own_image" "$scratch/own" >/dev/null
    own=$(docker image inspect --format '{{.Id}}' "$own_image")
    echo "SANDBOX_IMAGE=$own_image" >>"$copy/.env"
    printf 'SANDBOX_AUTH_TOKENS=ann:ann-token,ben:ben-token\nSANDBOX_METRICS_TOKEN=figures-token\nSANDBOX_MEMORY_LIMIT=600MB\nSANDBOX_PRELOAD=none\nSANDBOX_LOG_FILE=\nFOREIGN=not-ours\n' >>"$copy/.env"
    install -d "$scratch/sales"
    printf 'SANDBOX_DATASETS=sales=%s\nSANDBOX_STORAGE=disk\n' "$scratch/sales" >>"$copy/.env"
    SANDBOX_CPU_LIMIT=0.5 start 'Settings come from .env and the environment' || return
    equal 'A SANDBOX_LOG_FILE that is set to nothing reaches the server so' \
        "$(inspect sandbox '{{.Config.Env}}' | tr ' ' '\n' | grep -o '^\[\?SANDBOX_LOG_FILE=.*' || true)" 'SANDBOX_LOG_FILE='
    equal 'The relay knows no token, and of .env nothing that is not a setting' \
        "$(inspect engine '{{.Config.Env}}' | grep -c -e ann-token -e figures-token -e not-ours || true)" 0
    equal 'Tokens that are set hold instead of the one that was made' "$(token | tr '\n' ' ')$(token ben)" 'ann-token ben-token ben-token'
    token=ann-token
    leave_session fourth || return
    equal 'Sandboxes have what the settings say' \
        "$(docker inspect --format '{{.HostConfig.Memory}} {{.HostConfig.NanoCpus}}' "$(of_session fourth)")" '600000000 500000000'
    equal 'They have datasets, and their files on disk' "$(docker inspect --format \
        '{{range .Mounts}}{{println .Type .Destination}}{{end}}' "$(of_session fourth)" | LC_ALL=C sort | xargs)" \
        'volume /data/sales volume /mnt/data'
    equal 'They are of the image that the operator has made' "$(docker inspect --format '{{.Image}}' "$(of_session fourth)")" "$own"
    equal 'Which was not replaced' "$(docker image inspect --format '{{.Id}}' "$own_image")" "$own"

    leave_session fifth || return
    rm "$copy/.env"
    file_checks
    leave_session sixth || return
    compose down >/dev/null 2>&1
    none_left 'down leaves no sandbox' "$owner"
    local of_project="label=com.docker.compose.project=$COMPOSE_PROJECT_NAME"
    equal 'down leaves no container' "$(docker ps --all --quiet --filter "$of_project")" ''
    equal 'down leaves no network' "$(docker network ls --quiet --filter "$of_project")" ''

    log=$(DOCKER_SOCKET=$scratch/no.sock compose up --detach --wait 2>&1) && fail 'A socket that is not there stops the start'
    case $log in
        *"does not exist: $scratch/no.sock"*) ok 'A socket that is not there stops the start, with its path' ;;
        *) fail 'A socket that is not there stops the start, with its path' "$log" ;;
    esac
    if [ -e "$scratch/no.sock" ]; then fail 'And nothing is made in its place'; else ok 'And nothing is made in its place'; fi
    compose down >/dev/null 2>&1

    echo 'SANDBOX_MEMROY_LIMIT=1GB' >"$copy/.env"
    if compose up --detach --wait >/dev/null 2>&1; then fail 'A setting that does not exist stops the start'; else ok 'A setting that does not exist stops the start'; fi
    log=$(compose logs --no-color 2>&1)
    case $log in
        *'SANDBOX_MEMROY_LIMIT: there is no such setting'*) ok 'And the log says which' ;;
        *) fail 'And the log says which' "$log" ;;
    esac
    rm "$copy/.env"
    compose down >/dev/null 2>&1

    DOCKER_GID=$(stat -c %g "$(readlink -f "${DOCKER_SOCKET:-/var/run/docker.sock}")")
    export DOCKER_GID
    COMPOSE_FILE=$COMPOSE_FILE:$copy/sandbox-image/server/direct.yml start 'It starts without the relay' || return
    token=$(token)
    works 'And works'
    compose down --volumes >/dev/null 2>&1
    equal 'down --volumes leaves no volume' "$(docker volume ls --quiet --filter "$of_project")" ''
    equal 'and no container' "$(docker ps --all --quiet --filter "$of_project")" ''
}

# An interrupted or incomplete list of checks counts as a failure.
ended=0
checks | tee "$scratch/checks" || ended=$?
tally "$scratch/checks" && [ "$ended" = 0 ]
