"""A mail server of the test's own, and the mails that it received."""

from contextlib import contextmanager

from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message
from free_ports import free_port


class Mailbox(Message):
    """A handler that keeps mails."""

    def __init__(self):
        super().__init__()
        self.mails = []

    def handle_message(self, message):
        """Keep a mail; the server calls this."""
        self.mails.append(message)


@contextmanager
def mail_server():
    """Yield the mails that a local server has received so far, and its port."""
    mailbox = Mailbox()
    server = Controller(mailbox, hostname="127.0.0.1", port=free_port())
    server.start()
    try:
        yield mailbox.mails, server.port
    finally:
        server.stop()
