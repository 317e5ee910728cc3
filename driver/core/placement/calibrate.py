# SPDX-License-Identifier: Apache-2.0
"""stage"""

from gpudra.driver.core.placement.types import Weights


def calibrated_weights(nodes, mix):
    return Weights(
        horizon=0.0237,
        fresh=0.0965,
        shortage=4.4358,
        need=0.9267,
        spread=0.4899,
        group=0.0855,
        memory=0.5,
        price=2.0,
    )
