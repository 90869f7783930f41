# The first program of the emulated machine: runs /files/run, and ends the machine.
port() { printf '/dev/virtio-ports/%s' "$1"; }
udevadm settle
mkdir -p /files /store
mount -o ro LABEL=files /files
if [ -e /dev/disk/by-label/store ]; then mount LABEL=store /store; fi
export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
cd /root
/files/run >"$(port output)" 2>&1 </dev/null
code=$?
sync
mountpoint -q /store && umount --recursive --lazy /store
sync
echo "$code" >"$(port code)"
# Programs that still run need not end in good order, because nothing is kept.
systemctl poweroff --force --force
