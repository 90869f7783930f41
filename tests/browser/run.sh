#!/usr/bin/env bash
# The page for people, and hostile HTML and SVG artifacts, in a real Chromium.
#
#   tests/browser/run.sh [server binary]     default: target/debug/llm-sandbox, built if it is missing
#
# Installs Debian's chromium where it may; CHROMIUM names another. Prints a line for each check, and
# `N passed, N failed` for the page and for the artifacts. Exit code 0: none failed, or there is no
# browser and the reason was printed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
default_binary=${CARGO_TARGET_DIR:-$root/target}/debug/llm-sandbox
binary=${1:-$default_binary}
limit_s=300

step() { printf 'set-up: %s\n' "$*"; }
die() {
    printf 'set-up: %s\n' "$@" >&2
    exit 2
}
have() { command -v "$1" >/dev/null 2>&1; }
skip() {
    printf 'skipped: %s\n' "$*"
    echo '0 passed, 0 failed'
    exit 0
}
may_install() { [ "$(id -u)" = 0 ] && have apt-get; }
install_packages() {
    step "installing $*"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null
}

# Prints a browser that starts. Ubuntu's package is a stub that needs snapd, which may not be there.
find_browser() {
    local name
    for name in "${CHROMIUM:-chromium}" chromium-browser google-chrome; do
        if "$name" --version >/dev/null 2>&1; then
            command -v "$name"
            return
        fi
    done
    return 1
}

if [ ! -x "$binary" ]; then
    [ "$binary" = "$default_binary" ] || die "There is no program at $binary."
    step 'the server, cargo build'
    (cd "$root" && cargo build --quiet)
fi
if ! have node; then
    may_install || die 'Node.js is missing; 20 or newer is needed.'
    install_packages nodejs npm
fi
if ! browser=$(find_browser); then
    may_install || skip 'there is no chromium, and only root on Debian or Ubuntu can install it here'
    install_packages chromium || skip 'chromium cannot be installed'
    browser=$(find_browser) || skip 'the chromium that was installed does not start'
fi

if ! cmp -s "$here/package-lock.json" "$here/node_modules/.stamp"; then
    step 'the rules of accessibility, npm ci'
    (cd "$here" && npm ci --loglevel=error >/dev/null)
    cp "$here/package-lock.json" "$here/node_modules/.stamp"
fi

failed=0
for checks in page_check hostile_check; do
    timeout --kill-after=10 "$limit_s" node "$here/$checks.mjs" "$(realpath "$binary")" "$browser" || failed=1
done
exit "$failed"
