"""The API's description (https://spec.openapis.org/oas/v3.1.0), made from the structs that the answers are made of."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from slackwater import __version__
from slackwater.control import Request
from slackwater.renamed import REQUEST_FIELDS
from slackwater.views.answers import Changes, Done, Error, Pools, Told
from slackwater.views.pool import PoolView
from web.audit import SINCE_S
from web.episodes import Listed
from web.reader import Plots

Json = dict[str, Any]


class Episodes(msgspec.Struct):
    """The newest first."""

    episodes: list[Listed]


STRUCTS = (Pools, PoolView, Plots, Episodes, Changes, Told, Request, Done, Error)


@cache
def description() -> Json:
    """The whole document."""
    # `$` of our patterns would let a newline through in other languages; JSON Schema's own `$` does not.
    _, schemas = msgspec.json.schema_components(STRUCTS, ref_template="#/components/schemas/{name}")
    schemas["Request"]["properties"].pop("by")
    schemas["Request"]["required"] = ["action"]
    name = {"type": "string", "pattern": "^[A-Za-z0-9_-][A-Za-z0-9_:.-]*$", "maxLength": 128}
    pool = {"name": "pool", "in": "path", "required": True, "schema": name, "description": "the pool's name"}
    node = {**pool, "name": "node", "description": "a node, or a server by the balancer's name"}
    last = _number("last_s", "seconds back from the end", 400 * 86400)
    filters = [
        _text("pool", "Changes of this pool"),
        _text("what", "of this kind: `weight`, `pause`, ..."),
        _text("target", "of this server or node"),
        _text("text", "with this text in any field"),
        *(_old(old, new) for old, new in REQUEST_FIELDS.items()),
        {**_text("since", "not older than this"), "schema": {"type": "string", "enum": [*SINCE_S, ""]}},
        _number("since_unix_s", "not older than this Unix time", 4_000_000_000),
        {**_text("page", "which page"), "schema": {"type": "integer", "minimum": 1, "maximum": 999999}},
        {**_text("limit", "at most so many"), "schema": {"type": "integer", "minimum": 1, "maximum": 10000}},
    ]
    history = [
        *(pool, last, _number("step_s", "seconds a step; from 60 on means of minutes", 400 * 86400)),
        _number("until_unix_s", "the end, as Unix time; default: now", 4_000_000_000),
        {"name": "node", "in": "query", "description": "only this node; may be repeated",
         "schema": {"type": "array", "items": name}},
    ]  # fmt: skip
    paths = {
        "/api/v1/pools": {"get": _get("pools", "All pools, now", "Pools")},
        "/api/v1/pools/{pool}": {"get": _get("pool", "One pool, now", "PoolView", pool)},
        "/api/v1/pools/{pool}/history": {
            "get": _get("history", "Series, states and weight changes of a pool", "Plots", *history)
        },
        "/api/v1/pools/{pool}/episodes": {"get": _get("episodes", "A pool's episodes", "Episodes", pool, last)},
        "/api/v1/pools/{pool}/changes": {
            "get": _get("poolChanges", "A pool's last Changes", "Changes", pool, filters[-1])
        },
        "/api/v1/pools/{pool}/nodes/{node}/story": {
            "get": _get("story", "A node's last episode within a week, and what was done about it", "Told", pool, node)
        },
        "/api/v1/pools/{pool}/control": {"post": _control(pool)},
        "/api/v1/changes": {"get": _get("changes", "The audit log", "Changes", *filters)},
        "/api/v1/changes.csv": {"get": _csv(filters)},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Slackwater", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "`slackwater web token add NAME`"}
            },
        },
        "security": [{"token": []}, {}],
    }


def _get(name: str, summary: str, answer: str, *parameters: Json) -> Json:
    return {
        "operationId": name,
        "summary": summary,
        "parameters": list(parameters),
        "responses": {"200": _answer(summary, answer), **_errors(400, 401, 404, 503)},
    }


def _csv(filters: list[Json]) -> Json:
    got = _get("changesCsv", "The audit log as CSV", "Changes", *filters)
    got["responses"]["200"] = {"description": "RFC 4180", "content": {"text/csv": {"schema": {"type": "string"}}}}
    return got


def _control(pool: Json) -> Json:
    body = {"application/json": {"schema": {"$ref": "#/components/schemas/Request"}}}
    return {
        "operationId": "control",
        "summary": "Ask lbengine for something; needs the role operator",
        "parameters": [pool],
        "requestBody": {"required": True, "content": body},
        "responses": {"200": _answer("Done", "Done"), **_errors(400, 401, 403, 404, 409, 413, 503)},
    }


def _answer(text: str, struct: str) -> Json:
    schema = {"$ref": f"#/components/schemas/{struct}"}
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _errors(*codes: int) -> Json:
    texts = {
        400: "Something of the request is wrong",
        401: "Show a token or log in",
        403: "The role does not suffice",
        404: "There is no such pool",
        409: "lbengine refused",
        413: "The request is too large",
        503: "The journal cannot be read, or lbengine does not answer",
    }
    return {str(code): _answer(texts[code], "Error") for code in codes}


def _text(name: str, text: str) -> Json:
    return {"name": name, "in": "query", "description": text, "schema": {"type": "string", "maxLength": 200}}


def _old(name: str, new: str) -> Json:
    return {**_text(name, f"old name of `{new}`, until the next release"), "deprecated": True}


def _number(name: str, text: str, most: float) -> Json:
    schema = {"type": "number", "exclusiveMinimum": 0, "maximum": most}
    return {"name": name, "in": "query", "description": text, "schema": schema}
