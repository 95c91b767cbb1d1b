"""No key or password reaches the files and loggers of a run; files follow the umask."""

import os
from pathlib import Path

import pytest
import yaml
from lib.command import TINY, fit, process, run

from fl_lightning.runs.config.secrets import HIDDEN, hidden, hidden_arguments, hidden_text

KEY = "sk-" + "Ab3" * 10
SECRETS = [
    KEY,
    "AKIA" + "ABCDEFGH23456789",
    "ghp_" + "a1B2" * 9,
    "hf_" + "aB3d" * 8,
    "aB3dE5fG7hI9jK1lM3nO5pQ7rS9tU1vW",
    "eyJhbGciOi.eyJzdWIiOi.c2lnbmF0",
    "37ab1f9872caf2fa37ab1f9872caf2fa37ab1f98",
    "Bearer abcdefgh.12~3+4/5==",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE ow==\nabc\n-----END RSA PRIVATE KEY-----",
]
HARMLESS = [
    "fl_lightning.callbacks.GradientHarmonization",
    "FedProx_mu_0p1_Dirichlet_alpha_0p3_seed1",
    "37ab1f9872caf2fa",  # a fingerprint
    "37ab1f9872caf2fa37ab1f9872caf2fa37ab1f9872caf2fa37ab1f9872caf2fa",  # a sum
    "compass: 3, authors: 2, key: a, bearer of news",
    "/home/Me/Data2024/ImageNet1k/Train22/part",
    "--model.num_tokens=5",
    "2026-11-22T14:39:23+00:00",
    "https://example.org:8080/path@x",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_what_looks_like_a_key_is_hidden(secret: str) -> None:
    assert hidden({"a": [secret]}) == {"a": [HIDDEN]}
    assert hidden_text(f"fit --x '{{y: {secret}}}'") == f"fit --x '{{y: {HIDDEN}}}'"


NAMES = ["api_key", "token", "wandb_token", "secret", "client_secret", "password", "API_KEY", "accessToken", "tokens"]
NAMES += ["userPassword", "secrets", "secret_key", "private_key", "passphrase", "pwd", "pass", "auth", "credentials"]
NAMES += ["cookie", "Authorization", "apiKey", "AWSSecretKey", "access-token", "db_pass"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_named_like_a_key_is_hidden(name: str) -> None:
    assert hidden({"logger": {name: "abc"}}) == {"logger": {name: HIDDEN}}
    assert hidden({f"logger.{name}": 5}) == {f"logger.{name}": HIDDEN}
    assert hidden({name: None}) == {name: None}
    assert hidden_arguments([f"--a.{name}", "abc", "x"]) == [f"--a.{name}", HIDDEN, "x"]
    assert hidden_arguments([f"--a={{b: 1, {name}: abc, c: 2}}"]) == [f"--a={{b: 1, {name}: {HIDDEN}, c: 2}}"]
    assert hidden_text(f"a: {name}=abc d") == f"a: {name}={HIDDEN} d"
    assert hidden({name: {"user": "me", "keys": ["abc", 1]}}) == {name: {"user": HIDDEN, "keys": [HIDDEN, HIDDEN]}}
    made = {"class_path": "mine.Token", "init_args": {"size": 3, "pwd": "abc"}}
    assert hidden({name: made})[name] == {"class_path": "mine.Token", "init_args": {"size": 3, "pwd": HIDDEN}}


def test_a_header_is_hidden_with_its_scheme_and_all_its_parts() -> None:
    assert hidden_text("Authorization: Basic dXNlcjpw, x") == f"Authorization: {HIDDEN}, x"
    assert hidden_text("Cookie: a=b; c=d") == f"Cookie: {HIDDEN}"
    assert hidden_text("x: -----BEGIN OPENSSH PRIVATE KEY-----\nb3Blbn") == f"x: {HIDDEN}", "cut off"


@pytest.mark.parametrize("value", HARMLESS)
def test_other_texts_stay(value: str) -> None:
    assert hidden({"tokenizer": value}) == {"tokenizer": value}
    assert hidden_arguments([value, "--num_tokens", "5"]) == [value, "--num_tokens", "5"]


MINE = """
from lightning.pytorch.loggers import CSVLogger

class Mine(CSVLogger):
    def __init__(self, save_dir: str, api_key: str, url: str) -> None:
        super().__init__(save_dir)
        assert (api_key, url) == ("abc-123", "https://me:word@example.org")
"""


def test_a_runs_files_hold_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    Path("mine.py").write_text(MINE)
    options = {"save_dir": "log", "api_key": "abc-123", "url": "https://me:word@example.org"}
    arguments = [f"--trainer.logger.{name}={value}" for name, value in options.items()]
    result = fit("--trainer.logger=mine.Mine", *arguments, "--trainer.max_epochs", 1)
    folder = Path("runs", "tiny", "version_0")
    assert len([text for text in result.warnings if "has *** in place of keys" in text]) == 1
    run("report", folder)
    for path in [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]:
        assert b"abc-123" not in path.read_bytes(), path
        assert b"me:word" not in path.read_bytes(), path
    logger = yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["logger"]
    assert logger["init_args"] == {"save_dir": "log", "api_key": HIDDEN, "url": f"https://me:{HIDDEN}@example.org"}


@pytest.mark.slow
def test_files_follow_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of its own, because some libraries read the umask when they are imported."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    before = os.umask(0o027)
    try:
        done = process("fit", "--config", "tiny.yaml")
    finally:
        os.umask(before)
    assert (done.returncode, "***" in done.stderr) == (0, False)
    assert {path.stat().st_mode & 0o777 for path in Path("runs").rglob("*")} == {0o640, 0o750}
