#!/usr/bin/env bash
# Measures how long a first start takes: in an empty container with uv, from `uvx` to the first result of run_python on
# the embedded engine, and a second start. Prints both in seconds, then the steps of the installation.
#
#   tests/release/measure.sh FOLDER [TIMES]   the artefacts in the folder, such as dist/; 3 times by default
#
# The packages come from the folder, and what they depend on from the index. Every time nothing is in a cache. Needs
# Docker and a network, and nothing else that runs.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/container.sh"

case $#-${1:-} in
    [12]-[!-]*) ;;
    *) usage >&2; exit 64 ;;
esac
dist=$(realpath "$1")
volume=llm-sandbox-measure-$$
trap 'docker volume rm --force "$volume" >/dev/null 2>&1 || true' EXIT
start="python3 /tests/first_result.py uvx --find-links /dist $NAME"
for _ in $(seq "${2:-3}"); do
    docker volume rm --force "$volume" >/dev/null 2>&1 || true
    in_container 'python3 python3-venv' "
        python3 -m venv /uv; /uv/bin/pip install -q uv; PATH=/uv/bin:\$PATH
        seconds() { date +%s.%N; }
        begun=\$(seconds)
        uvx --find-links /dist $NAME runtime install >/tmp/steps 2>&1
        $start >/dev/null 2>&1
        first=\$(seconds)
        $start >/dev/null 2>&1
        second=\$(seconds)
        echo \"\$begun \$first \$second\" | awk '{ printf \"first result %.1f s, second start %.1f s\n\", \$2 - \$1, \$3 - \$2 }'
        cat /tmp/steps"
done
