"""The lab: web servers in namespaces and cgroups, a balancer, load and noisy neighbours, all on one machine."""
