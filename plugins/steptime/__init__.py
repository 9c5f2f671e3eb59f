"""steptime: seconds per training step, measured on a schedule, with results people can trust.

The way of one run, each arrow one frozen model that prints, saves as JSON and reads back:
recipes -> plan -> stage -> submit -> wait -> read log -> measure -> validate -> publish -> show.
"""

__version__ = "0.1.0"
