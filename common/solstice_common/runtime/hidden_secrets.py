"""Hides the secrets in a process's settings and environment from this user's other processes."""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, get_args

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from solstice_common.runtime.undumpable import make_undumpable


class MayHoldSecret:
    """A mark of settings whose value may contain a password or token."""


SecretUrl = Annotated[str, MayHoldSecret]
"""A URL in which a user, a password, a token or an option may stand."""


def may_hold_secret(field: FieldInfo) -> bool:
    """Whether a setting is a secret, or may contain one."""
    return MayHoldSecret in field.metadata or SecretStr in {field.annotation, *get_args(field.annotation)}


def hide_secrets(settings: BaseSettings) -> Mapping[str, str]:
    """Make the process undumpable, and remove all secrets of its settings from `os.environ`.

    Call it once settings are read. Returns the environment as it was, for files of sources and secrets that refer to
    variables by name.
    """
    make_undumpable()
    environ = MappingProxyType(dict(os.environ))
    secrets = {name for name, field in type(settings).model_fields.items() if may_hold_secret(field)}
    for variable in environ:
        # Settings are read from variables in any case.
        if variable.lower() in secrets:
            del os.environ[variable]
    return environ
