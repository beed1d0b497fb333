"""The exposure that each unit may have at most, by `systemd-analyze security` (0 is best)."""

WORST = {
    "ansible/roles/slackwater_broker/templates/slackwater-broker.service.j2": 1.5,
    # One of its programs captures packets.
    "packaging/controller/slackwater-controller.service": 2.0,
    # It captures packets, opens hardware counters, and reads /proc of the web server's processes.
    "packaging/node/slackwater-monitor.service": 2.0,
    # It is root: it writes into the web server's configuration, /sys and cgroups.
    "packaging/node/slackwater-wsengine.service": 2.6,
}
