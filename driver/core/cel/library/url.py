# SPDX-License-Identifier: Apache-2.0
"""URLs, read as Go's ``net/url`` reads them (apiserver ``pkg/cel/library/urls.go``).

Python's own splitter accepts almost anything, so the rules are written out here.
"""

import re
from dataclasses import dataclass

from gpudra.driver.core.cel.declarations import Function, method, overload
from gpudra.driver.core.cel.equality import STRICT
from gpudra.driver.core.cel.errors import CelValueError
from gpudra.driver.core.cel.library.network import _address as parse_address
from gpudra.driver.core.cel.types import BOOL, STRING, URL, list_of, map_of
from gpudra.driver.core.cel.values import MapValue, register_type

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):", re.ASCII)
_PORT = re.compile(r"(?::[0-9]*)?", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*", re.ASCII)
_HOST = frozenset("!$&'()*+,;=:[]<>\"-_.~%")
_ESCAPED = re.compile(rb"%[0-9a-fA-F]{2}")
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")
_LOW_ESCAPE = re.compile(r"%(?!25)[0-7][0-9a-fA-F]")
# Characters that Go leaves alone when it escapes a path, and those it accepts unescaped in one.
_PATH_SAFE = frozenset("-_.~$&+,/:;=@")
_PATH_VALID = frozenset("-_.~!$&'()*+,;=:@[]%/")
_FRAGMENT_SAFE = _PATH_SAFE | frozenset("?!()*")
_FRAGMENT_VALID = _PATH_VALID | {"?"}
_USER_SAFE = frozenset("-_.~$&+,;=")


@dataclass(frozen=True, slots=True, eq=False)
class UrlValue:
    """The parts of a URL; equal if the texts are, escapes made alike. None: there was no ``//``."""

    scheme: str
    opaque: str
    user: str | None
    host: str | None
    path: str
    query: str
    force_query: bool
    fragment: str

    def __str__(self) -> str:
        head = f"{self.scheme}:" if self.scheme else ""
        body = self.opaque or self._authority() + self._path()
        query = f"?{self.query}" if self.query or self.force_query else ""
        fragment = _reescaped(self.fragment, _FRAGMENT_VALID, _FRAGMENT_SAFE)
        return head + body + query + (f"#{fragment}" if fragment else "")

    def _authority(self) -> str:
        if self.host is None:
            return ""
        host = _escape(self.host, _HOST - {"%"})
        if self.user is not None:
            user = ":".join(
                _escape(_unescape(part), _USER_SAFE) for part in self.user.split(":", 1)
            )
            return f"//{user}@{host}"
        return f"//{host}" if host or (self.scheme and self.path) else ""

    def _path(self) -> str:
        path = _reescaped(self.path, _PATH_VALID, _PATH_SAFE)
        return f"/{path}" if path and not path.startswith("/") and self.host else path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UrlValue) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


register_type(UrlValue, URL.name)
STRICT.add(UrlValue)


def _bad(text: str) -> CelValueError:
    shown = text if len(text) <= 60 else text[:60] + "…"
    return CelValueError(f"{shown!r} is no URL", hint="write for example https://host/path")


def _split_scheme(text: str) -> tuple[str, str]:
    if text.startswith(":"):
        raise _bad(text)
    found = _SCHEME.match(text)
    return (found[1].lower(), text[found.end() :]) if found else ("", text)


def _parse(text: str, *, request: bool) -> UrlValue:
    """``url.Parse`` without fragment, or ``url.ParseRequestURI``."""
    if _CONTROL.search(text) or (request and not text):
        raise _bad(text)
    if text == "*":
        return UrlValue("", "", None, None, "*", "", False, "")
    scheme, rest = _split_scheme(text)
    force = rest.endswith("?") and rest.count("?") == 1
    rest, _, query = rest.partition("?")
    if not rest.startswith("/"):
        if scheme:
            return UrlValue(scheme, rest, None, None, "", query, force, "")
        if request or ":" in rest.partition("/")[0]:
            raise _bad(text)
    user: str | None = None
    host: str | None = None
    if rest.startswith("//") and (scheme or (not request and not rest.startswith("///"))):
        authority, slash, path = rest[2:].partition("/")
        rest = slash + path
        user, host = _authority(scheme, authority, text)
    if _BAD_ESCAPE.search(rest):
        raise _bad(text)
    return UrlValue(scheme, "", user, host, rest, query, force, "")


def _authority(scheme: str, authority: str, text: str) -> tuple[str | None, str]:
    user, at, host = authority.rpartition("@")
    if _USER.fullmatch(user) is None or _BAD_ESCAPE.search(user):
        raise _bad(text)
    return (user if at else None), _host(scheme, host, text)


def _host(scheme: str, host: str, text: str) -> str:
    if host.rfind("[") > 0:
        raise _bad(text)
    if host.startswith("["):
        inner, bracket, port = host[1:].rpartition("]")
        if not bracket or _PORT.fullmatch(port) is None:
            raise _bad(text)
        _bracketed(inner, text)
        return _checked_host(host, text)
    first, last = host.find(":"), host.rfind(":")
    if first != last and scheme not in {"http", "https"}:
        first = last
    if first >= 0 and _PORT.fullmatch(host[first:]) is None:
        raise _bad(text)
    return _checked_host(host, text)


def _bracketed(inner: str, text: str) -> None:
    """Only IPv6 stands in brackets, with a zone behind ``%25`` or none."""
    address, _, _ = inner.partition("%25")
    try:
        if parse_address(address).version != 6:
            raise _bad(text)
    except CelValueError as error:
        if not address.lower().startswith("::ffff:"):  # mapped addresses are fine in URLs
            raise _bad(text) from error


def _checked_host(host: str, text: str) -> str:
    if _BAD_ESCAPE.search(host) or _LOW_ESCAPE.search(host):
        raise _bad(text)
    if any(char < "\x80" and not char.isalnum() and char not in _HOST for char in host):
        raise _bad(text)
    return _unescape(host)


def _unescape(text: str) -> str:
    if "%" not in text:
        return text
    raw = _ESCAPED.sub(lambda found: bytes([int(found[0][1:], 16)]), text.encode())
    return raw.decode(errors="replace")


def _url(text: str) -> UrlValue:
    _parse(text, request=True)
    main, _, fragment = text.partition("#")
    parsed = _parse(main, request=False)
    if _BAD_ESCAPE.search(fragment):
        raise _bad(text)
    return UrlValue(
        parsed.scheme, parsed.opaque, parsed.user, parsed.host, parsed.path, parsed.query,
        parsed.force_query, fragment,
    )  # fmt: skip


def is_url(text: str) -> bool:
    """Whether Go's ParseRequestURI accepts the text."""
    try:
        _parse(text, request=True)
    except CelValueError:
        return False
    return True


def _split_port(host: str) -> tuple[str, str]:
    name, port = host, ""
    colon = host.rfind(":")
    if colon >= 0 and _PORT.fullmatch(host[colon:]):
        name, port = host[:colon], host[colon + 1 :]
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    return name, port


def _escape(text: str | bytes, safe: frozenset[str]) -> str:
    raw = text.encode() if isinstance(text, str) else text
    return "".join(
        chr(byte) if byte < 0x80 and (chr(byte).isalnum() or chr(byte) in safe) else f"%{byte:02X}"
        for byte in raw
    )


def _reescaped(text: str, valid: frozenset[str], safe: frozenset[str]) -> str:
    """The text as written if it may stand so, else escaped in Go's manner."""
    if all(char.isascii() and (char.isalnum() or char in valid) for char in text):
        return text
    raw = _ESCAPED.sub(lambda found: bytes([int(found[0][1:], 16)]), text.encode())
    return _escape(raw, safe)


def _query(url: UrlValue) -> MapValue:
    pairs: dict[str, list[str]] = {}
    for part in url.query.split("&"):
        key, _, value = part.partition("=")
        if not part or ";" in part or _BAD_ESCAPE.search(part):
            continue
        name = _unescape(key.replace("+", " "))
        pairs.setdefault(name, []).append(_unescape(value.replace("+", " ")))
    return MapValue((key, tuple(values)) for key, values in pairs.items())


def _getter(name: str, read: object) -> Function:
    assert callable(read)
    snake = re.sub(r"[A-Z]", lambda found: "_" + found[0].lower(), name)
    return Function(name, (method(f"url_{snake}", [URL], STRING, read),))


FUNCTIONS: list[Function] = [
    Function("url", (overload("string_to_url", [STRING], URL, _url),)),
    Function("isURL", (overload("is_url_string", [STRING], BOOL, is_url),)),
    _getter("getScheme", lambda url: url.scheme),
    _getter("getHost", lambda url: url.host or ""),
    _getter("getHostname", lambda url: _split_port(url.host or "")[0]),
    _getter("getPort", lambda url: _split_port(url.host or "")[1]),
    _getter("getEscapedPath", lambda url: _reescaped(url.path, _PATH_VALID, _PATH_SAFE)),
    Function(
        "getQuery", (method("url_get_query", [URL], map_of(STRING, list_of(STRING)), _query),)
    ),
]
