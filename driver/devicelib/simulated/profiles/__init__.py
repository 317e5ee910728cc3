# SPDX-License-Identifier: Apache-2.0
"""Shipped Hardware files and the catalogue of boards, as package data.

A package only so that setuptools carries the YAML files along; nothing is imported from here.
"""
