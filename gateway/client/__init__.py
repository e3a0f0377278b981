"""A client's end of a request: connections kept and read, requests taken apart, answers written. Knows no inference."""
