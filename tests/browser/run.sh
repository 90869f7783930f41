#!/usr/bin/env bash
# The page for people, and hostile HTML and SVG artifacts, in a real Chromium. Sandboxes are plain processes, except for
# the page of a workspace, whose cells need the image.
#
#   tests/browser/run.sh [server binary]     default: target/debug/llm-sandbox, built if it is missing
#
# Installs Debian's chromium if it may; CHROMIUM names another browser. Prints a line for each check, and
# `N passed, N failed` for the page and for the artifacts. Exit code 0: none failed. 77: there is no browser, and the
# reason was printed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"
limit_s=600

skip() {
    printf 'skipped: %s\n' "$*"
    exit 77
}

# Prints the name of a browser that starts. Ubuntu's package is a stub that needs snapd, which may be missing.
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

prepare_server "$@"
have node || need_packages 'Node.js, 20 or newer,' nodejs npm
if ! browser=$(find_browser); then
    may_install || skip 'there is no chromium, and only root on Debian or Ubuntu can install it here'
    install_packages chromium || skip 'chromium cannot be installed'
    browser=$(find_browser) || skip 'the chromium that was installed does not start'
fi

npm_ci "$here" "the rules of accessibility, and the host of MCP Apps"

failed=0
for checks in page_check hostile_check apps_check; do
    timeout --kill-after=10 "$limit_s" node "$here/$checks.mjs" "$binary" "$browser" || failed=1
done
exit "$failed"
