"""What the report shows of each protocol: one file each, found by the name of the protocol's own file."""
