#!/bin/bash
# Runs in the emulated machine: starts the engine, prints its facts, and runs the checks.
set -uo pipefail
# shellcheck disable=SC1091 # a file of the machine
source /files/settings
# shellcheck disable=SC1091
source /files/engine.sh
failed=0
# say <what> <command>...: prints a line, and what the command printed if it fails.
say() {
    local what=$1 began=$SECONDS
    shift
    if "$@" >/tmp/said 2>&1; then
        echo "ok   $what ($((SECONDS - began)) s)"
    else
        echo "FAIL $what ($((SECONDS - began)) s)"
        cut -c 1-1500 /tmp/said | tail -n 60 | sed 's/^/     /'
        failed=1
    fi
}
start_engine || exit 1
echo "     kernel $(uname -r), cgroup $(stat -fc %T /sys/fs/cgroup), AppArmor $(cat /sys/module/apparmor/parameters/enabled)"
"${AS[@]}" docker info --format '     {{.ServerVersion}}, cgroup {{.CgroupVersion}} by {{.CgroupDriver}}, {{.SecurityOptions}}'

# Test programs look for files where they were built, and may write the page.
mkdir -p "$(dirname "$ROOT")"
cp -r /files/repository "$ROOT"
chown -R tester: "$ROOT"
export LLM_SANDBOX_BIN=/files/llm-sandbox REPOSITORY=$ROOT RESTART_ENGINE APPARMOR_PROFILE TEST_SLOWNESS TEST_MACHINE SANDBOX_IMAGE
export SANDBOX_CONFIG_FILE=/dev/null SANDBOX_ENV_FILE=/dev/null SANDBOX_ENGINE=docker SANDBOX_LOG_FILE=
cd /tmp
say 'doctor' "${AS[@]}" "$LLM_SANDBOX_BIN" doctor
sed 's/^/     /' /tmp/said
if [ -n "$UPDATE_DOCS" ]; then
    export UPDATE_DOCS
else
    "${AS[@]}" python3 -u /files/checks.py || failed=1
    say 'doctor --probe' "${AS[@]}" "$LLM_SANDBOX_BIN" doctor --probe
    grep -A 99 'Inside a sandbox' /tmp/said | sed 's/^/     /'
fi
if [ -z "$UPDATE_DOCS" ] && ! grep -q "| $TEST_MACHINE |" "$ROOT/docs/conformance.md"; then
    echo "     docs/conformance.md has no column for $TEST_MACHINE; UPDATE_DOCS=1 adds it"
else
    say "docs/conformance.md is true of $TEST_MACHINE" "${AS[@]}" /files/drills --exact --nocapture \
        conformance::the_table_is_true_of_the_emulated_machine
fi
cat "$ROOT/docs/conformance.md" >/dev/virtio-ports/result
exit "$failed"
