"""What the pages' server answers to values that nobody should send: a sentence, and never status 500."""

import json
import random
from urllib.parse import quote

import httpx
import pytest
import stored
from postgresql_service import started_postgresql
from pydantic import TypeAdapter, ValidationError

from steptime.judging.incident_updates import update_incidents
from steptime.pages.server.inputs import Note

MOMENTS = (
    "nan",
    "-inf",
    "1e400",
    "1e308",
    "-1e308",
    "99999999999999999999999",
    "-1",
    "",
    "x",
    "\0",
    "253370764801",
)
BODIES = (b'{"job_name": NaN, "note": "why"}', b'{"job_name": "week-8", "note": 1e400}')
SURROGATE = b'{"job_name": "\\ud800", "note": "why \\udfff"}'
VALUES = (
    *MOMENTS,
    *("0", "1e9", "true", "null", "[]", "{}", "'", '"', "' OR 1=1 --", "%", "_", "\\", "\n", "\x1b[31m"),
    *(
        "week-8",
        "week-",
        "tiny",
        "local",
        "steptime_llama3.1-25.04",
        "fp32",
        "../../etc/passwd",
        "\U000e0041",
        "\u202e",
        "\ufeff",
    ),
    *("a" * 300, "9" * 30, "-0", "0x10", "1_000", "½", "٣", "\ud83d".encode("utf-16", "surrogatepass").hex()),
)
PARAMETERS = (
    *("since", "search", "limit", "dag_id", "dag_run_id", "gpus", "cluster", "node", "sweep", "run", "other"),
    *(
        "together",
        "model_size",
        "dtype",
        "workload",
        "mode",
        "environment",
        "arguments",
        "repeats",
        "scaling",
    ),
    *("gpu_type", "image", "max_steps", "window", "time_limit", "verdict", "\0", "x" * 200),
)
PATHS = (
    *("comparison", "differences", "incidents", "results", "results.csv", "metrics", "scaling", "node"),
    *("pairs", "plan", "report.html", "series", "columns", "trial", "trial.csv", "trials"),
)
JSON_VALUES = (
    "NaN",
    "Infinity",
    "1e400",
    '"\\ud800"',
    '"\\u0000"',
    '"\\u202e"',
    "[]",
    "{}",
    "null",
    "true",
    '"x"',
    "-1",
)


@pytest.fixture
def server(pages):
    """Return a client of the pages for which an exception in them is status 500, as behind a real server."""
    transport = httpx.ASGITransport(pages, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://airflow")


@pytest.fixture
def filled(store, make_result):
    """Fill the store with a series that got slower and its incident; return the newest run."""
    for week in range(9):
        times = [1.2 if week > 6 else 1.0] * 20
        stored.write(store, make_result(f"week-{week}", step_times=times, submitted_at=1e9 + week))
    update_incidents(store, now=1e9 + 9)
    return "week-8"


@pytest.mark.usefixtures("filled")
async def test_moments_that_are_none_are_refused_in_a_sentence(server):
    for path in ("report.html", "comparison", "incidents", "results", "results.csv"):
        for moment in MOMENTS:
            answer = await server.get(f"/api/{path}?since={quote(moment)}")
            assert (answer.status_code, isinstance(answer.json()["detail"], str)) == (422, True), (
                path,
                moment,
            )
            assert answer.json()["detail"].startswith("since "), answer.text


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("body", [*BODIES, SURROGATE], ids=repr)
async def test_bodies_that_json_cannot_repeat_are_refused_in_a_sentence(server, body):
    for path in ("accept", "incidents/1", "incidents/99999999999999999999"):
        answer = await server.post(f"/api/{path}", content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, isinstance(answer.json()["detail"], str)) == (422, True), answer.text


@pytest.mark.parametrize("char", ["\0", "\x1b", "\u202e", "\U000e0041"])
async def test_a_note_has_visible_characters_only(server, filled, store, char):
    refused = await server.post("/api/accept", json={"job_name": filled, "note": f"why{char}not"})
    assert (refused.status_code, f"U+{ord(char):04X}" in refused.json()["detail"]) == (422, True)
    answer = await server.post(
        "/api/accept", json={"job_name": filled, "note": "ein neuer Treiber 👩‍🔧\n2. Zeile"}
    )
    assert answer.status_code == 200, answer.text


async def test_an_address_of_the_store_reaches_no_page(server, monkeypatch, caplog):
    monkeypatch.setenv("STEPTIME_STORE_URL", "postgresql://127.0.0.1:1/db?user=u&password=SECRETPW")
    answer = await server.get("/api/series")
    assert answer.status_code == 503
    assert "the metrics store failed" in answer.json()["detail"]
    for shown in ("127.0.0.1", "SECRETPW"):
        assert shown not in answer.text
    assert "127.0.0.1" in caplog.text, "the server's log says which store"
    assert "SECRETPW" not in caplog.text


def random_request(rng):
    """Return a request to any route with values that may not fit."""
    if rng.random() < 0.25:
        number = rng.choice(["1", "0", "-1", "9" * 20, "x", "%00", "1.5"])
        path = rng.choice(["accept", f"incidents/{number}"])
        fields = ", ".join(
            f'"{rng.choice(["job_name", "note", "accept", "x"])}": {rng.choice(JSON_VALUES)}'
            for _ in range(3)
        )
        body = rng.choice(
            [f"{{{fields}}}", fields, "", "[" * 200, json.dumps({"job_name": "week-8", "note": "n"})]
        )
        return {
            "method": "POST",
            "url": f"/api/{path}",
            "content": body.encode(),
            "headers": {"Content-Type": "application/json"},
        }
    path = rng.choice([*PATHS, f"runs/{quote(rng.choice(VALUES))}", f"trend/{quote(rng.choice(VALUES))}"])
    query = "&".join(
        f"{quote(rng.choice(PARAMETERS))}={quote(rng.choice(VALUES))}" for _ in range(rng.randrange(5))
    )
    needed = "&since=0" if rng.random() < 0.3 else ""
    return {"method": "GET", "url": f"/api/{path}?{query}{needed}"}


async def fuzz(server, requests, seed):
    rng = random.Random(seed)  # noqa: S311 (no secret)
    statuses = {}
    for _ in range(requests):
        request = random_request(rng)
        answer = await server.request(**request)
        assert answer.status_code < 500, (seed, request, answer.text[:500])
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
    assert statuses.get(200, 0) > requests / 20, statuses
    assert statuses.get(422, 0) > requests / 20, statuses


@pytest.mark.long
@pytest.mark.usefixtures("filled")
async def test_no_request_of_300_gets_status_500(server):
    await fuzz(server, 300, seed=1)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("filled")
async def test_no_request_of_3000_gets_status_500(server):
    await fuzz(server, 3000, seed=2)


@pytest.fixture
def in_postgresql(tmp_path, monkeypatch):
    """Keep the test's metrics store in a PostgreSQL server."""
    with started_postgresql() as server:
        monkeypatch.setenv("STEPTIME_STORE_URL", server.url)
        yield


@pytest.mark.slow
async def test_no_request_gets_status_500_with_postgresql(
    store,
    monkeypatch,
    make_result,
    pages,
    request,
):
    request.getfixturevalue("in_postgresql")
    request.getfixturevalue("filled")
    await fuzz(request.getfixturevalue("server"), 300, seed=3)


@pytest.mark.parametrize(
    ("text", "is_a_note"),
    [
        ("a\tb\r\nc", True),
        ("\u0645\u06cc\u200c\u062e\u0648", True),  # Persian, with a joiner
        ("x" * 500, True),
        ("x" * 501, False),
        (" \t", False),
        ("a\x0bb", False),
        ("a\x7f", False),
        ("a\u202eb", False),
        ("a\U000e0041", False),
        ("a\ue000", False),
    ],
)
def test_a_note_is_what_people_can_read(text, is_a_note):
    note = TypeAdapter(Note)
    if is_a_note:
        assert note.validate_python(f" {text} ") == text
    else:
        with pytest.raises(ValidationError):
            note.validate_python(text)
