#!/bin/bash
# Runs in the emulated machine: loads the sandbox image into the engine's store.
set -euo pipefail
# shellcheck disable=SC1091 # a file of the machine
source /files/settings
# shellcheck disable=SC1091
source /files/engine.sh
start_engine
"${AS[@]}" docker load --input /files/image.tar
case $ENGINE in
    docker) systemctl stop docker.socket docker containerd ;;
    podman) systemctl stop podman.socket podman.service ;;
    docker-rootless) as_tester systemctl --user stop docker ;;
    podman-rootless) as_tester systemctl --user stop podman.socket podman.service ;;
esac
