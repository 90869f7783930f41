#!/usr/bin/env bash
# The recipes of the sandbox image: builds an image with each recipe, one after the other, checks that its sandboxes
# confine programs as those of the usual image do, and does with it what it is for, through the protocol.
#
#   tests/recipes/run.sh [program] [recipe]...
#
# Needs Docker. Takes 10 minutes and 4 GB of disk the first time, and 2 minutes after that; the images are removed, but
# not their stages if the image of another recipe needs them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=../lib.sh
. "$here/../lib.sh"
unset_settings SANDBOX_IMAGE
have python3 || need_packages 'Python' python3
prepare_server "${1:-}"
shift || true
recipes=("$@")
if [ ${#recipes[@]} = 0 ]; then recipes=(r ruby lua sql documents more); fi

scratch=$(mktemp -d)
built=()
tidy() {
    rm -rf "$scratch"
    for image in ${built[@]+"${built[@]}"}; do docker image rm "$image" >/dev/null 2>&1 || true; done
}
trap tidy EXIT

# shellcheck disable=SC2154 # set by find_server
refuses_unknown() {
    if "$binary" image build --with cobol 2>"$scratch/refusal"; then return 1; fi
    grep 'the recipes are documents, r, ruby, lua, more, sql' "$scratch/refusal"
}
check 'a recipe that does not exist is refused with the names of all' refuses_unknown
is_current() { "$binary" image build --if-needed "$@" | grep 'exists and is up to date'; }
for recipe in "${recipes[@]}"; do
    export SANDBOX_IMAGE=llm-sandbox:$recipe-test
    built+=("$SANDBOX_IMAGE")
    check "the image with $recipe is built" "$binary" image build --with "$recipe"
    check "the image with $recipe is up to date" is_current --with "$recipe"
    check "the image with $recipe keeps it without being told" is_current
    check "sandboxes with $recipe confine programs" "$binary" doctor --probe
    python3 "$here/check.py" "$binary" "$recipe" | tee -a "$scratch/results"
done
tally "$scratch/results"
