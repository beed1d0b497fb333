"""The lease, takeover and order protocols on a simulated bus, balancer and clock: many schedules of faults, by seed."""
