#!/bin/bash
# Process 1 of the guest (tests/ipvs_guest.py): its root is the host's / through hostfs, read-only. The kernel's command
# line carries S=FOLDER (writable by both sides) and D=FOLDER (Debian's unpacked packages). It loads the modules listed
# in S/modules, says READY, then runs each line of its console in a subshell: what it printed, then `--- RC=STATUS`.
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /var/tmp
for word in $(</proc/cmdline); do case $word in S=*) S=${word#S=};; D=*) D=${word#D=};; esac; done
mount -t hostfs none "$S" -o "$S"
libraries=$D/usr/lib/x86_64-linux-gnu:$D/lib/x86_64-linux-gnu
export PATH=$D/sbin:$D/usr/sbin:$D/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run TMPDIR=/run LC_ALL=C S D
while read -r module; do busybox insmod "$module"; done <"$S/modules"
echo 1 >/proc/sys/kernel/printk # what the kernel says would stand between the answers
mkdir -p /run/netns && ip link set lo up && echo 1 >/proc/sys/net/ipv4/ip_forward
# From here on: earlier, this machine's own programs would load these libraries too.
export LD_LIBRARY_PATH=$libraries
stty raw -echo 2>/dev/null
# Daemons without a syslog write there: it would stand between the answers.
mount --bind /dev/null /dev/console
ipvsadm -Ln >/dev/null && echo READY
while read -r line; do (eval "$line") </dev/null 2>&1; echo "--- RC=$?"; done
busybox poweroff -f
