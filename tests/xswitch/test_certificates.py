"""The files of tls-cert, tls-key and tls-ca: a wrong one is refused in a line, before anything listens."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.certificates import Authority, authority, openssl

from ewe.config.messages import ConfigError
from ewe.config.pem import MAX_PEM_BYTES
from ewe.logger import ErrorLog
from ewe.xswitch import supervisor
from ewe.xswitch.certificates import contexts, read_certificates
from ewe.xswitch.cli import main
from ewe.xswitch.settings import Settings

pytestmark = pytest.mark.starts_processes  # openssl


@pytest.fixture(scope="module")
def ca() -> Iterator[Authority]:
    with authority() as made:
        yield made


@pytest.fixture
def settings(ca: Authority) -> Settings:
    """Settings with new files, at a tls: address."""
    certificate, key = ca.sign("own")
    files = {"tls_cert": str(certificate), "tls_key": str(key), "tls_ca": str(ca.certificate)}
    return Settings(listen=("tls:127.0.0.1:0",), **files)


def test_certificates_are_read_if_something_needs_them(settings: Settings) -> None:
    assert contexts(read_certificates(settings)) is not None
    without = replace(settings, listen=("127.0.0.1:0",))
    assert read_certificates(without) is without
    assert contexts(without) is None


def encrypt(key: Path) -> None:
    openssl("pkey", "-in", key, "-aes256", "-passout", "pass:x", "-out", f"{key}.new")
    os.replace(f"{key}.new", key)


def other_key(key: Path) -> None:
    openssl("genpkey", "-algorithm", "ed25519", "-out", key)


@pytest.mark.parametrize(
    ("key", "spoil", "words"),
    [
        ("tls_key", lambda path: path.chmod(0o644), "chmod go-rwx"),
        ("tls_key", lambda path: path.chmod(0o620), "readable or writable by others (mode 0620)"),
        ("tls_cert", lambda path: path.chmod(0o666), "chmod go-w"),
        ("tls_key", Path.unlink, "No such file or directory (tls-key)"),
        ("tls_key", other_key, "key values mismatch"),
        ("tls_key", encrypt, "the key is encrypted"),
        ("tls_cert", lambda path: path.write_text("nothing"), "holds no certificate in PEM format"),
        ("tls_cert", lambda path: path.write_bytes(b"x" * (MAX_PEM_BYTES + 1)), "has more than"),
        ("tls_ca", lambda path: path.write_text("-----BEGIN CERTIFICATE-----\n"), "tls-ca"),
        ("tls_ca", Path.unlink, "(tls-ca)"),
    ],
)
def test_a_wrong_file_is_refused(
    settings: Settings, tmp_path: Path, key: str, spoil: Callable[[Path], object], words: str
) -> None:
    """The message is one line, and names the file and the setting."""
    path = tmp_path / "file.pem"
    path.write_bytes(Path(getattr(settings, key)).read_bytes())
    path.chmod(0o600)
    changed = replace(settings, **{key: str(path)})
    read_certificates(changed)
    spoil(path)
    if path.exists():
        path.chmod(path.stat().st_mode & 0o777 if "chmod" in words or "mode" in words else 0o600)
    with pytest.raises(ConfigError) as refused:
        read_certificates(changed)
    message = str(refused.value)
    assert words in message and str(path) in message and "\n" not in message


def test_a_refused_certificate_leaves_no_copy_of_the_engine_programs(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "public_engines_directory", lambda: pytest.fail("a copy was made"))
    changed = replace(settings, tls_ca="")
    with pytest.raises(ConfigError, match="tls-ca is missing"):
        supervisor.Supervisor(changed, lambda: changed, ErrorLog("off"))


def test_a_tls_address_keeps_its_certificates_until_the_restart_that_removes_it(settings: Settings) -> None:
    """A change of `listen` needs a restart: a main process that starts before it still accepts over TLS."""
    without = replace(settings, listen=("127.0.0.1:0",), tls_cert="", tls_key="", tls_ca="")
    running = supervisor.Supervisor(settings, lambda: without, ErrorLog("off"))
    try:
        running.change_settings()
        assert running.settings.listen == settings.listen and running.settings.tls_cert == ""
        assert contexts(running.settings) is not None
    finally:
        running.close()
        running.to_suexecme.close()


def test_a_missing_setting_is_named(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=r"tls-ca is missing: listen tls:127\.0\.0\.1:0 needs"):
        read_certificates(replace(settings, tls_ca=""))
    file = tmp_path / "x.toml"
    file.write_text('[engines.far]\naddress = "192.0.2.7:9443"\n')
    assert main(["--check-config", "--config", str(file)]) == 2
    assert "tls-cert is missing: [engines.far] address needs" in capsys.readouterr().err
