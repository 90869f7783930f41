# This script sets the emulated machine up, beside its packages. It runs in its root once, when the disk is built.
set -euo pipefail

printf 'LABEL=system / ext4 defaults 0 0\n' >/etc/fstab
printf 'engine-test\n' >/etc/hostname
printf '127.0.0.1 localhost engine-test\n' >/etc/hosts
# A user without rights cannot load what a rootless engine needs.
printf '%s\n' overlay br_netfilter nf_tables nft_compat nft_chain_nat xt_conntrack xt_MASQUERADE xt_addrtype \
    iptable_nat ip6table_nat fuse tun veth bridge >/etc/modules-load.d/engines.conf

useradd --create-home --shell /bin/bash --uid 1000 tester
grep -q '^tester:' /etc/subuid || usermod --add-subuids 100000-165535 --add-subgids 100000-165535 tester
# As the manuals of the rootless engines say, so that their limits apply.
mkdir -p /etc/systemd/system/user@.service.d
printf '[Service]\nDelegate=cpu cpuset io memory pids\n' >/etc/systemd/system/user@.service.d/delegate.conf

# Only the engine that is tested runs.
systemctl disable docker.service docker.socket containerd.service podman.service podman.socket \
    podman-auto-update.timer podman-auto-update.service podman-restart.service podman-clean-transient.service || true
systemctl mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
    getty@tty1.service serial-getty@ttyS0.service systemd-networkd-wait-online.service

cat >/etc/systemd/system/first.service <<'UNIT'
[Unit]
Description=The script that the machine was started for
After=basic.target systemd-logind.service systemd-modules-load.service apparmor.service
[Service]
Type=oneshot
ExecStart=/bin/bash /usr/local/sbin/first
[Install]
WantedBy=multi-user.target
UNIT
systemctl enable first.service

# Ids, caches and the profiles of programs that are not here: each boot would make them anew, as nothing of it is kept.
systemd-machine-id-setup
systemctl mask ldconfig.service systemd-journal-catalog-update.service systemd-hwdb-update.service \
    systemd-update-done.service systemd-sysusers.service systemd-firstboot.service
touch /etc/.updated /var/.updated
# As docs/platforms.md says for Podman as root: otherwise the processes of a container may not signal each other.
mkdir -p /etc/apparmor.d/disable
ln -s /etc/apparmor.d/crun /etc/apparmor.d/disable/
cd /etc/apparmor.d
for profile in *; do
    case $profile in
        crun | runc | podman | rootlesskit | slirp4netns | passt | pasta | fuse* | containers*) ;;
        *) [ -d "$profile" ] || rm "$profile" ;;
    esac
done
rm -rf /var/cache/apt/archives/*.deb /var/lib/apt/lists/*
