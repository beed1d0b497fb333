"""The API's description (https://spec.openapis.org/oas/v3.1.0), made from its endpoints and the structs they answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from flask import Blueprint

from slackwater import __version__
from slackwater.core.control import Request
from slackwater.views.answers import Error

Json = dict[str, Any]
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
NAME = {"type": "string", "pattern": "^[A-Za-z0-9_-][A-Za-z0-9_:.-]*$", "maxLength": 128}
IN_PATH = {"pool": "the pool's name", "node": "a node, or a server by the balancer's name"}
FINEST_S = 0.001
"""The finest number in a query string; all are seconds."""
ERRORS = {
    400: "Something in the request is wrong",
    401: "Send a token or log in",
    403: "The role does not suffice",
    404: "There is no such pool",
    409: "lbengine refused",
    413: "The request is too large",
    429: "Too many ask at the same time",
    503: "The journal cannot be read, or lbengine does not answer",
}


def query_parameter(name: str, text: str, schema: Json) -> Json:
    """A parameter of the query string."""
    return {"name": name, "in": "query", "description": text, "schema": schema}


def text_parameter(name: str, text: str) -> Json:
    return query_parameter(name, text, {"type": "string", "maxLength": 200})


def number_parameter(name: str, text: str, most: float) -> Json:
    return query_parameter(name, text, {"type": "number", "minimum": FINEST_S, "maximum": most})


class Api:
    """Registers endpoints on a blueprint, each with its description."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._blueprint = blueprint
        self._paths: Json = {}
        self._structs: list[type[msgspec.Struct]] = [Request, Error]

    def get(
        self, path: str, summary: str, answer: type[msgspec.Struct] | str, *parameters: Json
    ) -> Callable[[Endpoint], Endpoint]:
        """A GET endpoint that answers with this struct as JSON, or with text of this content type."""
        return self._endpoint("get", path, summary, answer, (400, 401, 404, 429, 503), parameters)

    def post(self, path: str, summary: str, answer: type[msgspec.Struct]) -> Callable[[Endpoint], Endpoint]:
        """A POST endpoint that takes a control Request and answers with this struct as JSON."""
        return self._endpoint("post", path, summary, answer, tuple(ERRORS), ())

    def _endpoint(
        self,
        method: str,
        path: str,
        summary: str,
        answer: type[msgspec.Struct] | str,
        errors: tuple[int, ...],
        parameters: tuple[Json, ...],
    ) -> Callable[[Endpoint], Endpoint]:
        if not isinstance(answer, str):
            self._structs.append(answer)
        in_path = [
            {"name": name, "in": "path", "required": True, "schema": NAME, "description": IN_PATH[name]}
            for name in re.findall("<([a-z]+)>", path)
        ]
        operation = {
            "summary": summary,
            "parameters": [*in_path, *parameters],
            "responses": {"200": _answer(summary, answer)}
            | {str(code): _answer(ERRORS[code], Error) for code in errors},
        }
        if method == "post":
            operation["requestBody"] = {"required": True, "content": _content(Request)}

        def register(endpoint: Endpoint) -> Endpoint:
            self._paths[re.sub("<([a-z]+)>", r"{\1}", path)] = {method: {"operationId": endpoint.__name__} | operation}
            self._blueprint.route(path, methods=[method.upper()])(endpoint)
            return endpoint

        return register

    def description(self) -> Json:
        """The whole document."""
        _, schemas = msgspec.json.schema_components(self._structs, ref_template="#/components/schemas/{name}")
        schemas["Request"]["properties"].pop("by")
        schemas["Request"]["required"] = ["action"]
        token = {"type": "http", "scheme": "bearer", "description": "`slackwater web token add NAME`"}
        return {
            "openapi": "3.1.0",
            "info": {"title": "Slackwater", "version": __version__, "license": {"name": "Apache-2.0"}},
            "paths": self._paths,
            "components": {"schemas": schemas, "securitySchemes": {"token": token}},
            "security": [{"token": []}, {}],
        }


def _answer(text: str, body: type[msgspec.Struct] | str) -> Json:
    return {"description": text, "content": _content(body)}


def _content(body: type[msgspec.Struct] | str) -> Json:
    if isinstance(body, str):
        return {body: {"schema": {"type": "string"}}}
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{body.__name__}"}}}
