"""What the shared store has not taken yet, on disk: files, their lines, and who writes and empties them."""
