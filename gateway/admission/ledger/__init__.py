"""Who used what on which day: what is booked of each call, where it is kept, and how it is read."""
