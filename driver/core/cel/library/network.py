# SPDX-License-Identifier: Apache-2.0
"""IP addresses and networks (apiserver ``pkg/cel/library``, ``ip.go`` and ``cidr.go``)."""

import ipaddress
import re
from dataclasses import dataclass

from gpudra.driver.core.cel.declarations import Function, method, overload
from gpudra.driver.core.cel.equality import STRICT
from gpudra.driver.core.cel.errors import CelValueError
from gpudra.driver.core.cel.types import BOOL, CIDR, INT, IP, STRING
from gpudra.driver.core.cel.values import register_type

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_BITS = re.compile(r"0|[1-9][0-9]{0,2}", re.ASCII)
_BROADCAST = ipaddress.IPv4Address("255.255.255.255")


@dataclass(frozen=True, slots=True)
class IpValue:
    """One address."""

    address: _Address

    def __str__(self) -> str:
        return str(self.address)

    @property
    def octets(self) -> int:
        """Length in bytes; the cost of comparisons depends on it."""
        return self.address.max_prefixlen // 8


@dataclass(frozen=True, slots=True)
class CidrValue:
    """An address with a prefix length; host bits are kept."""

    address: _Address
    bits: int

    def __str__(self) -> str:
        return f"{self.address}/{self.bits}"

    @property
    def octets(self) -> int:
        """Length of the prefix in bytes, rounded up."""
        return -(-self.bits // 8)

    def network(self, bits: int) -> int:
        """The first bits of the address as a number."""
        return int(self.address) >> (self.address.max_prefixlen - bits)


register_type(IpValue, IP.name)
register_type(CidrValue, CIDR.name)
# Unlike Quantity and Semver these two are opaque to cel-go, with the same refusal to be compared.
STRICT.update({IpValue, CidrValue})


def _address(text: str) -> _Address:
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise CelValueError(f"{text!r} is no IP address") from error
    if address.version == 6 and (address.scope_id is not None or address.ipv4_mapped is not None):
        raise CelValueError(f"{text!r} has a zone or is an IPv4-mapped address, neither is allowed")
    return address


def _ip(text: str) -> IpValue:
    return IpValue(_address(text))


def _is_ip(text: str) -> bool:
    try:
        _address(text)
    except CelValueError:
        return False
    return True


def _cidr(text: str) -> CidrValue:
    address_text, slash, bits_text = text.rpartition("/")
    if not slash or _BITS.fullmatch(bits_text) is None:
        raise CelValueError(f"{text!r} is no network", hint="write for example 10.0.0.0/8")
    address = _address(address_text)
    bits = int(bits_text)
    if bits > address.max_prefixlen:
        raise CelValueError(f"{text!r} has too long a prefix")
    return CidrValue(address, bits)


def _is_cidr(text: str) -> bool:
    try:
        _cidr(text)
    except CelValueError:
        return False
    return True


def _is_canonical(text: str) -> bool:
    return str(_address(text)) == text


def _contains(outer: CidrValue, address: _Address) -> bool:
    if outer.address.version != address.version:
        return False
    shift = address.max_prefixlen - outer.bits
    return int(outer.address) >> shift == int(address) >> shift


def _contains_network(outer: CidrValue, inner: CidrValue) -> bool:
    return outer.bits <= inner.bits and _contains(outer, inner.address)


def _masked(network: CidrValue) -> CidrValue:
    shift = network.address.max_prefixlen - network.bits
    return CidrValue(type(network.address)(int(network.address) >> shift << shift), network.bits)


def _link_local_multicast(value: IpValue) -> bool:
    address = value.address
    if address.version == 4:
        return int(address) >> 8 == 0xE00000
    return int(address) >> 120 == 0xFF and int(address) >> 112 & 0x0F == 0x02


def _link_local_unicast(value: IpValue) -> bool:
    return bool(value.address.is_link_local) and not value.address.is_multicast


def _global_unicast(value: IpValue) -> bool:
    address = value.address
    return not (
        address.is_unspecified
        or address.is_loopback
        or address.is_multicast
        or _link_local_unicast(value)
        or address == _BROADCAST
    )


FUNCTIONS: list[Function] = [
    Function(
        "ip",
        (
            overload("string_to_ip", [STRING], IP, _ip),
            method("cidr_ip", [CIDR], IP, lambda network: IpValue(network.address)),
        ),
    ),
    Function("family", (method("ip_family", [IP], INT, lambda ip: ip.address.version),)),
    Function("ip.isCanonical", (overload("ip_is_canonical", [STRING], BOOL, _is_canonical),)),
    Function(
        "isUnspecified",
        (method("ip_is_unspecified", [IP], BOOL, lambda ip: ip.address.is_unspecified),),
    ),
    Function(
        "isLoopback", (method("ip_is_loopback", [IP], BOOL, lambda ip: ip.address.is_loopback),)
    ),
    Function(
        "isLinkLocalMulticast",
        (method("ip_is_link_local_multicast", [IP], BOOL, _link_local_multicast),),
    ),
    Function(
        "isLinkLocalUnicast", (method("ip_is_link_local_unicast", [IP], BOOL, _link_local_unicast),)
    ),
    Function("isGlobalUnicast", (method("ip_is_global_unicast", [IP], BOOL, _global_unicast),)),
    Function("isIP", (overload("is_ip", [STRING], BOOL, _is_ip),)),
    Function(
        "string",
        (
            overload("ip_to_string", [IP], STRING, str),
            overload("cidr_to_string", [CIDR], STRING, str),
        ),
    ),
    Function("cidr", (overload("string_to_cidr", [STRING], CIDR, _cidr),)),
    Function("isCIDR", (overload("is_cidr", [STRING], BOOL, _is_cidr),)),
    Function(
        "containsIP",
        (
            method(
                "cidr_contains_ip_string",
                [CIDR, STRING],
                BOOL,
                lambda network, text: _contains(network, _address(text)),
            ),
            method(
                "cidr_contains_ip_ip",
                [CIDR, IP],
                BOOL,
                lambda network, ip: _contains(network, ip.address),
            ),
        ),
    ),
    Function(
        "containsCIDR",
        (
            method(
                "cidr_contains_cidr_string",
                [CIDR, STRING],
                BOOL,
                lambda network, text: _contains_network(network, _cidr(text)),
            ),
            method("cidr_contains_cidr", [CIDR, CIDR], BOOL, _contains_network),
        ),
    ),
    Function("prefixLength", (method("cidr_prefix_length", [CIDR], INT, lambda n: n.bits),)),
    Function("masked", (method("cidr_masked", [CIDR], CIDR, _masked),)),
]
