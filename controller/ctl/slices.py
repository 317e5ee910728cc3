# SPDX-License-Identifier: Apache-2.0
"""``gpudra slices``: the ResourceSlices that a node with this hardware would publish.

Answers from files alone: the same pure functions that the node agent uses, on simulated hardware.
"""

import argparse
import sys
from collections.abc import Sequence

from gpudra.api.names import split_qualified_name
from gpudra.api.resource_v1 import Device, ResourceSlice
from gpudra.controller.ctl import printers
from gpudra.driver.core.forms import (
    EVERYTHING,
    FORM_WORDS,
    PublishPolicy,
    form_words,
    parse_forms,
)
from gpudra.driver.core.inventory import Inventory
from gpudra.driver.core.nodepolicy import publish_policy
from gpudra.driver.core.prepare import PREPARABLE
from gpudra.driver.core.resourceslices import (
    ALL_FEATURES,
    DRIVER_NAME,
    ServerFeatures,
    build_pool,
    resource_slices,
)
from gpudra.driver.devicelib.simulated import build_inventory, load_hardware, profile_names

_HEADERS = ("SLICE", "DEVICE", "TYPE", "PRODUCT", "MEMORY", "NUMA", "PCIE SWITCH", "NVLINK DOMAIN")
_NUMA_NODE = "resource.kubernetes.io/numaNode"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See gpudra.controller.ctl.main."""
    parser.add_argument(
        "--hardware",
        required=True,
        metavar="PROFILE|FILE",
        help=f"a Hardware file, or one of the profiles {', '.join(profile_names())}",
    )
    parser.add_argument(
        "--node-name",
        default="node",
        metavar="NAME",
        help="node and pool; also salts the uuids of a profile's cards (default: node)",
    )
    parser.add_argument("--driver", default=DRIVER_NAME, help="name of the DRA driver")
    parser.add_argument(
        "--forms",
        metavar="FORM,…",
        help=f"offer cards in these forms: some of {', '.join(FORM_WORDS)}"
        f" (default: {form_words(PREPARABLE)}, which is what agents publish without further ado;"
        " with --policy: those of the policy)",
    )
    parser.add_argument(
        "--policy",
        metavar="FILE",
        help="a NodePolicy that decides for the node, whatever its nodeSelector says",
    )
    parser.add_argument(
        "--no-feature",
        action="append",
        default=[],
        choices=sorted(_FEATURE_NAMES),
        help="publish as for an API server without this feature; may be repeated",
    )
    printers.add_output_argument(parser)


def run(args: argparse.Namespace) -> int:
    """See gpudra.controller.ctl.main."""
    features = ServerFeatures(
        **{field: name not in args.no_feature for name, field in _FEATURE_NAMES.items()}
    )
    slices = slices_of_hardware(
        args.hardware,
        driver=args.driver,
        node_name=args.node_name,
        features=features,
        policy=_policy(args.policy, args.forms),
    )
    if args.output in (printers.JSON, printers.YAML):
        printers.print_objects([one.to_dict() for one in slices], args.output)
        return 0
    printers.print_table(
        _HEADERS,
        [_row(one, device, args.driver) for one in slices for device in one.spec.devices],
        nothing=f"{args.hardware} has no devices",
    )
    return 0


# Named on the command line as the API's own words are.
_FEATURE_NAMES = {
    "counters": "counters",
    "consumable-capacity": "consumable_capacity",
    "device-taints": "device_taints",
    "list-attributes": "list_attributes",
}


def _policy(file: str | None, forms: str | None) -> PublishPolicy:
    kinds = parse_forms(forms, "--forms") if forms is not None else None
    if file is None:
        return EVERYTHING.within(PREPARABLE if kinds is None else kinds)
    from gpudra.controller.ctl.policyfile import load_policy

    policy = publish_policy(load_policy(file))
    return policy if kinds is None else policy.within(kinds)


def slices_of_hardware(
    source: str,
    *,
    driver: str,
    node_name: str,
    features: ServerFeatures = ALL_FEATURES,
    policy: PublishPolicy | None = None,
) -> Sequence[ResourceSlice]:
    """The slices of a node with this hardware, first generation, without an owner.

    Cards that cannot be published are named on stderr.

    Raises:
        InputError: no such profile or file, or it is wrong.
    """
    inventory = build_inventory(load_hardware(source), node_name=node_name)
    return slices_of_inventory(
        inventory, driver=driver, node_name=node_name, features=features, policy=policy
    )


def slices_of_inventory(
    inventory: Inventory,
    *,
    driver: str,
    node_name: str,
    features: ServerFeatures = ALL_FEATURES,
    policy: PublishPolicy | None = None,
) -> Sequence[ResourceSlice]:
    """The slices of a node with these cards; see slices_of_hardware."""
    pool = build_pool(
        inventory, node_name=node_name, driver=driver, features=features, policy=policy
    )
    for problem in pool.problems:
        print(f"left out: {problem}", file=sys.stderr)
    return resource_slices(pool)


def _row(one: ResourceSlice, device: Device, driver: str) -> tuple[object, ...]:
    values = {
        split_qualified_name(name, driver): value for name, value in device.attributes.items()
    }

    def attribute(name: str) -> object:
        return values.get(split_qualified_name(name, driver))

    memory = device.capacity.get("memory")
    return (
        one.metadata.name,
        device.name,
        attribute("type"),
        attribute("productName"),
        memory.value if memory else None,
        attribute(_NUMA_NODE),
        attribute("pcieSwitch"),
        attribute("nvlinkDomain"),
    )
