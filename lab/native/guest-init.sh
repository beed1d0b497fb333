#!/bin/bash
# Process 1 of a guest (lab/cluster/guest.py) once its root is this machine's, read-only. D is the folder of Debian's
# unpacked packages. It says READY on the port for commands, then runs each line from there in a subshell: what it printed,
# then `--- RC=STATUS`. What goes wrong before stands in the kernel's log.
trap 'busybox poweroff -f' EXIT
export PATH=$D/sbin:$D/usr/sbin:$D/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run TMPDIR=/run LC_ALL=C D
set -e
mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /var/tmp
mkdir -p /run/netns; ip link set lo up; echo 1 >/proc/sys/net/ipv4/ip_forward
# From here on: earlier, this machine's own programs would load these libraries too.
[ -z "$LIBRARIES" ] || export LD_LIBRARY_PATH=$LIBRARIES
ports=(/dev/vport*)
exec 0<>"${ports[0]}" >&0 # it can be opened only once
set +e
echo READY
while read -r line; do (eval "$line") </dev/null 2>&1; echo "--- RC=$?"; done
