"""What is done to the lab: neighbours, load, and disturbances that are no neighbour."""
