#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Type-checks the package under its installed name: tools/types.sh BIN
#
# The folders are imported as gpudra.*, which an in-place checker cannot know. A folder of links
# that has the installed shape can be checked in place, and keeps mypy's cache.
set -euo pipefail
bin=$(cd "$1" && pwd)
shape=.cache/types/gpudra
mkdir -p "$shape"
for folder in api driver kubelet_plugin controller; do
  ln -sfn "../../../$folder" "$shape/$folder"
done
cd .cache/types
"$bin/mypy" --config-file ../../pyproject.toml --cache-dir ../mypy -p gpudra
