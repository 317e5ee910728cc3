# SPDX-License-Identifier: Apache-2.0
"""Literals from which the CEL generator builds expressions: ordinary ones, edges, and bad ones."""

STRINGS = [
    '""', '"a"', '"H100"', '"h100"', '"x,y,z"', '"gpu.example.com"', '"ab\\n\\tc"', "'q\"q'", 'r"\\d+"',
    '"""multi\nline"""', '"ünïcödé"', '"1.2.3"', '"40Gi"', '"10.0.0.1"', '"10.0.0.0/8"', '"2001:db8::1"',
    '"https://h.example:8080/p/a?b=c&b=d#f"', '"12"', '"-7"', '"1.5"', '"true"', '"90m"', '"\\u00e9\\x41\\101"',
    '"2024-02-29T12:30:45.5Z"', '"a%b"', '"  pad  "', '"A-b_C.9"', '"😀x"',
]  # fmt: skip
INTS = ["0", "1", "2", "3", "-1", "7", "10", "48", "100", "0x1F", "9223372036854775807", "-9223372036854775808", "1000000"]  # fmt: skip
UINTS = ["0u", "1u", "3u", "42u", "18446744073709551615u", "0xFu"]
DOUBLES = ["0.0", "1.5", "-2.25", "3.0", "1e3", "1e-7", "1e30", "0.1", "123456.789", "-0.0", "1e19"]
BYTES = ['b""', 'b"abc"', "b'\\xff\\x00'", 'b"é"', 'br"\\x"']
QUANTITIES = ['"0"', '"1"', '"40Gi"', '"80Gi"', '"1500m"', '"1.5Gi"', '"-3"', '"100k"', '"1e3"', '"bad"', '"0.5"', '"1Ti"', '"3n"']  # fmt: skip
SEMVERS = ['"1.2.3"', '"0.0.1"', '"1.2.3-rc.1"', '"1.2.3+b1"', '"v1.2"', '"01.2.3"', '"1.2"', '"10.0.0"', '"x"', '"1.2.3-rc.1+b"']  # fmt: skip
DURATIONS = ['"1s"', '"90m"', '"-1.5h"', '"0"', '"1h2m3.5s"', '"100ms"', '"7us"', '"bad"', '"1d"']
TIMES = [
    '"2024-02-29T12:30:45.5Z"', '"1970-01-01T00:00:00Z"', '"2023-12-31T23:59:59+05:30"', '"0001-01-01T00:00:00Z"',
    '"9999-12-31T23:59:59Z"', '"2024-13-01T00:00:00Z"', '"2024-06-01T00:00:00-08:00"',
]  # fmt: skip
ZONES = [
    '"UTC"',
    '"Europe/Rome"',
    '"America/Los_Angeles"',
    '"+01:30"',
    '"-08:00"',
    '"bad"',
    '"2:00"',
]
IPS = ['"10.0.0.1"', '"127.0.0.1"', '"::1"', '"2001:db8::1"', '"fe80::1"', '"224.0.0.1"', '"ff02::1"', '"0.0.0.0"', '"10.0.0.01"', '"::ffff:1.2.3.4"', '"255.255.255.255"', '"2001:DB8::1"', '"169.254.1.1"']  # fmt: skip
CIDRS = ['"10.0.0.0/8"', '"10.1.2.3/16"', '"::/0"', '"2001:db8::/32"', '"10.0.0.0/33"', '"fe80::/10"', '"0.0.0.0/0"', '"1.2.3.4/032"']  # fmt: skip
URLS = [
    '"https://h.example:8080/p/a?b=c&b=d"', '"/just/path"', '"http://user:pw@h/%20x?q=1%202&r"', '"mailto:a@b"', '"no scheme"',
    '"http://[::1]:80/"', '"https://h/a b"', '"http://h:port/"', '"//host/path"', '"https://h?x"', '"http://a:1:2/"', '""', '"*"',
]  # fmt: skip
PATTERNS = [
    '"^a.*"',
    '"[0-9]+"',
    '"H(1|2)00"',
    '"x*"',
    '"(?i)h100"',
    '"[a-z"',
    '"\\\\."',
    '"b|c"',
    '""',
    '"(a)(b)?"',
]
FORMATS = [
    "dns1123Label", "dns1123Subdomain", "dns1035Label", "qualifiedName", "dns1123LabelPrefix", "dns1123SubdomainPrefix",
    "dns1035LabelPrefix", "labelValue", "uri", "uuid", "byte", "date", "datetime",
]  # fmt: skip
FORMAT_TEXTS = [
    '"abc"', '"Abc"', '"a.b"', '"a-"', '"-a"', '"a/b"', '"9a"', '"2024-02-30"', '"2024-02-29"', '"YWJj"', '"2024-02-29T10:00:00Z"',
    '"123e4567-e89b-12d3-a456-426614174000"', '"https://a/b"', '""', '"a_b"', '"a/b/c"', '"x" + "y"',
]  # fmt: skip
NAMED = [
    "model",
    "index",
    "healthy",
    "driverVersion",
    "ratio",
    "missing",
    "tags",
    "numbers",
    "flags",
    "versions",
]
