"""A notifier that posts events as JSON; Airflow's own providers have others, such as mail."""

from typing import Any

from airflow.sdk import BaseHook, BaseNotifier, Context

from steptime.errors import SystemFailure

_WITHIN_S = 30


class WebhookNotifier(BaseNotifier):
    """Posts `{"event": …, "sentence": …, "address": …, "text": …}`; `text` is what chats show.

    :param connection: the Airflow connection with the address as its host, such as
        `https://chat.example.com/hooks/1`, and, if one is needed, a bearer token as its password.
    """

    def __init__(self, *, connection: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.connection = connection

    def notify(self, context: Context) -> None:
        """Post the event. Errors (SystemFailure) omit the address, which may be secret."""
        import httpx

        found = BaseHook.get_connection(self.connection)
        news: dict[str, Any] = {name: context.get(name) for name in ("event", "sentence", "address")}
        news["text"] = f"steptime, {news['event']}: {news['sentence']} {news['address']}"
        headers = {"Authorization": f"Bearer {found.password}"} if found.password else {}
        try:
            answer = httpx.post(_address(found), json=news, headers=headers, timeout=_WITHIN_S)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SystemFailure(
                f"the address of connection '{self.connection}' does not answer: {type(error).__name__}"
            ) from None
        if not answer.is_success:
            raise SystemFailure(
                f"the address of connection '{self.connection}' answers with status {answer.status_code}"
            )


def _address(connection: Any) -> str:
    host = connection.host or ""
    if "://" in host:
        return str(host)
    port = f":{connection.port}" if connection.port else ""
    return f"{connection.schema or 'https'}://{host}{port}"
