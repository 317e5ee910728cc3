# SPDX-License-Identifier: Apache-2.0
"""Names and limits of ``resource.k8s.io/v1``, checked before anything is sent.

Sources: ``k8s.io/api/resource/v1/types.go`` (constants) and apimachinery's validation of DNS
labels and subdomains.
"""

import re

from gpudra.api.errors import InputError

MAX_DEVICES_PER_SLICE = 128
# Holds as soon as one device of the slice has taints, consumesCounters or list attributes.
MAX_DEVICES_PER_SLICE_WITH_DETAILS = 64
MAX_COUNTER_SETS_PER_SLICE = 8
MAX_COUNTERS_PER_SET = 32
MAX_COUNTER_SETS_PER_DEVICE = 2
MAX_ATTRIBUTES_AND_CAPACITIES = 32
MAX_ATTRIBUTE_VALUES = 48
MAX_ATTRIBUTE_VALUE_LENGTH = 64
MAX_TAINTS_PER_DEVICE = 16
MAX_TOLERATIONS_PER_REQUEST = 16
MAX_REQUESTS = 32
MAX_CONSTRAINTS = 32
MAX_CONFIGS = 32
MAX_SELECTORS = 32
MAX_SUBREQUESTS = 8
MAX_RESULTS = 32
MAX_RESERVED_FOR = 256
MAX_OPAQUE_BYTES = 10 * 1024
MAX_CEL_BYTES = 10 * 1024
MAX_CEL_COST = 1_000_000
MAX_DRIVER_NAME = 63
MAX_POOL_NAME = 253
MAX_QUALIFIED_DOMAIN = 63
MAX_QUALIFIED_ID = 32

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII
)
_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def check_dns_label(value: str, field: str) -> str:
    """A DNS label: at most 63 of ``a-z 0-9 -``, no dash at either end.

    Raises:
        InputError: it is not one; the message names the field.
    """
    if not _LABEL.fullmatch(value):
        raise InputError(
            f"{value!r} is not a DNS label",
            field=field,
            hint="use at most 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit",
        )
    return value


def check_dns_subdomain(value: str, field: str, limit: int = 253) -> str:
    """DNS labels joined by dots, at most ``limit`` characters.

    Raises:
        InputError: it is not one.
    """
    if len(value) > limit or not _SUBDOMAIN.fullmatch(value):
        raise InputError(
            f"{value!r} is not a DNS subdomain of at most {limit} characters", field=field
        )
    return value


def check_driver_name(value: str, field: str = "driver") -> str:
    """A DRA driver's name.

    Raises:
        InputError: longer than 63 characters or not a DNS subdomain.
    """
    return check_dns_subdomain(value, field, MAX_DRIVER_NAME)


def check_pool_name(value: str, field: str = "pool") -> str:
    """DNS subdomains joined by ``/``, at most 253 characters.

    Raises:
        InputError: it is not that.
    """
    if len(value) > MAX_POOL_NAME:
        raise InputError(f"{value[:20]!r}… is longer than {MAX_POOL_NAME} characters", field=field)
    for part in value.split("/"):
        check_dns_subdomain(part, field)
    return value


def split_qualified_name(name: str, driver: str) -> tuple[str, str]:
    """Domain and identifier; a name without a domain belongs to the driver that published it."""
    domain, slash, identifier = name.rpartition("/")
    return (domain, identifier) if slash else (driver, name)


def check_qualified_name(value: str, field: str, *, fully: bool = False) -> str:
    """``[domain/]identifier``: domain ≤ 63 (DNS subdomain), identifier ≤ 32 (C identifier).

    Args:
        value: the name.
        field: path for the message.
        fully: whether the domain is required, as in constraints.

    Raises:
        InputError: it is not one.
    """
    domain, slash, identifier = value.partition("/")
    if not slash:
        domain, identifier = "", value
        if fully:
            raise InputError(
                f"{value!r} lacks a domain", field=field, hint=f"write DOMAIN/{value or 'NAME'}"
            )
    if slash:
        check_dns_subdomain(domain, field, MAX_QUALIFIED_DOMAIN)
    if len(identifier) > MAX_QUALIFIED_ID or not _C_IDENTIFIER.fullmatch(identifier):
        raise InputError(
            f"{identifier!r} is not an identifier of at most {MAX_QUALIFIED_ID} characters",
            field=field,
            hint="use letters, digits and '_', not beginning with a digit",
        )
    return value
