"""Keep keys and passwords out of what a run records."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "***"
# The end of a secret's name, after an underscore: api-key and apiKey are read as api_key. "num_tokens" is a number.
LAST = r"""(?:api|access|secret|private|signing|encryption|ssh)_?keys?|token|secrets?|pass|passwords?|passwd|passphrase
    |pwd|o?auth|authorization|credentials?|cookies?"""
NAMED = re.compile(rf"(?:.*_)?(?:{LAST})|tokens", re.VERBOSE)
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# A name and its value within a text, such as {api_key: abc}, --logger.token=abc or Authorization: Bearer abc.
ASSIGNED = re.compile(
    r"(?P<name>(?<![\w-])[\w-]+)(?P<sign>['\"]?\s*[:=]\s*)"
    r"(?P<value>\"[^\"]+\"|'[^']+'|(?:(?:Bearer|Basic|Token)\s+)?[^\s,'\"{}\[\]]+(?:(?<=;)\s+[^\s,'\"{}\[\]]+)*)",
    re.IGNORECASE,
)
KINDS = (
    r"sk-[\w-]{16,}",
    r"(?:AKIA|ASIA)[0-9A-Z]{16}",  # AWS
    r"gh[pousr]_\w{36,}|github_pat_\w{22,}|glpat-[\w-]{20,}",  # GitHub, GitLab
    r"hf_\w{30,}",  # Hugging Face
    r"xox[abprs]-[\w-]{10,}",  # Slack
    r"eyJ[\w-]+\.eyJ[\w-]+\.[\w-]+",  # JSON web tokens
    r"[Bb]earer\s+[\w.~+/-]{8,}=*",
    r"[0-9a-fA-F]{40}",  # W&B
    r"(?=\w*[a-z])(?=\w*[A-Z])(?=(?:\w*\d){4})[A-Za-z0-9]{32,}",  # random letters and digits
)
KEYS = re.compile(rf"(?<![\w-])(?:{'|'.join(KINDS)})(?![\w-])")
PEM = re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL)
IN_URL = re.compile(r"(?<=://)(?P<user>[^/\s:@]*):[^/\s@]+@")


def hidden(value: Any, name: str = "") -> Any:
    """Replace each value that looks like a secret, or is named like a secret, by ``***``.

    >>> hidden({"logger": {"api_key": "abc", "host": "https://me:word@example.org"}, "lr": 0.1})
    {'logger': {'api_key': '***', 'host': 'https://me:***@example.org'}, 'lr': 0.1}

    Args:
        value: a setting or settings, nested.
        name: the setting's name.
    """
    secret = _is_secret(name)
    if isinstance(value, Mapping):
        if secret and "class_path" not in value:  # credentials: {user: me, key: abc}
            return {key: hidden(setting, name) for key, setting in value.items()}
        return {key: hidden(setting, str(key)) for key, setting in value.items()}
    if isinstance(value, list | tuple):
        return [hidden(entry, name) for entry in value]
    if secret and value is not None and not isinstance(value, bool):
        return HIDDEN
    return hidden_text(value) if isinstance(value, str) else value


def hidden_text(text: str) -> str:
    """Replace the secrets within a text by ``***``."""
    text = IN_URL.sub(rf"\g<user>:{HIDDEN}@", PEM.sub(HIDDEN, text))
    return KEYS.sub(HIDDEN, ASSIGNED.sub(_hide_value, text))


def _hide_value(found: re.Match[str]) -> str:
    value = HIDDEN if _is_secret(found["name"]) else ASSIGNED.sub(_hide_value, found["value"])
    return f"{found['name']}{found['sign']}{value}"


def _is_secret(name: str) -> bool:
    words = CAMEL.sub("_", name.rpartition(".")[2]).replace("-", "_").lower()
    return NAMED.fullmatch(words) is not None


def hidden_arguments(arguments: Sequence[str]) -> list[str]:
    """Replace the secrets among a command's arguments by ``***``, also where name and value are two arguments.

    >>> hidden_arguments(["--logger.api_key", "abc", "--logger.token=abc", "--lr", "0.1"])
    ['--logger.api_key', '***', '--logger.token=***', '--lr', '0.1']
    """
    shown = []
    name = ""  # of the option before, whose value an argument may be
    for argument in arguments:
        if argument.startswith("--"):
            shown.append(hidden(argument, name) if "=" in argument else argument)
            name = argument.lstrip("-")
        else:
            shown.append(hidden(argument, name))
            name = ""
    return shown
