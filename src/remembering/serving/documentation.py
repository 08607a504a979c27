"""The page at /docs: the OpenAPI description as plain HTML, without scripts."""

from __future__ import annotations

import json
from typing import Any

import jinja2

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem;
  color: #1f2328; background: #fff; }
h2 { margin: 2.5rem 0 .5rem; text-transform: capitalize; }
details { border: 1px solid #d0d7de; border-radius: 8px; margin: .5rem 0; padding: .5rem 1rem; }
summary { cursor: pointer; }
summary b { display: inline-block; min-width: 4.5rem; }
code, pre { font: 14px/1.45 ui-monospace, monospace; }
pre { background: #f6f8fa; border-radius: 6px; padding: .75rem; overflow-x: auto; }
@media (prefers-color-scheme: dark) {
  body { color: #e6edf3; background: #0d1117; }
  details { border-color: #30363d; }
  pre { background: #161b22; }
  a { color: #6cb6ff; }
}
"""
_PAGE = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ info.title }}: HTTP interface</title>
<link rel="stylesheet" href="/docs.css">
</head>
<body>
<h1>{{ info.title }}: HTTP interface</h1>
<p>{{ info.description }}</p>
<p>Machine-readable description: <a href="/openapi.json">openapi.json</a>. Errors are problem
documents (RFC 9457). If the server requires a token, send it as
<code>Authorization: Bearer TOKEN</code>.</p>
{% for tag, operations in tags.items() %}
<h2>{{ tag }}</h2>
{% for operation in operations %}
<details>
<summary><b>{{ operation.method }}</b> <code>{{ operation.path }}</code> {{ operation.summary }}
</summary>
{% if operation.parameters %}
<p>Parameters: {% for name in operation.parameters %}<code>{{ name }}</code> {% endfor %}</p>
{% endif %}
{% for kind, text in operation.bodies.items() %}
<p>Body, <code>{{ kind }}</code>:</p>
<pre>{{ text }}</pre>
{% endfor %}
{% if operation.example %}
<p>Example:</p>
<pre>{{ operation.example }}</pre>
{% endif %}
{% if operation.response %}
<p>Response:</p>
<pre>{{ operation.response }}</pre>
{% endif %}
</details>
{% endfor %}
{% endfor %}
</body>
</html>
"""
)


def render(description: dict[str, Any]) -> str:
    """Return the page for an OpenAPI description."""
    tags: dict[str, list[dict[str, Any]]] = {}
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            tag = operation.get("tags", ["other"])[0]
            tags.setdefault(tag, []).append(_operation(description, path, method, operation))
    return _PAGE.render(info=description["info"], tags=tags)


def _operation(
    description: dict[str, Any], path: str, method: str, operation: dict[str, Any]
) -> dict[str, Any]:
    contents = operation.get("requestBody", {}).get("content", {})
    success: dict[str, Any] = next(
        (answer for status, answer in operation["responses"].items() if status.startswith("2")), {}
    )
    answer = success.get("content", {}).get("application/json", {}).get("schema")
    example = contents.get("application/json", {}).get("example")
    return {
        "method": method.upper(),
        "path": path,
        "summary": operation.get("summary", ""),
        "parameters": [parameter["name"] for parameter in operation.get("parameters", [])],
        "bodies": {
            kind: _text(outline(content["schema"], description))
            for kind, content in contents.items()
        },
        "example": _text(example) if example else "",
        "response": _text(outline(answer, description)) if answer else "",
    }


def outline(schema: dict[str, Any], description: dict[str, Any], depth: int = 0) -> Any:
    """Return the shape of a JSON schema: field names with types.

    >>> outline({"type": "object", "properties": {"n": {"type": "integer"}}}, {})
    {'n': 'integer'}
    """
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return outline(description["components"]["schemas"][name], description, depth + 1)
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        shapes = [outline(option, description, depth + 1) for option in options]
        return next((s for s in shapes if not isinstance(s, str)), " | ".join(map(str, shapes)))
    if schema.get("type") == "array":
        return [outline(schema.get("items", {}), description, depth + 1)]
    if "properties" in schema:
        return {
            key: outline(value, description, depth + 1)
            for key, value in schema["properties"].items()
        }
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if isinstance(schema.get("additionalProperties"), dict):
        return {"NAME": outline(schema["additionalProperties"], description, depth + 1)}
    return schema.get("const", schema.get("type", "any"))


def _text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
