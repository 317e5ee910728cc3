# SPDX-License-Identifier: Apache-2.0
"""Jobs whose pods start together: the group that they are, without anybody writing a PodGroup. Pure.

A Job says so by the annotation ``gpudra.io/gang: "true"``, on itself or on its pods; their number is
``gpudra.io/min-count``, else its parallelism. Called by the feed for every Job.
"""

from collections.abc import Mapping
from typing import Any, Final

from gpudra.api.podgroup import MAX_PODS, PodGroup
from gpudra.driver.core.gangs.podview import GANG

MIN_COUNT: Final = "gpudra.io/min-count"


def gang_of_job(raw: Mapping[str, Any]) -> PodGroup | None:
    """The group of a Job's pods; None when they may start one by one.

    Raises:
        InputError: the number cannot be used; the Job's pods wait for their group then.
    """
    meta, spec = raw["metadata"], raw.get("spec") or {}
    template = (spec.get("template") or {}).get("metadata") or {}
    notes = {**(meta.get("annotations") or {}), **(template.get("annotations") or {})}
    if notes.get(GANG) != "true":
        return None
    count = _count(notes, spec)
    return PodGroup.decode(
        {
            "apiVersion": "gpudra.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {
                "name": f"Job.{meta['name']}",
                "namespace": meta.get("namespace", ""),
                "uid": meta.get("uid", ""),
            },
            "spec": {"minCount": count},
        }
    )


def _count(notes: Mapping[str, str], spec: Mapping[str, Any]) -> int:
    text = notes.get(MIN_COUNT)
    if text is not None and text.isascii() and text.isdigit() and len(text) <= len(str(MAX_PODS)):
        return int(text)
    parallelism, completions = spec.get("parallelism", 1), spec.get("completions")
    return max(1, int(parallelism if completions is None else min(parallelism, completions)))
