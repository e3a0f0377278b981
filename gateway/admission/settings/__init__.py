"""Settings that are kept in the store, so that they hold in every gateway and survive restarts."""
