# SPDX-License-Identifier: Apache-2.0
"""From a kubeconfig file, or the files in a pod, to a `Connection`.

Plain users (client certificate, token, token file, password) are read here, because importing
``kubernetes.aio`` costs 15 MB and a quarter of the agent's start (docs/decisions/0003). Users with
``exec`` or ``auth-provider`` are left to ``kubernetes.aio``, imported only then.
"""

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpudra.api.errors import InputError
from gpudra.driver.kube.auth import (
    Connection,
    Credentials,
    ProviderCredentials,
    StaticCredentials,
    TokenFile,
)
from gpudra.driver.kube.clock import Clock

# Where every pod finds its account (docs: "Accessing the Kubernetes API from a Pod").
SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST_VARIABLE = "KUBERNETES_SERVICE_HOST"
PORT_VARIABLE = "KUBERNETES_SERVICE_PORT"

_Node = Mapping[str, Any]


def default_paths(environ: Mapping[str, str]) -> list[Path]:
    """The kubeconfig files that apply without an explicit one, in the order of kubectl."""
    listed = [Path(part) for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    return listed or [Path.home() / ".kube" / "config"]


async def load_kubeconfig(paths: Sequence[Path], context: str | None, clock: Clock) -> Connection:
    """The connection that a context of the merged files describes.

    Raises:
        InputError: a file is unreadable, or a named context, cluster or user is missing.
    """
    config = _Merged.read(paths)
    name, cluster, user = _select(config, context)
    if "exec" in user.body or "auth-provider" in user.body:
        return await _with_provider(paths, name, user.body, cluster.body, config, clock)
    return _plain(config, cluster, user, clock)


def load_kubeconfig_document(document: _Node, context: str | None, clock: Clock) -> Connection:
    """The same for a kubeconfig in memory, whose user needs no exec plugin or auth provider.

    Raises:
        InputError: the document cannot be used.
    """
    config = _Merged("kubeconfig")
    config.add(document, Path())
    _, cluster, user = _select(config, context)
    if "exec" in user.body or "auth-provider" in user.body:
        raise InputError("exec and auth-provider need a kubeconfig file", field="user")
    return _plain(config, cluster, user, clock)


@dataclass(frozen=True, slots=True)
class _Section:
    """A cluster or a user, and the folder in which its relative paths start."""

    body: _Node
    folder: Path


def _select(config: "_Merged", context: str | None) -> tuple[str, _Section, _Section]:
    name = context or config.current_context
    if not name:
        raise InputError("no current-context", file=config.names, hint="name a context")
    entry = config.named("contexts", name, "context").body
    cluster = config.named("clusters", str(entry.get("cluster") or ""), "cluster")
    user_name = str(entry.get("user") or "")
    user = config.named("users", user_name, "user") if user_name else _Section({}, Path())
    return name, cluster, user


def _plain(config: "_Merged", cluster: _Section, user: _Section, clock: Clock) -> Connection:
    return Connection(
        server=_server(cluster.body, config),
        credentials=_plain_credentials(user, clock),
        ssl_context=_ssl_context(cluster, user),
        server_name=cluster.body.get("tls-server-name") or None,
        proxy=cluster.body.get("proxy-url") or None,
        headers=_impersonation(user.body),
    )


def load_in_cluster(
    environ: Mapping[str, str], clock: Clock, folder: Path = SERVICE_ACCOUNT_DIR
) -> Connection:
    """The connection of a pod's service account.

    Raises:
        InputError: not in a pod, or the account's files are missing.
    """
    host, port = environ.get(HOST_VARIABLE, ""), environ.get(PORT_VARIABLE, "")
    if not host or not port:
        raise InputError(
            f"{HOST_VARIABLE} and {PORT_VARIABLE} are not set",
            hint="not running in a pod? give a kubeconfig file",
        )
    ca_file, token_file = folder / "ca.crt", folder / "token"
    for file in (ca_file, token_file):
        if not file.is_file():
            raise InputError(
                "the service account's file is missing",
                file=str(file),
                hint="is automountServiceAccountToken off?",
            )
    bracketed = f"[{host}]" if ":" in host else host
    return Connection(
        server=f"https://{bracketed}:{port}",
        credentials=TokenFile(token_file, clock),
        ssl_context=_trusting(ca_file=str(ca_file)),
    )


class _Merged:
    """Several kubeconfig files as one: for each name the first file wins, as with kubectl."""

    def __init__(self, names: str) -> None:
        self.names = names
        self.current_context = ""
        self._entries: dict[tuple[str, str], tuple[_Node, Path]] = {}

    @classmethod
    def read(cls, paths: Sequence[Path]) -> "_Merged":
        merged = cls(", ".join(str(path) for path in paths))
        found = [path for path in paths if len(paths) == 1 or path.is_file()]
        if not found:
            raise InputError("no such file", file=merged.names, hint="give a kubeconfig file")
        for path in found:
            merged.add(_read_yaml(path), path.parent)
        return merged

    def named(self, section: str, name: str, inner: str) -> _Section:
        """The ``inner`` mapping of a named entry; InputError when it is not there."""
        found = self._entries.get((section, name))
        if found is None:
            raise InputError(f"there is no {inner} called {name!r}", field=section, file=self.names)
        body = found[0].get(inner)
        return _Section(body if isinstance(body, Mapping) else {}, found[1])

    def add(self, document: _Node, folder: Path) -> None:
        """Take in one more document; what is known already stays."""
        self.current_context = self.current_context or str(document.get("current-context") or "")
        for section in ("clusters", "contexts", "users"):
            for entry in document.get(section) or ():
                if isinstance(entry, Mapping) and "name" in entry:
                    self._entries.setdefault((section, str(entry["name"])), (entry, folder))


def _read_yaml(path: Path) -> _Node:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"cannot read the kubeconfig: {error.strerror or error}", file=str(path)
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"not YAML: {error}", file=str(path)) from error
    if not isinstance(document, Mapping):
        raise InputError("not a kubeconfig: it holds no mapping", file=str(path))
    return document


def _server(cluster: _Node, config: _Merged) -> str:
    server = str(cluster.get("server") or "").rstrip("/")
    if not server.startswith(("http://", "https://")):
        raise InputError(
            f"not an http or https URL: {server!r}", field="cluster.server", file=config.names
        )
    return server


def _plain_credentials(section: _Section, clock: Clock) -> Credentials:
    user, folder = section.body, section.folder
    # tokenFile goes before token, as with client-go, because only the file stays fresh.
    if user.get("tokenFile"):
        return TokenFile(folder / str(user["tokenFile"]), clock)
    if user.get("token"):
        return StaticCredentials(f"Bearer {user['token']}")
    if user.get("username") and "password" in user:
        pair = f"{user['username']}:{user['password']}".encode()
        return StaticCredentials("Basic " + base64.b64encode(pair).decode())
    return StaticCredentials()


def _impersonation(user: _Node) -> dict[str, str]:
    return {"Impersonate-User": str(user["as"])} if user.get("as") else {}


def _ssl_context(cluster_section: _Section, user_section: _Section) -> ssl.SSLContext | None:
    cluster, user = cluster_section.body, user_section.body
    if not str(cluster.get("server", "")).startswith("https://"):
        return None
    if cluster.get("insecure-skip-tls-verify"):
        context = _trusting()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        ca = _content(cluster, "certificate-authority", cluster_section.folder)
        context = _trusting(ca_data=ca.decode() if ca else None)
    certificate = _content(user, "client-certificate", user_section.folder)
    key = _content(user, "client-key", user_section.folder)
    if certificate and key:
        _load_client_certificate(context, certificate, key)
    return context


def _trusting(*, ca_file: str | None = None, ca_data: str | None = None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file, cadata=ca_data)
    except (ssl.SSLError, ValueError) as error:
        raise InputError(
            f"the certificate authority cannot be used: {error}",
            field="certificate-authority",
            file=ca_file or "",
        ) from error
    # Cluster CAs made by older tools lack key usage bits that Python 3.13 began to insist on.
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    return context


def _load_client_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    # Python loads a key from files only; this one lives for a moment, readable by us alone.
    with tempfile.TemporaryDirectory(prefix="gpudra-tls-") as folder:
        pem = Path(folder) / "client.pem"
        pem.touch(mode=0o600)
        pem.write_bytes(certificate.rstrip() + b"\n" + key)
        try:
            context.load_cert_chain(str(pem))
        except ssl.SSLError as error:
            raise InputError(
                f"the client certificate and key cannot be used: {error}",
                field="user.client-certificate",
            ) from error


def _content(node: _Node, name: str, folder: Path) -> bytes | None:
    """``<name>-data`` (base64) or the file called ``<name>``; the data wins, as with kubectl."""
    data = node.get(f"{name}-data")
    if data:
        try:
            return base64.b64decode(str(data), validate=False)
        except binascii.Error as error:
            raise InputError(f"not base64: {error}", field=f"{name}-data") from error
    file = node.get(name)
    if not file:
        return None
    path = folder / str(file)
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read: {error.strerror or error}", field=name, file=str(path)
        ) from error


async def _with_provider(
    paths: Sequence[Path],
    context: str,
    user: _Node,
    cluster: _Node,
    config: _Merged,
    clock: Clock,
) -> Connection:
    # Late: the import costs memory and time that most users need not pay.
    from kubernetes.aio.client import Configuration  # noqa: PLC0415
    from kubernetes.aio.config import load_kube_config  # noqa: PLC0415

    configuration = Configuration()
    files = os.pathsep.join(str(path) for path in paths)
    try:
        loader = await load_kube_config(
            config_file=files,
            context=context,
            client_configuration=configuration,
            persist_config=False,
        )
    # The loader lets everything through that a provider can raise.
    except Exception as error:
        raise InputError(f"cannot get credentials: {error}", file=config.names) from error
    if not configuration.api_key.get("BearerToken") and not configuration.cert_file:
        command = (user.get("exec") or {}).get("command") or "the auth provider"
        raise InputError(
            f"{command} gave neither a token nor a certificate",
            field="user.exec" if "exec" in user else "user.auth-provider",
            file=config.names,
            hint="run it by hand to see why",
        )
    return Connection(
        server=_server(cluster, config),
        credentials=ProviderCredentials(loader, configuration, clock),
        ssl_context=_ssl_from_configuration(configuration, cluster),
        server_name=cluster.get("tls-server-name") or None,
        proxy=cluster.get("proxy-url") or None,
        headers=_impersonation(user),
    )


def _ssl_from_configuration(configuration: Any, cluster: _Node) -> ssl.SSLContext | None:
    if not str(cluster.get("server", "")).startswith("https://"):
        return None
    context = _trusting(ca_file=configuration.ssl_ca_cert)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file and configuration.key_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context
