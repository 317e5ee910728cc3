# SPDX-License-Identifier: Apache-2.0
"""Taking devices back: which running jobs have to end so that a waiting one fits. Pure.

`rules` says who may be taken from, `Hunt` finds the least harm. Called by gpudra.driver.core.managed
for a job that its queue lets run and no node has room for.
"""

from gpudra.driver.core.preemption.hunt import Found, Hunt
from gpudra.driver.core.preemption.rules import Cause, MoveRules, Rules
from gpudra.driver.core.preemption.runners import Harm, Runner, harm_of

__all__ = ["Cause", "Found", "Harm", "Hunt", "MoveRules", "Rules", "Runner", "harm_of"]
