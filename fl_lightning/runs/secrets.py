"""Keep keys and passwords out of what a run records."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "***"
NAME = r"(?:[\w-]*[_-])?(?:api_?key|access_?key|token|secret|password|passwd)"
NAMED = re.compile(NAME, re.IGNORECASE)
# A name and its value within a text, such as {api_key: abc} or --logger.token=abc.
ASSIGNED = re.compile(
    rf"(?P<name>(?<![\w-]){NAME}['\"]?\s*[:=]\s*)(?P<value>\"[^\"]+\"|'[^']+'|[^\s,'\"{{}}\[\]]+)", re.IGNORECASE
)
KINDS = (
    r"sk-[\w-]{16,}",
    r"(?:AKIA|ASIA)[0-9A-Z]{16}",  # AWS
    r"gh[pousr]_\w{36,}|github_pat_\w{22,}|glpat-[\w-]{20,}",  # GitHub, GitLab
    r"hf_\w{30,}",  # Hugging Face
    r"xox[abprs]-[\w-]{10,}",  # Slack
    r"eyJ[\w-]+\.eyJ[\w-]+\.[\w-]+",  # JSON web tokens
    r"(?=\w*[a-z])(?=\w*[A-Z])(?=(?:\w*\d){4})[A-Za-z0-9]{32,}",  # random letters and digits
)
KEYS = re.compile(rf"(?<![\w-])(?:{'|'.join(KINDS)})(?![\w-])")
IN_URL = re.compile(r"(?<=://)(?P<user>[^/\s:@]*):[^/\s@]+@")


def hidden(value: Any, name: str = "") -> Any:
    """Replace each value that looks like a secret, or is named like a secret, by ``***``.

    >>> hidden({"logger": {"api_key": "abc", "host": "https://me:word@example.org"}, "lr": 0.1})
    {'logger': {'api_key': '***', 'host': 'https://me:***@example.org'}, 'lr': 0.1}

    Args:
        value: a setting or settings, nested.
        name: the setting's name.
    """
    if isinstance(value, Mapping):
        return {key: hidden(each, str(key)) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [hidden(each, name) for each in value]
    if value is not None and not isinstance(value, bool) and NAMED.fullmatch(name.rpartition(".")[2]):
        return HIDDEN
    return hidden_text(value) if isinstance(value, str) else value


def hidden_text(text: str) -> str:
    """Replace the secrets within a text by ``***``."""
    text = IN_URL.sub(rf"\g<user>:{HIDDEN}@", text)
    return KEYS.sub(HIDDEN, ASSIGNED.sub(rf"\g<name>{HIDDEN}", text))


def hidden_arguments(arguments: Sequence[str]) -> list[str]:
    """Replace the secrets among a command's arguments by ``***``, also where name and value are two arguments.

    >>> hidden_arguments(["--logger.api_key", "abc", "--logger.token=abc", "--lr", "0.1"])
    ['--logger.api_key', '***', '--logger.token=***', '--lr', '0.1']
    """
    names = ["", *(each.lstrip("-") if each.startswith("--") else "" for each in arguments)]
    return [
        argument if argument.startswith("--") and "=" not in argument else hidden(argument, name)
        for name, argument in zip(names, arguments, strict=False)
    ]
