"""How the report shows each protocol: one file each, with the same name as the protocol's own file."""
