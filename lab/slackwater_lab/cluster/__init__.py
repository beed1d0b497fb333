"""The machines of the lab: hosts, web servers, balancer, controller."""
