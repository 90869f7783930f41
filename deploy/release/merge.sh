#!/usr/bin/env bash
# Puts the artefacts of all architectures into one folder, with the sums of all.
#
#   deploy/release/merge.sh PARTS DIST   PARTS contains a folder for each architecture
#
# Files that do not depend on the architecture must be the same in each.
set -euo pipefail
[ $# = 2 ] || { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 64; }

mkdir -p "$2"
for file in "$1"/*/*; do
    name=$(basename "$file")
    if [ "$name" = SHA256SUMS ]; then continue; fi
    if [ -e "$2/$name" ] && ! cmp "$file" "$2/$name"; then exit 1; fi
    cp "$file" "$2/"
done
cd "$2"
rm -f SHA256SUMS
sums=$(sha256sum -- *)
echo "$sums" >SHA256SUMS
