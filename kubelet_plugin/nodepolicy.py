# SPDX-License-Identifier: Apache-2.0
"""Which NodePolicy is in force for this node: watches the policies and the node's own labels.

Nothing is decided before both are known, so that a restart never publishes a policy that is not
the node's. A cluster without the CRD, or one whose RBAC does not let agents read policies, has no
policies: the default is in force, which is said once.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sized
from typing import Protocol

from gpudra.api import nodepolicy as api
from gpudra.api.errors import ApiError, ForbiddenError, NotFoundError
from gpudra.api.nodepolicy import NodePolicy
from gpudra.driver.core.forms import EVERY_FORM, DeviceKind, PublishPolicy, form_words
from gpudra.driver.core.nodepolicy import resolve, rivals
from gpudra.driver.kube.backoff import Backoff
from gpudra.driver.kube.clock import Clock
from gpudra.driver.kube.reflector import ListWatcher, Reflector, ReflectorError
from gpudra.driver.kube.resources import NODE_POLICIES, NODES, Obj, Resource
from gpudra.driver.observability.logging import get_logger

# How often it is looked whether the CRD has been installed since.
_ABSENT_SECONDS = 30.0
log = get_logger(__name__)


def ignore(_resource: Resource, _what: object) -> object:
    """For callers who do not count."""
    return None


class PolicyClient(ListWatcher, Protocol):
    """What is needed of the API client."""

    async def api_resources(self, group: str, version: str) -> list[Obj]:
        """Kinds of a group; empty when it is not served."""
        ...


class PolicyWatcher:
    """The node's policy, told whenever it changes.

    Args:
        client: lists and watches.
        node_name: of this node.
        on_change: told the policy when it is known first, and each one that differs.
        kinds: the forms that cards may have here, whatever policies say.
        clock: for pauses.
        rng: for their jitter.
        on_error: told of every list or watch that failed, and why in one word.
        on_count: told how many objects of a kind are held.
    """

    def __init__(
        self,
        client: PolicyClient,
        *,
        node_name: str,
        on_change: Callable[[PublishPolicy], None],
        kinds: frozenset[DeviceKind] = EVERY_FORM,
        clock: Clock,
        rng: random.Random,
        on_error: Callable[[Resource, str], object] = ignore,
        on_count: Callable[[Resource, Sized], object] = ignore,
    ) -> None:
        self._client = client
        self._on_change = on_change
        self._kinds = kinds
        self._clock = clock
        self._rng = rng
        self._on_error = on_error
        self._on_count = on_count
        self._policy: PublishPolicy | None = None
        # Without the right or the kind there is nothing to wait for.
        self._without_policies = False
        self._without_labels = False
        self._policies: Reflector[NodePolicy] = Reflector(
            client,
            NODE_POLICIES,
            api.decode_stored,
            on_event=lambda _: self._seen(policies=True),
            on_error=self._policies_failed,
            clock=clock,
            rng=rng,
        )
        self._node: Reflector[Mapping[str, str]] = Reflector(
            client,
            NODES,
            _labels,
            field_selector=f"metadata.name={node_name}",
            on_event=lambda _: self._seen(),
            on_error=self._node_failed,
            clock=clock,
            rng=rng,
        )

    @property
    def policy(self) -> PublishPolicy | None:
        """The policy in force; None while it is not known."""
        return self._policy

    @property
    def managed(self) -> bool | None:
        """Whether managed mode gives out the node's cards; None while that is not known."""
        return None if self._policy is None else self._policy.managed

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._node.run(), name="reflector node")
            tasks.create_task(self._first_node(), name="node known")
            tasks.create_task(self._run_policies(), name="reflector nodepolicies")
            tasks.create_task(self._first_policies(), name="nodepolicies known")

    async def _run_policies(self) -> None:
        backoff = Backoff(base=0.5, cap=_ABSENT_SECONDS, rng=self._rng)
        while True:
            try:
                kinds = await self._client.api_resources(api.GROUP, api.VERSION)
            except ApiError as error:
                log.warning("cannot ask whether there are NodePolicies", error=str(error))
                await self._clock.sleep(backoff.next())
                continue
            if any(kind.get("name") == api.PLURAL for kind in kinds):
                break
            if not self._without_policies:
                log.info("the kind NodePolicy is not installed, the default is in force")
                self._no_policies()
            await self._clock.sleep(_ABSENT_SECONDS * (0.5 + 0.5 * self._rng.random()))
        await self._policies.run()

    async def _first_policies(self) -> None:
        await self._policies.wait_synced()
        self._seen(policies=True)

    async def _first_node(self) -> None:
        await self._node.wait_synced()
        self._seen()

    def _policies_failed(self, error: ReflectorError) -> None:
        self._on_error(NODE_POLICIES, error.kind)
        if isinstance(error.error, ForbiddenError | NotFoundError):
            log.warning("NodePolicies cannot be read, the default is in force", error=error.message)
            self._no_policies()

    def _node_failed(self, error: ReflectorError) -> None:
        self._on_error(NODES, error.kind)
        if isinstance(error.error, ForbiddenError):
            log.warning(
                "the node's labels cannot be read, only policies without nodeSelector count",
                error=error.message,
            )
            self._without_labels = True
            self._decide()

    def _no_policies(self) -> None:
        self._without_policies = True
        self._decide()

    def _seen(self, *, policies: bool = False) -> None:
        if policies:
            self._without_policies = False
        self._on_count(NODE_POLICIES, list(self._policies.store.values()))
        self._on_count(NODES, list(self._node.store.values()))
        self._decide()

    def _decide(self) -> None:
        """Works out the policy once everything is known."""
        known = self._policies.has_synced or self._without_policies
        if not known or not (self._node.has_synced or self._without_labels):
            return
        labels = next(iter(self._node.store.values()), {})
        policies = [] if self._without_policies else list(self._policies.store.values())
        policy = resolve(policies, labels).within(self._kinds)
        if policy == self._policy:
            return
        self._policy = policy
        found = rivals(policies, labels)
        log.info(
            "node policy",
            policy=found[0].metadata.name if found else "(default)",
            forms=form_words(policy.forms.kinds),
            managed=policy.managed,
            conflicts=[one.metadata.name for one in found[1:]],
        )
        self._on_change(policy)


def _labels(raw: Obj) -> Mapping[str, str]:
    """Of a node nothing else is kept."""
    return dict(raw["metadata"].get("labels") or {})
