"""Body bytes -> Call: one validated inference request, with the client's own bytes kept."""
