"""steptime: seconds per training step, measured on a schedule, with results people can trust.

A run goes through these steps. Each passes its result to the next as an immutable model with a JSON form:
recipes -> plan -> stage -> submit -> wait -> read log -> measure -> validate -> publish -> show.
"""

__version__ = "0.1.0"
