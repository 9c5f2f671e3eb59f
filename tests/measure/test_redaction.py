"""What is redacted as secret by its name or place, and what only looks secret."""

import json

import pytest

from steptime.errors import UserError
from steptime.measure.record import REDACTED, redact, redact_text
from steptime.recipes.environment import check_environment

CANARY = "canary-5f3a"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "HF_TOKEN",
            "hf_token",
            "MYTOKEN",
            "GITHUB_TOKEN_2",
            "WANDB_API_KEY",
            "OPENAI_APIKEY",
            "DEPLOY_KEY",
        ),
        *("AWS_SECRET_ACCESS_KEY", "CLIENT_SECRET", "DB_PASSWORD", "DB_PASSWD", "KEY_PASSPHRASE", "SSH_KEY"),
        *("GOOGLE_APPLICATION_CREDENTIALS", "SECRETS", "KEY"),
    ],
)
def test_a_secret_is_found_by_its_name_and_wherever_else_it_is(name):
    document = {
        "environment": {name: CANARY, "NCCL_DEBUG": "INFO"},
        "script": f"export {name}={CANARY}\ncurl -H 'Bearer {CANARY}'\n",
        "deep": [{"list": [f"--flag={CANARY}"]}],
    }

    kept = redact(document)

    assert CANARY not in json.dumps(kept)
    assert kept["environment"] == {name: REDACTED, "NCCL_DEBUG": "INFO"}
    assert kept["deep"] == [{"list": [f"--flag={REDACTED}"]}]
    assert redact(kept) == kept


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "NCCL_IB_PKEY", "MONKEY", "KEYBOARD", "PWD", "VENV_LOCK"]
)
def test_what_only_looks_like_a_secret_is_kept(name):
    document = {"environment": {name: "harmless-value"}, "script": f"export {name}='harmless-value'\n"}

    assert redact(document) == document
    check_environment({name: "harmless-value"})


def test_a_password_in_an_address_is_redacted_and_refused():
    proxy = f"http://ada:{CANARY}@proxy.example:3128/path"

    assert redact({"HTTPS_PROXY": proxy}) == {"HTTPS_PROXY": f"http://ada:{REDACTED}@proxy.example:3128/path"}
    with pytest.raises(UserError, match="'HTTPS_PROXY' has an address with a password") as refused:
        check_environment({"HTTPS_PROXY": proxy})
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize(
    "address", ["http://proxy.example:3128", "http://ada@proxy.example", "tcp://[::1]:80"]
)
def test_an_address_without_a_password_is_kept(address):
    assert redact({"HTTPS_PROXY": address}) == {"HTTPS_PROXY": address}
    check_environment({"HTTPS_PROXY": address})


@pytest.mark.parametrize(
    "value", ["it's a canary", "two\nlines of it", 'a "quoted" canary', "a $canary; no", r"a\b"]
)
def test_a_secret_is_found_however_a_script_quotes_it(value):
    import shlex

    script = f"export MY_SECRET={shlex.quote(value)}\nexport NCCL_DEBUG=INFO\n"

    for kept in (redact_text(script), redact_text(script, {"MY_SECRET": value})):
        assert kept == f"export MY_SECRET='{REDACTED}'\nexport NCCL_DEBUG=INFO\n"


@pytest.mark.parametrize("longer", ["secret-1-and-more", "more-and-secret-1"])
def test_of_a_secret_that_is_part_of_another_nothing_else_is_left(longer):
    environment = {"A_TOKEN": "secret-1", "B_TOKEN": longer, "C_TOKEN": "and-more"}
    for order in (environment, dict(reversed(environment.items()))):
        assert redact_text(f"curl {longer} secret-1", order) == f"curl {REDACTED} {REDACTED}"


def test_a_short_secret_takes_no_innocent_text_away():
    document = {"environment": {"MY_KEY": "1"}, "script": "export MY_KEY=1\nexport OMP_NUM_THREADS=1\n"}

    assert redact(document) == {
        "environment": {"MY_KEY": REDACTED},
        "script": f"export MY_KEY='{REDACTED}'\nexport OMP_NUM_THREADS=1\n",
    }


@pytest.mark.parametrize(("secret", "everywhere"), [("abcde", False), ("abcdef", True)])
def test_a_secret_of_six_characters_is_looked_for_everywhere(secret, *, everywhere):
    kept = redact({"MY_KEY": secret, "text": f"it is {secret}"})

    assert kept == {"MY_KEY": REDACTED, "text": f"it is {REDACTED if everywhere else secret}"}


def test_what_is_no_text_is_kept():
    document = {"A_TOKEN": None, "B_TOKEN": "", "C_TOKEN": 5, "list": [1, None, True], "KEY": {"x": "value"}}

    assert redact(document) == document


def test_an_assignment_that_refers_to_another_variable_is_kept():
    script = 'export HF_TOKEN=$SITE_TOKEN\nexport HF_TOKEN="$SITE_TOKEN"\nexport HF_TOKEN=a$b\n'

    kept = redact_text(script)

    assert kept.splitlines()[:2] == script.splitlines()[:2]
    assert kept.splitlines()[2] == f"export HF_TOKEN='{REDACTED}'"
