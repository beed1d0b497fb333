#!/bin/sh
# Process 1 of a guest of User Mode Linux (lab/slackwater_lab/cluster/uml.py): what a guest of QEMU has done before.
mount -t proc proc /proc && mount -t sysfs sys /sys && ip link set vec0 name eth0 &&
  exec "${0%/*}/guest-init.sh"
