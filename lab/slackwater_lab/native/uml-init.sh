#!/bin/sh
# Process 1 of a guest of User Mode Linux (lab/slackwater_lab/cluster/uml.py), until it is as far as a guest of QEMU.
mount -t proc proc /proc && mount -t sysfs sys /sys && ip link set vec0 name eth0 &&
  exec "${0%/*}/guest-init.sh"
