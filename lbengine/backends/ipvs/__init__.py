"""IPVS, the kernel's balancer, through ipvsadm."""
