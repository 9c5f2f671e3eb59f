"""What the triggerer's process is given a shorter wait of."""


class WatchedSubprocess:
    def _service_subprocess(self, max_wait_time: float) -> None:
        pass
