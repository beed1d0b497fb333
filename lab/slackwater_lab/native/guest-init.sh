#!/bin/bash
# Process 1 of a guest (lab/slackwater_lab/cluster/uml.py, tests/support/qemu_guest.py) once its root is this machine's,
# read-only. D is the folder of Debian's unpacked packages. Then it serves the port for commands. What goes wrong before
# stands in the kernel's log.
trap 'busybox poweroff -f' EXIT
export PATH=$D/sbin:$D/usr/sbin:$D/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run TMPDIR=/run LC_ALL=C D
set -e
mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /var/tmp
mkdir -p /run/netns; ip link set lo up; echo 1 >/proc/sys/net/ipv4/ip_forward
# From here on: earlier, this machine's own programs would load these libraries too.
[ -z "$LIBRARIES" ] || export LD_LIBRARY_PATH=$LIBRARIES
. "${0%/*}/guest-commands.sh"
