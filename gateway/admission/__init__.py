"""Principal + Call -> Permit: rules reserved in one atomic step, settled once."""
