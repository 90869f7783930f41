#!/usr/bin/env bash
# The first process of the cluster's own mount and PID namespaces: lays out what the parts see of the machine,
# and waits. Nothing that is mounted here is seen outside, and all of it is gone with the last process.
#
# usage: init.sh <folder of the run> <program to wait in>
set -euo pipefail

run=$1
pause=$2

# /proc is the machine's until it is mounted anew below: this is the number by which the machine knows us.
read -r pid _ </proc/self/stat

# All that parts and pods write is in one file, which is gone at once; a disk may take a minute to forget as many
# small files as an image has. It is no more than they may fill, either. Without loop devices it is a folder.
mkdir -p "$run/disk"
mount -t ext4 -o loop,noatime,noinit_itable "$run/disk.img" "$run/disk" || echo 'The disk of the cluster is a folder.'

# Folders that the parts write to, whatever their settings are.
while read -r folder; do
    mkdir -p "$run/disk$folder"
    mount --bind "$run/disk$folder" "$folder"
done <"$run/folders"

# Sockets, network namespaces and states of pods. It also hides systemd and D-Bus: the kubelet would ask systemd
# to mount things for it, and name a process of these namespaces by a number that means another one there.
mount -t tmpfs -o mode=0755,nodev,nosuid cluster /run

mount -t proc -o nosuid,nodev,noexec proc /proc
# The kubelet wants these values and would set them for the whole machine. It finds them set.
while IFS='=' read -r name value; do
    [ -e "/proc/sys/$name" ] || continue
    file=$run/sysctl/$name
    mkdir -p "$(dirname "$file")"
    printf '%s\n' "$value" >"$file"
    mount --bind "$file" "/proc/sys/$name"
done <<'END'
vm/overcommit_memory=1
vm/panic_on_oom=0
kernel/panic=10
kernel/panic_on_oops=1
kernel/keys/root_maxkeys=1000000
kernel/keys/root_maxbytes=25000000
END

printf '%s\n' "$pid" >"$run/init.pid.new"
mv "$run/init.pid.new" "$run/init.pid"
exec "$pause"
