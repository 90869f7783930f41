# shellcheck shell=bash
# Starts the engine that the variable ENGINE names, and sets DOCKER_HOST, AS and RESTART_ENGINE. The image is in /store,
# a disk on which each engine has its files. A rootless engine is started as an ordinary user with a session does it.

home=/home/tester
runtime=/run/user/1000
# bound <folder>: it is on the disk of the store.
bound() {
    mkdir -p "/store/$1" "$1"
    mount --bind "/store/$1" "$1"
}
as_tester() {
    runuser -u tester -- env HOME=$home XDG_RUNTIME_DIR=$runtime \
        DBUS_SESSION_BUS_ADDRESS=unix:path=$runtime/bus DOCKER_HOST="${DOCKER_HOST:-}" "$@"
}
log_in() {
    loginctl enable-linger tester
    for _ in $(seq 300); do
        [ -S $runtime/bus ] && break
        sleep 0.5
    done
    bound $home/.local/share
    mkdir -p $home/.config/systemd/user
    chown -R tester: $home/.config
    # The store's own files have other owners.
    chown tester: $home/.local $home/.local/share
}
AS=()
start_engine() {
    local failed_to_start=''
    case $ENGINE in
        docker)
            bound /var/lib/docker
            export DOCKER_HOST=unix:///run/docker.sock
            RESTART_ENGINE='systemctl restart docker'
            systemctl start docker || failed_to_start=yes
            ;;
        podman)
            bound /var/lib/containers
            export DOCKER_HOST=unix:///run/podman/podman.sock
            RESTART_ENGINE='systemctl stop podman.service; systemctl restart podman.socket'
            systemctl start podman.socket || failed_to_start=yes
            ;;
        docker-rootless)
            log_in
            export DOCKER_HOST=unix://$runtime/docker.sock
            # The unit that dockerd-rootless-setuptool.sh writes.
            cat >$home/.config/systemd/user/docker.service <<'UNIT'
[Service]
Environment=PATH=/usr/share/docker.io/contrib:/usr/sbin:/sbin:/usr/bin:/bin
ExecStart=/usr/share/docker.io/contrib/dockerd-rootless.sh
Type=notify
NotifyAccess=all
KillMode=mixed
Delegate=yes
LimitNOFILE=infinity
TasksMax=infinity
TimeoutStartSec=0
UNIT
            AS=(as_tester)
            RESTART_ENGINE='systemctl --user restart docker'
            as_tester systemctl --user daemon-reload
            as_tester systemctl --user start docker || failed_to_start=yes
            ;;
        podman-rootless)
            log_in
            export DOCKER_HOST=unix://$runtime/podman/podman.sock
            AS=(as_tester)
            RESTART_ENGINE='systemctl --user stop podman.service; systemctl --user restart podman.socket'
            as_tester systemctl --user start podman.socket || failed_to_start=yes
            ;;
    esac
    # A unit that has failed has said why, and does not come up later.
    for _ in $(seq 60); do
        if "${AS[@]}" docker version >/dev/null 2>&1; then return; fi
        if [ -n "$failed_to_start" ]; then break; fi
        sleep 1
    done
    echo 'FAIL the engine answers'
    journalctl --no-pager --lines 60 --output cat
    return 1
}
