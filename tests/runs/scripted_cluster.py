"""A cluster that answers what a test sets, and records the questions."""


class ScriptedCluster:
    """A cluster whose polls take the next answer: a status for all jobs or an exception; the last repeats."""

    name = "local"

    def __init__(self, *answers, log=b""):
        self.answers = list(answers)
        self.log = log
        self.polls = []
        self.opened = self.closed = 0

    async def __aenter__(self):
        self.opened += 1
        return self

    async def __aexit__(self, *exception):
        self.closed += 1

    async def poll(self, names):
        self.polls.append(tuple(names))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return dict.fromkeys(names, answer)

    async def read(self, path, offset=0, limit=1 << 20):
        return self.log[offset : offset + limit]

    def __getattr__(self, name):
        raise AssertionError(f"nothing but poll and read is expected here, not {name}")
