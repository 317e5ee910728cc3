# SPDX-License-Identifier: Apache-2.0
"""The chart: rendered by a real helm, accepted by a real API server, true to the programs."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gpudra.controller import options as controller_options
from gpudra.controller.ctl.local.layout import checkout_dir
from gpudra.kubelet_plugin import options as plugin_options
from tests.support.cluster import Cluster
from tests.support.crds import foreign_definitions
from tests.support.helm import CHART, IMAGE, NAMESPACE, Helm, find
from tools import chart_goldens

MANIFESTS = checkout_dir() / "deploy" / "manifests"
PLUGIN = "gpudra-kubelet-plugin"
CONTROLLER = "gpudra-controller"
ATTEMPTS = 50


@pytest.fixture(scope="module")
def helm() -> Helm:
    """helm, built once."""
    return Helm.built()


@pytest.fixture(scope="module")
def foreign_kinds(cluster: Cluster) -> Iterator[None]:
    """PodMonitor, PrometheusRule, Certificate and Issuer are served while these tests run."""
    files = [word for path in foreign_definitions() for word in ("-f", str(path))]
    cluster.kubectl("apply", "--server-side", *files)
    try:
        cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", *files)
        yield
    finally:
        cluster.kubectl("delete", *files)


@pytest.fixture(scope="module")
def objects(helm: Helm) -> list[dict[str, Any]]:
    """The chart with its default values."""
    return helm.template()


def manifest(name: str) -> list[dict[str, Any]]:
    """The objects of a plain manifest."""
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def container(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The only container of a workload."""
    (found,) = find(objects, kind, name)["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_helm_finds_nothing_to_complain_about(helm: Helm) -> None:
    """``helm lint --strict`` passes."""
    done = helm.run("lint", str(CHART), "--strict", "--set", f"image.repository={IMAGE}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", chart_goldens.SETS)
def test_the_chart_renders_what_was_agreed_on(helm: Helm, name: str) -> None:
    """For each of five sets of values; `python -m tools.chart_goldens` writes them anew."""
    wanted = list(yaml.safe_load_all(chart_goldens.golden(name).read_text()))
    rendered = chart_goldens.render(helm.binary, name)

    def key(one: dict[str, Any]) -> str:
        return f"{one['kind']} {one['metadata']['name']}"

    assert [key(one) for one in rendered] == [key(one) for one in wanted]
    for one, other in zip(rendered, wanted, strict=True):
        assert one == other, f"{key(one)} is stale"


@pytest.mark.usefixtures("foreign_kinds")
@pytest.mark.parametrize("name", chart_goldens.SETS)
def test_the_server_accepts_every_object(cluster: Cluster, helm: Helm, name: str) -> None:
    """A dry run on the real API server refuses no object of any set, and knows every field."""
    objects = chart_goldens.render(helm.binary, name)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(namespace))
    arguments = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-")
    text = yaml.safe_dump_all(objects)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            said = cluster.kubectl(*arguments, stdin=text)
            break
        except AssertionError as error:
            # Kinds are found a moment after they are established.
            if "no matches for kind" not in str(error) or attempt == ATTEMPTS:
                raise
    assert len(said.splitlines()) == len(objects)


def test_a_self_made_certificate_is_for_the_webhook(helm: Helm) -> None:
    """It names the Service, is signed by the authority that the configuration trusts, and its key fits."""
    found = helm.template("--set", "webhook.enabled=true")
    secret = find(found, "Secret", "gpudra-webhook-tls")["data"]
    (hook,) = find(found, "ValidatingWebhookConfiguration", "gpudra-webhook")["webhooks"]
    authority, certificate, key = (
        base64.b64decode(secret[name]) for name in ("ca.crt", "tls.crt", "tls.key")
    )
    one, ca = map(x509.load_pem_x509_certificate, (certificate, authority))
    names = one.extensions.get_extension_for_class(x509.SubjectAlternativeName).value

    assert base64.b64decode(hook["clientConfig"]["caBundle"]) == authority
    one.verify_directly_issued_by(ca)
    assert load_pem_private_key(key, None).public_key() == one.public_key()
    service = hook["clientConfig"]["service"]
    assert f"{service['name']}.{service['namespace']}.svc" in names.get_values_for_type(
        x509.DNSName
    )
    assert find(found, "Service", service["name"])["spec"]["ports"][0]["port"] == service["port"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("webhook.enabled=true,controller.enabled=false", "needs controller.enabled"),
        ("webhook.enabled=true,webhook.tls.mode=secret", "webhook.tls.secretName must name"),
    ],
)
def test_what_the_webhook_needs_is_asked_for(helm: Helm, settings: str, said: str) -> None:
    """Helm ends with the value that is missing."""
    values = ("--set", f"image.repository={IMAGE}", "--set", settings)
    done = helm.run("template", "gpudra", str(CHART), *values)
    assert done.returncode != 0
    assert said in done.stderr


def test_groups_say_what_differs(helm: Helm) -> None:
    """A DaemonSet for each, with what the group says in place of the rest, also where that is false."""
    common = "kubeletPlugin.hostNetwork=true,kubeletPlugin.nodeSelector.a=b"
    own = "kubeletPlugin.groups.x.hostNetwork=false,kubeletPlugin.groups.y.nodeSelector.c=d"
    found = helm.template("--set", f"{common},{own}")
    names = [one["metadata"]["name"] for one in found if one["kind"] == "DaemonSet"]
    x, y = (find(found, "DaemonSet", f"{PLUGIN}-{name}")["spec"] for name in ("x", "y"))

    assert names == [f"{PLUGIN}-x", f"{PLUGIN}-y"]
    assert "hostNetwork" not in x["template"]["spec"]
    assert y["template"]["spec"]["hostNetwork"] is True
    assert x["template"]["spec"]["nodeSelector"] == {"a": "b"}
    assert y["template"]["spec"]["nodeSelector"] == {"c": "d"}
    assert x["selector"] != y["selector"]


def test_an_image_has_to_be_named(helm: Helm) -> None:
    """Without one, helm says what is missing instead of rendering something that cannot run."""
    done = helm.run("template", "gpudra", str(CHART))
    assert done.returncode != 0
    assert "image.repository must name an image" in done.stderr


@pytest.mark.parametrize(
    ("library", "said"), [("simulated", "must say what is simulated"), ("declared", "must hold")]
)
def test_what_a_library_needs_has_to_be_given(helm: Helm, library: str, said: str) -> None:
    """Helm says what is missing, before a pod does."""
    values = ("--set", f"image.repository={IMAGE},kubeletPlugin.deviceLib={library}")
    done = helm.run("template", "gpudra", str(CHART), *values)
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        "kubeletPlugin.deviceLib=magic",
        "driverName=Not-A-Name",
        "controller.replicas=0",
        "kubeletPlugin.cdiDir=relative/path",
        "unknown=1",
        "kubeletPlugin.groups.a.deviceLib=magic",
        "kubeletPlugin.groups.a.groups=1",
        "kubeletPlugin.updateAtOnce=0",
        "kubeletPlugin.httpHost=example.com",
        "webhook.failurePolicy=Maybe",
        "webhook.tls.mode=magic",
        "networkPolicy.egressPorts[0]=0",
        "podMonitor.interval=often",
    ],
)
def test_values_are_checked(helm: Helm, wrong: str) -> None:
    """A value that cannot work is refused with its path."""
    values = ("--set", f"image.repository={IMAGE}", "--set", wrong)
    done = helm.run("template", "gpudra", str(CHART), *values)
    assert done.returncode != 0
    path, _, key = wrong.partition("=")[0].replace("[", ".").replace("]", "").rpartition(".")
    said = (f"'/{path}/{key}'".replace(".", "/"), f"additional properties '{key}' not allowed")
    assert any(one.replace("//", "/") in done.stderr for one in said), done.stderr


@pytest.mark.parametrize("name", ["rbac.yaml", "deviceclasses.yaml"])
def test_the_plain_manifests_say_the_same(objects: list[dict[str, Any]], name: str) -> None:
    """What the local cluster applies is what the chart renders, labels apart."""
    for plain in manifest(name):
        if plain["kind"] == "Namespace":
            continue
        rendered = find(objects, plain["kind"], plain["metadata"]["name"])
        assert without_metadata(rendered) == without_metadata(plain)
        assert rendered["metadata"].get("namespace") == plain["metadata"].get("namespace")


def without_metadata(found: dict[str, Any]) -> dict[str, Any]:
    """Everything but names and labels."""
    return {key: value for key, value in found.items() if key != "metadata"}


def test_the_controller_understands_its_arguments(objects: list[dict[str, Any]]) -> None:
    """Flags and variables of the Deployment are those of the program."""
    found = container(objects, "Deployment", CONTROLLER)
    variables = {entry["name"]: NAMESPACE for entry in found["env"]}
    assert found["command"] == ["gpudra-controller"]
    parsed = controller_options.parse(found["args"], variables)
    assert (parsed.namespace, parsed.instance) == (NAMESPACE, NAMESPACE)
    assert parsed.process.http_host == "0.0.0.0"


@pytest.mark.parametrize(
    "values",
    [
        (),
        ("deviceLib=amd",),
        ("deviceLib=declared", "hardware.kind=DeviceInventory"),
        ("deviceLib=simulated", "hardware.kind=Hardware"),
        ("deviceLib=simulated", "hardwareProfile=l4-4x"),
    ],
)
def test_the_agent_understands_its_arguments(helm: Helm, values: tuple[str, ...]) -> None:
    """Flags and variables of the DaemonSet are those of the program; sockets are unique a pod."""
    settings = [word for value in values for word in ("--set", f"kubeletPlugin.{value}")]
    found = container(helm.template(*settings), "DaemonSet", PLUGIN)
    variables = {entry["name"]: "node-a" for entry in found["env"]}
    assert found["command"] == ["gpudra-kubelet-plugin"]
    parsed = plugin_options.parse(found["args"], variables)
    assert (parsed.node_name, parsed.instance_uid) == ("node-a", "node-a")
    mounts = {mount["mountPath"] for mount in found["volumeMounts"]}
    assert {str(parsed.state_folder), str(parsed.cdi_dir)} <= mounts
    assert str(parsed.kubelet_root / "plugins_registry") in mounts
    assert str(parsed.host_root) in {"/", *mounts}


def test_the_webhook_is_served_where_the_service_leads(helm: Helm) -> None:
    """Flags, port and certificate of the Deployment are those of the program and of the Service."""
    found = helm.template("--set", "webhook.enabled=true,webhook.port=9999")
    one = container(found, "Deployment", CONTROLLER)
    parsed = controller_options.parse(one["args"], {"GPUDRA_NAMESPACE": NAMESPACE})
    (mount,) = one["volumeMounts"]
    (port,) = find(found, "Service", "gpudra-webhook")["spec"]["ports"]

    assert parsed.webhook is not None
    assert {"name": port["targetPort"], "containerPort": parsed.webhook.port} in one["ports"]
    assert {str(parsed.webhook.certificate.parent), str(parsed.webhook.key.parent)} == {
        mount["mountPath"]
    }


def test_the_controller_runs_without_rights_on_the_node(objects: list[dict[str, Any]]) -> None:
    """No root, no privileges, no writable root file system, no host folders."""
    pod = find(objects, "Deployment", CONTROLLER)["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "volumes" not in pod


def test_agents_are_replaced_without_a_gap(objects: list[dict[str, Any]]) -> None:
    """The new pod starts beside the old one, and the old one goes when the new one is ready."""
    update = find(objects, "DaemonSet", PLUGIN)["spec"]["updateStrategy"]
    assert update["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_an_own_hardware_document_is_mounted(helm: Helm) -> None:
    """Values may carry a whole Hardware document; changing it restarts the agents."""

    def rendered(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        settings = f"kubeletPlugin.deviceLib=simulated,kubeletPlugin.hardware.metadata.name={name}"
        found = helm.template("--set", settings)
        return find(found, "ConfigMap", f"{PLUGIN}-hardware"), find(found, "DaemonSet", PLUGIN)

    config, agent = rendered("mine")
    assert yaml.safe_load(config["data"]["hardware.yaml"]) == {"metadata": {"name": "mine"}}
    pod = agent["spec"]["template"]
    assert "--hardware=/etc/gpudra/hardware.yaml" in pod["spec"]["containers"][0]["args"]
    assert (
        pod["metadata"]["annotations"]
        != rendered("other")[1]["spec"]["template"]["metadata"]["annotations"]
    )


def test_another_driver_name_reaches_every_object(helm: Helm) -> None:
    """Classes, roles, folders and flags follow ``driverName``."""
    found = helm.template("--set", "driverName=gpu.example.com")
    text = yaml.safe_dump_all(found)
    assert "gpu.gpudra.io" not in text
    assert find(found, "DeviceClass", "nvidia.gpu.example.com")


def test_parts_can_be_left_out(helm: Helm) -> None:
    """No controller, no classes, no policy, no extended resource: what remains still renders."""
    found = chart_goldens.render(helm.binary, "agents-only")
    kinds = {one["kind"] for one in found}
    assert kinds == {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet"}
    plain = helm.template("--set", "deviceClasses.nvidia.extendedResourceName=")
    assert "extendedResourceName" not in find(plain, "DeviceClass", "nvidia.gpu.gpudra.io")["spec"]
