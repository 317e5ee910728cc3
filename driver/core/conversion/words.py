# SPDX-License-Identifier: Apache-2.0
"""The words of other systems: resources and annotations, and what each is.

Read by `containers` and `selection`. The admission policy holds the same tables in CEL. Sources are
the API pages and constants of HAMi 2.10, KAI Scheduler 0.17 and Volcano 1.15.
"""

import re

GPU = "nvidia.com/gpu"
MIG = "nvidia.com/mig-"
# HAMi and the device plugin, by role.
HAMI_RESOURCES = {
    "count": GPU,
    "memory": "nvidia.com/gpumem",
    "percent": "nvidia.com/gpumem-percentage",
    "cores": "nvidia.com/gpucores",
}
PRIORITY = "nvidia.com/priority"
VOLCANO_RESOURCES = {
    "count": "volcano.sh/vgpu-number",
    "memory": "volcano.sh/vgpu-memory",
    "percent": "volcano.sh/vgpu-memory-percentage",
    "cores": "volcano.sh/vgpu-cores",
}
# Cards of other vendors that are counted; every other resource of these vendors is a part of a card.
COUNTED = {
    "amd.com/gpu": "amd",
    "aws.amazon.com/neuron": "aws",
    "birentech.com/gpu": "biren",
    "cambricon.com/vmlu": "cambricon",
    "enflame.com/gcu": "enflame",
    "hygon.com/dcunum": "hygon",
    "iluvatar.ai/vgpu": "iluvatar",
    "kunlunxin.com/xpu": "kunlunxin",
    "metax-tech.com/gpu": "metax",
    "mthreads.com/vgpu": "mthreads",
    "vastaitech.com/va": "vastai",
}
ASCEND = re.compile(r"huawei\.com/Ascend[0-9A-Za-z]+(-[0-9]+)?", re.ASCII)
FOREIGN = re.compile(
    r"nvidia\.com/(gpu|gpu\.shared|gpumem|gpumem-percentage|gpucores|priority|mig-.+)"
    r"|volcano\.sh/(vgpu|gpu)-.+"
    r"|(amd|huawei|cambricon|hygon|metax-tech|mthreads|enflame|kunlunxin|vastaitech|birentech)\.com/.+"
    r"|aws\.amazon\.com/neuron.*|iluvatar\.ai/.+",
    re.ASCII,
)
PROFILE = re.compile(r"[1-9]g\.[0-9]+gb(\.me|\.gfx)?", re.ASCII)

# What HAMi says about cards, also on Volcano.
USE_TYPE, NOT_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
USE_UUID, NOT_UUID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
NUMA_BIND = "nvidia.com/numa-bind"
HAMI_MODE, VOLCANO_MODE = "nvidia.com/vgpu-mode", "volcano.sh/vgpu-mode"
MODES = ("hami-core", "mig", "mps")
NODE_POLICY, CARD_POLICY = "hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy"
NODE_POLICIES = ("binpack", "spread")
CARD_POLICIES = ("binpack", "spread", "numa", "mutex", "topology-aware")

FRACTION, MEMORY = "gpu-fraction", "gpu-memory"
FRACTION_LIMIT, MEMORY_LIMIT = "gpu-fraction.limit", "gpu-memory.limit"
DEVICES, CONTAINER = "gpu-fraction-num-devices", "gpu-fraction-container-name"
SM_PERCENT, SM_CORES, MPS = "gpu-sm-percentage", "gpu-sm-cores", "mps"
# These mean something only beside a fraction or a memory.
KAI_EXTRAS = (FRACTION_LIMIT, MEMORY_LIMIT, DEVICES, CONTAINER, SM_PERCENT, SM_CORES)

TRANSLATED = frozenset(
    {
        *(USE_TYPE, NOT_TYPE, USE_UUID, NOT_UUID, NUMA_BIND, HAMI_MODE, VOLCANO_MODE),
        *(NODE_POLICY, CARD_POLICY, FRACTION, MEMORY, MPS),
        *(FRACTION_LIMIT, MEMORY_LIMIT, DEVICES, CONTAINER, SM_PERCENT),
    }
)
# What schedulers and device plugins have written into a pod that has run: decisions, no wishes.
STATE = re.compile(
    r"hami\.io/(vgpu-(time|node)|bind-(time|phase)|vgpu-mig-allocations|.+-devices-(to-allocate|allocated))"
    r"|volcano\.sh/(vgpu-(time|node|ids-new)|devices-to-allocate|bind-(time|phase)|predicate-time|gpu-index)"
    r"|received-resource-type|runai/shared-gpu-configmap",
    re.ASCII,
)
# Families in which a word that is in none of the tables asks for something that nobody would serve.
FAMILIES = re.compile(
    r"hami\.io/.+|nvidia\.com/(use|nouse|vgpu|numa)-.+|nvidia\.com/container\..+"
    r"|volcano\.sh/vgpu-.+|gpu-sm-cores",
    re.ASCII,
)
# Switches HAMi's library off in a container.
DISABLE_CONTROL = "CUDA_DISABLE_CONTROL"
SCHEDULERS = ("hami-scheduler", "kai-scheduler", "volcano")
