#!/usr/bin/env bash
# Boots systemd on a copy of this system, in namespaces of its own, and runs a script in it:
#   boot.sh FOLDER SCRIPT
# FOLDER is mounted there as /mnt, and SCRIPT (a path in it) run by bash. The copy is an overlay in memory: nothing that the
# script installs is left, and no process either. Where this machine cannot boot one it says why; with PROVOST_STRICT=1 a missing
# program is a failure all the same.
set -euo pipefail

if [ "${1:-}" != --inside ]; then
  folder=$(realpath "$1")
  script=$2
  cannot() {
    echo "skipped: the package under systemd: $1"
    exit 0
  }
  missing() {
    [ "${PROVOST_STRICT:-0}" = 0 ] || { echo "boot.sh: $1 is missing (Debian: $2)" >&2; exit 1; }
    cannot "$1 is missing (Debian: $2)"
  }
  [ -x /lib/systemd/systemd ] || missing systemd systemd
  command -v logrotate >/dev/null || missing logrotate logrotate
  [ "$(id -u)" = 0 ] || cannot "only root makes namespaces with a system of their own"
  unshare --pid --mount --ipc --uts --net --cgroup --fork true || cannot "the kernel gives no namespaces"
  work=$(mktemp -d)
  log=$work/log
  mkfifo "$work/ready"
  unshare --pid --mount --ipc --uts --net --cgroup --fork --kill-child bash "$0" --inside "$work" "$folder" >"$log" 2>&1 &
  outer=$!
  # The system's first process ends with all others in its namespace.
  init=
  finish() {
    [ -z "$init" ] || kill -9 "$init" 2>/dev/null || true
    kill -9 "$outer" 2>/dev/null || true
    wait "$outer" 2>/dev/null || true
    rm -rf "$work"
  }
  trap finish EXIT
  for _ in $(seq 100); do
    init=$(pgrep --parent "$outer" || true)
    [ -z "$init" ] || break
    sleep 0.1
  done
  [ -n "$init" ] || cannot "no process in the new namespaces: $(cat "$log")"
  inside() { nsenter --target "$init" --all -- "$@"; }
  state=
  for _ in $(seq 600); do
    kill -0 "$init" 2>/dev/null || cannot "the system ended while it booted: $(cat "$log")"
    # "degraded" is a system in which something of the host's, such as a terminal, did not start.
    state=$(inside systemctl is-system-running 2>/dev/null || true)
    case $state in running | degraded) break ;; esac
    sleep 0.1
  done
  case $state in
    running | degraded) ;;
    *) cannot "systemd is $state after a minute" ;;
  esac
  status=0
  inside env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8 bash "/mnt/$script" || status=$?
  exit "$status"
fi

work=$2
folder=$3
root=$work/root
mount --make-rprivate /
mkdir "$work/memory" "$root"
mount -t tmpfs tmpfs "$work/memory"
mkdir "$work/memory/upper" "$work/memory/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/memory/upper,workdir=$work/memory/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
for place in run tmp dev sys/fs/cgroup; do
  mount -t tmpfs tmpfs "$root/$place"
done
chmod 1777 "$root/tmp"
if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
else
  mkdir "$root/sys/fs/cgroup/systemd" "$root/sys/fs/cgroup/unified"
  mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup/unified" || rmdir "$root/sys/fs/cgroup/unified"
fi
for device in null zero full random urandom tty; do
  mknod -m 666 "$root/dev/$device" c $(stat -c '0x%t 0x%T' "/dev/$device")
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
mount --bind "$folder" "$root/mnt"
: >"$root/etc/machine-id"
mkdir "$root/run/old"
cd "$root"
pivot_root . run/old
umount --lazy /run/old
exec env -i container=provost /lib/systemd/systemd --system --unit=multi-user.target
