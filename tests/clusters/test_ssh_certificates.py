"""ssh certificates of users and hosts: which are accepted, and why the others are not."""

import getpass
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from steptime.clusters.slurm import ssh_login
from steptime.errors import LoginRefused, UserError

from .ssh_site import connection, where


@pytest.mark.long
async def test_user_certificates(site, log_in):
    """A certificate may be in a file, beside the key, or given as text; a refusal has its reason."""
    node = site.host("node")  # no key is authorized there, so only a certificate logs in
    me = getpass.getuser()
    keys, other = site.keys("user"), site.keys("other")
    named = site.sign(keys, principal=me).rename(site.folder / "signed.pub")
    text = named.read_text()
    taken = [
        {"certificate_file": str(named)},
        {"certificate": text},
        {"certificate": text, "key_file": None, "private_key": keys.path.read_text()},
    ]
    for fields in taken:
        assert await where(log_in({"node": connection(node, keys, **fields)})) == "node"

    refusals = [
        ({"principal": me, "valid": "-2d:-1d"}, f"its certificate for {me}: Certificate expired"),
        ({"principal": "jane"}, "its certificate for jane: Certificate principal mismatch"),
        ({"principal": me, "valid": "+1d:+2d"}, "Certificate not yet valid"),
        ({"principal": me, "host": True}, "Invalid certificate type"),
    ]
    for signed, told in refusals:
        site.sign(keys, **signed)  # type: ignore[arg-type]
        with pytest.raises(LoginRefused, match=f"refuses the login '{me}': .*{re.escape(told)}"):
            await log_in({"node": connection(node, keys)}).run(["true"], timeout_s=60)
    site.sign(keys, principal=me)  # renewed, for the next connection
    assert await where(log_in({"node": connection(node, keys)})) == "node"

    site.authority = site.keys("stranger")
    site.sign(keys, principal=me)
    with pytest.raises(
        LoginRefused, match="in order here: the host may not trust the authority that signed it"
    ):
        await log_in({"node": connection(node, keys)}).run(["true"], timeout_s=60)
    wrong = [
        ({"certificate_file": "/nowhere/cert"}, "certificate_file '/nowhere/cert': No such file"),
        ({"certificate_file": str(keys.path)}, f"'{keys.path}' is not an ssh certificate"),
        ({"certificate": "ssh-ed25519 AAAA"}, "certificate in its extra is not an ssh certificate"),
        (
            {"certificate_file": str(site.sign(other, principal=me))},
            "its certificate does not belong to its key",
        ),
    ]
    for fields, told in wrong:
        with pytest.raises(UserError, match=told):
            await log_in({"node": connection(node, keys, **fields)}).run(["true"], timeout_s=60)


@pytest.mark.long
async def test_host_certificates(site, log_in):
    """A host's own key may be unknown if its authority is in known_hosts or in the connection."""
    keys = site.keys("user")
    node = site.host("node", f"HostCertificate {site.folder}/node-host-cert.pub", authorized=keys.public)
    known_hosts = site.folder / "known_hosts"
    known_hosts.write_text(f"@cert-authority [127.0.0.1]:{node.port} {site.authority.public}\n")
    of_file = connection(node, keys, host_key=None, known_hosts=str(known_hosts))
    of_field = connection(node, keys, host_key=None, host_ca_key=site.authority.public)

    def restart(**signed):
        site.sign(node.keys, host=True, **signed)
        node.stop()
        node.start()

    restart(principal="127.0.0.1")
    for trusting in (of_file, of_field):
        assert await where(log_in({"node": trusting})) == "node"
    stranger = replace(of_field, extra={**of_field.extra, "host_ca_key": site.keys("stranger").public})
    with pytest.raises(LoginRefused, match=r"key that is not trusted .Host CA key is not trusted"):
        await log_in({"node": stranger}).run(["true"], timeout_s=60)
    for signed, told in (
        ({"principal": "other.example.org"}, "principal mismatch"),
        ({"principal": "127.0.0.1", "valid": "-2d:-1d"}, "expired"),
    ):
        restart(**signed)
        for trusting in (of_file, of_field):
            with pytest.raises(LoginRefused, match=f"key that is not trusted .Certificate {told}"):
                await log_in({"node": trusting}).run(["true"], timeout_s=60)


@pytest.mark.parametrize(
    ("extra", "is_beside", "read"),
    [
        ({"key_file": "KEY"}, True, "KEY-cert.pub"),
        ({"key_file": "KEY"}, False, None),
        ({"key_file": "KEY", "private_key": "text"}, True, None),
        ({"private_key": "text"}, True, None),
        ({"key_file": "KEY", "certificate_file": "other"}, True, "other"),
        ({"key_file": "KEY", "private_key": "text", "certificate_file": "other"}, True, "other"),
        ({}, True, None),
    ],
)
def test_the_certificate_beside_the_key_is_read_only_for_that_key(
    extra, is_beside, read, tmp_path, monkeypatch
):
    key = tmp_path / "key"
    if is_beside:
        (tmp_path / "key-cert.pub").touch()
    monkeypatch.setattr("asyncssh.read_certificate", lambda path: path.name)
    connection = SimpleNamespace(
        extra={name: value.replace("KEY", str(key)) for name, value in extra.items()}, name="far"
    )
    assert ssh_login._certificate(connection) == (read and read.replace("KEY", "key"))
