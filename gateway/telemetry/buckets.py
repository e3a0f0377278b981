"""Upper bounds of the histograms' buckets, in seconds. Each bound is one more series for every set of labels."""

# From a refusal or a cached short answer to the longest generation that clients wait for (SDKs give up at 600 s).
DURATION_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)

# From a prompt that the engine has cached to the default `timeouts.first_byte`.
FIRST_BYTE_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120)

# 1000 to 0.5 tokens a second; finest between 10 and 100 ms, where a reader notices and engines usually are.
OUTPUT_TOKEN_S = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2)

# A call with remembered token and limits in memory takes about 100 µs; more than 100 ms is a store that is down.
OVERHEAD_S = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)

# From a slot that was about to be free to the largest `queue.max_wait`; the default is 5 s.
WAITING_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 600)

# A store next door answers in 0.2 ms; the default `store_timeout` is 100 ms and the largest 10 s.
STORE_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 10)

# An identity service next door signs in 2 ms; the default time limit of a question is 5 s, the largest 60 s.
IDENTITY_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)

# uvloop's timers are exact to 1 ms. A lag of 10 ms is seen in streams; seconds mean that something blocks.
LOOP_LAG_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)
