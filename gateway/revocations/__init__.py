"""Keys and tokens that operators revoke before they expire: kept in the store, refused by identity."""
