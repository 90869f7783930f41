# shellcheck shell=bash disable=SC2154,SC2164 # its variables and `set -e` are those of cluster.sh
# What the cluster has of the machine, and how it is given back: namespaces, a tree of cgroups, and mount points.
#
# The parts run in a mount and a PID namespace of their own. The end of its first process is the end of all of
# them, of what they have started, and of every mount; a number of a process is only ever used in there. The
# network is the machine's: tests reach the API server on loopback.

# Outside, only an empty folder is made where there is none, to mount on.
FOLDERS=(/var/lib/kubelet /var/lib/cni /var/log/pods /var/log/containers)
CONTROLLERS=(cpuset cpu memory pids hugetlb)
# Maximum size of all files of the cluster. The disk's file grows with use.
DISK_SIZE=20G

# The machine's number of the first process; false if the cluster is not up.
init_pid() {
    local pid
    read -r pid 2>/dev/null <"$run/init.pid" || return 1
    # After a restart of the machine another process may have this number. By the file, not by its name: a
    # container may call a program of its own so.
    [ "/proc/$pid/exe" -ef "$bin/pause" ] && printf '%s' "$pid"
}

# inside <command>...: as a process of the cluster, of which it gets no setting of the caller.
inside() {
    nsenter --target "$(init_pid)" --mount --pid -- env -i HOME=/root \
        PATH="$bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" "$@" 9>&-
}

enter_machine() {
    local folder starter
    mkdir -p "$run"
    # Tokens and keys are below.
    chmod 0700 "$run"
    for folder in "${FOLDERS[@]}"; do
        [ -d "$folder" ] || printf '%s\n' "$folder" >>"$run/made"
        mkdir -p "$folder"
    done
    printf '%s\n' "${FOLDERS[@]}" >"$run/folders"
    truncate -s "$DISK_SIZE" "$run/disk.img"
    # The disk does not outlive the machine, so it needs no journal.
    quietly mkfs.ext4 -q -F -O ^has_journal -E lazy_itable_init=1,nodiscard "$run/disk.img"
    make_cgroups
    # If another process unmounts a volume, it is unmounted here as well, so the cluster keeps no volume busy.
    setsid unshare --mount --propagation slave --pid --fork --kill-child -- \
        bash "$here/files/init.sh" "$run" "$bin/pause" </dev/null >>"$log/init.log" 2>&1 9>&- &
    starter=$!
    if ! wait_for 10 init_pid; then
        kill -KILL "$starter" 2>/dev/null || true
        show_log init
        die 'The namespaces of the cluster were not made.'
    fi
}

leave_machine() {
    local pid
    # Without it nothing was made.
    [ -d "$run" ] || return 0
    if pid=$(init_pid); then
        kill -KILL "$pid"
        # This process ends last: the kernel first ends all others of the namespace.
        wait_for 30 is_gone "$pid" || die "Process $pid of the cluster does not end."
    fi
    # Mounts go a moment later than processes.
    wait_for 60 disk_is_free || die "The disk of the cluster, $run/disk.img, is still in use."
    wait_for 10 remove_cgroups || die "The cgroups $CGROUP cannot be removed."
    if [ -r "$run/made" ]; then
        while read -r folder; do
            # Somebody else's files may have come meanwhile.
            if [ -d "$folder" ]; then rmdir --ignore-fail-on-non-empty "$folder"; fi
        done <"$run/made"
    fi
    rm -rf --one-file-system "$run"
}

disk_is_free() { [ -z "$(losetup --noheadings --associated "$run/disk.img")" ]; }
is_gone() { [ ! -e "/proc/$1" ]; }

# --- cgroups -----------------------------------------------------------------------------------------

is_unified() { [ -e /sys/fs/cgroup/cgroup.controllers ]; }

# The kubelet asks for its root to be there.
make_cgroups() {
    local hierarchy controller
    if is_unified; then
        for controller in "${CONTROLLERS[@]}"; do
            grep -qw "$controller" /sys/fs/cgroup/cgroup.controllers || continue
            grep -qw "$controller" /sys/fs/cgroup/cgroup.subtree_control && continue
            printf '%s\n' "$controller" >>"$run/controllers"
            echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
        done
        mkdir -p "/sys/fs/cgroup/$CGROUP"
        return
    fi
    for hierarchy in $(hierarchies); do
        mkdir -p "$hierarchy/$CGROUP"
        # Empty in a new one, and then no process can be in it.
        if [ -e "$hierarchy/cpuset.cpus" ]; then
            cat "$hierarchy/cpuset.cpus" >"$hierarchy/$CGROUP/cpuset.cpus"
            cat "$hierarchy/cpuset.mems" >"$hierarchy/$CGROUP/cpuset.mems"
        fi
    done
}

# Version 1 has a hierarchy for each controller; some machines have version 2 beside them.
hierarchies() { awk '$3 ~ /^cgroup2?$/ { print $2 }' /proc/self/mounts; }

# False while one is still in use.
remove_cgroups() {
    local hierarchy
    for hierarchy in $(hierarchies); do
        [ -d "$hierarchy/$CGROUP" ] || continue
        find "$hierarchy/$CGROUP" -depth -type d -exec rmdir {} + 2>/dev/null || return 1
    done
    if [ -r "$run/controllers" ]; then
        while read -r controller; do
            # Somebody else may use it by now.
            { echo "-$controller" >/sys/fs/cgroup/cgroup.subtree_control; } 2>/dev/null || true
        done <"$run/controllers"
        rm "$run/controllers"
    fi
}
