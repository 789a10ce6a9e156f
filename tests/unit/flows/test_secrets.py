import pickle
from pathlib import Path

import pytest

from ragbraid.flows import secrets
from ragbraid.flows.secrets import has_reference, hide, missing_references, redact, redacted, resolve
from ragbraid.registry.errors import ServiceError, SettingsError


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(secrets, "_redactor", secrets._Redactor())
    monkeypatch.delenv("RAGBRAID_SECRETS_DIR", raising=False)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))


def test_environment_references_are_replaced_anywhere_in_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RB_HOST", "db.example")
    monkeypatch.setenv("RB_PORT", "6333")
    value = {"url": "https://${env.RB_HOST}:${env.RB_PORT}/x", "hosts": ["${env.RB_HOST}"], "n": 3}
    assert resolve(value) == {"url": "https://db.example:6333/x", "hosts": ["db.example"], "n": 3}


def test_a_secret_is_read_from_its_file_without_the_last_line_break(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "API_KEY").write_text("s3cr3t value\n")
    monkeypatch.setenv("RAGBRAID_SECRETS_DIR", str(tmp_path))
    assert resolve("${secret.API_KEY}") == "s3cr3t value"


def test_a_doubled_dollar_is_a_literal_one() -> None:
    assert resolve("$${env.HOME} a$$b $5") == "${env.HOME} a$$b $5"
    assert not has_reference("$${env.HOME}")


def test_a_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RB_NOT_THERE", raising=False)
    with pytest.raises(SettingsError, match="the environment variable RB_NOT_THERE is not set") as caught:
        resolve("${env.RB_NOT_THERE}")
    assert caught.value.hint == "set it: `export RB_NOT_THERE=...`, then run again"
    assert missing_references(["${env.RB_NOT_THERE}"]) == ["the environment variable RB_NOT_THERE is not set"]


def test_a_missing_secret_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAGBRAID_SECRETS_DIR", str(tmp_path))
    with pytest.raises(SettingsError, match="the secret API_KEY is not known here") as caught:
        resolve("${secret.API_KEY}")
    assert str(tmp_path) in (caught.value.hint or "")


def test_a_secret_that_is_no_text_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "API_KEY").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("RAGBRAID_SECRETS_DIR", str(tmp_path))
    with pytest.raises(SettingsError, match="cannot be read: it is not UTF-8 text"):
        resolve("${secret.API_KEY}")


@pytest.mark.parametrize("text", ["${KEY}", "${file.x}", "${secret.../etc/passwd}", "${env.}", "${secret.a/b}"])
def test_anything_else_in_braces_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is no reference"):
        resolve(text)


def test_resolved_values_are_taken_out_of_texts_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "API_KEY").write_text('p/w"d & more')
    monkeypatch.setenv("RAGBRAID_SECRETS_DIR", str(tmp_path))
    resolve("${secret.API_KEY}")
    texts = ['401 for p/w"d & more', "https://x?key=p%2Fw%22d%20%26%20more", '{"key": "p/w\\"d & more"}']
    assert [redact(text) for text in texts] == [
        "401 for ${secret.API_KEY}",
        "https://x?key=${secret.API_KEY}",
        '{"key": "${secret.API_KEY}"}',
    ]


def test_a_longer_secret_that_holds_a_shorter_one_is_taken_out_whole() -> None:
    hide("tokentoken", "<short>")
    hide("tokentoken-and-more", "<long>")
    assert redact("tokentoken-and-more tokentoken") == "<long> <short>"


def test_short_environment_values_are_settings_and_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RB_FLAG", "true")
    resolve("${env.RB_FLAG}")
    assert redact("is true") == "is true"


def test_an_error_loses_its_secrets_and_so_do_its_causes() -> None:
    hide("sk-123456")
    try:
        try:
            raise ValueError("bad key sk-123456")
        except ValueError as cause:
            raise ServiceError("401: sk-123456", kind="auth", hint="replace sk-123456") from cause
    except ServiceError as caught:
        error = redacted(caught)
    assert str(error) == "401: ***"
    assert error.hint == "replace ***"
    assert str(error.__cause__) == "bad key ***"
    assert b"123456" not in pickle.dumps(error)
