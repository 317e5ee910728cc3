# SPDX-License-Identifier: Apache-2.0
"""Our opaque configuration kinds, ``gpudra.io/v1alpha1``: what a claim or a class may set.

Import pydantic only through gpudra.api.config.v1alpha1, so that programs which meet no
configuration never load it.
"""
