"""What a client may ask for, and for how long."""

LARGEST_HEADERS = 1 << 14  # bytes of a request line and its headers
LARGEST_JSON = 1 << 18  # bytes
LARGEST_FILE = 1 << 22  # bytes of an uploaded file
RECEIVE_SECONDS = 10.0  # for a whole request to arrive, and for the answer to be taken
MOST_CONNECTIONS = 64  # at a time
MOST_STREAMS = 32  # at a time
IDLE_SECONDS = 300.0  # after which a stream is closed
MOST_VALUES = 1 << 17  # numbers in a signal, over all features
LONGEST_BLOCK = 4096  # samples of one push
MOST_OUTPUTS = 256  # of one push, each of which is a step
LONGEST_KERNEL = 4096  # samples
LARGEST_STATE = 256  # d_state of an untrained layer
HEADS = 16  # of an untrained layer
SHOWN_HEADS = 4  # drawn at a time
