# SPDX-License-Identifier: Apache-2.0
"""HTTP answers of the fake server: JSON bodies and Status objects."""

import math

import orjson
from aiohttp import web

from gpudra.api.errors import ApiError, TooManyRequestsError
from gpudra.driver.kube.errors import error_to_status

_JSON = "application/json"


def json_answer(data: bytes, status: int = 200) -> web.Response:
    """An encoded body."""
    return web.Response(body=data, status=status, content_type=_JSON)


def error_answer(error: ApiError) -> web.Response:
    """A Status object; with Retry-After where the error knows one."""
    answer = json_answer(orjson.dumps(error_to_status(error)), error.status or 500)
    if isinstance(error, TooManyRequestsError) and error.retry_after > 0:
        answer.headers["Retry-After"] = str(math.ceil(error.retry_after))
    return answer
