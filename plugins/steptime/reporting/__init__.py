"""One file to send: what got slower, how it scales and how it came to be, as HTML that needs nothing else."""
