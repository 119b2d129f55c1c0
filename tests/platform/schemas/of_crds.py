#!/usr/bin/python3
"""Makes crds.json from CustomResourceDefinitions and documents: of_crds.py "COMMENT" DOCUMENTS.yaml... -- CRD.yaml... [SWAGGER.json] >crds.json
A kind whose CRD has no schema (Argo Events') is read from its project's OpenAPI definitions.

The parts that a cluster checks stay: names, types, patterns, required and listed values of the fields in the documents, and only the names
of other fields. Unknown names are errors, as for an API server with strict validation."""
import json
import sys

import yaml

KEPT = ("type", "enum", "pattern", "required", "minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum", "anyOf", "allOf", "oneOf", "format")


def kept(schema, values):
    """Returns the part of a schema that these values need."""
    if "$ref" in schema:
        schema = named[schema["$ref"].rpartition("/")[2]]
    if schema.get("format") == "int-or-string":
        schema = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    part = {key: schema[key] for key in KEPT if key in schema and not (key == "format" and schema[key] in ("int32", "int64"))}
    if schema.get("x-kubernetes-int-or-string"):
        part.pop("type", None)
    if "properties" in schema:
        part["properties"] = {}
        for name, each in schema["properties"].items():
            inner = [value[name] for value in values if isinstance(value, dict) and name in value]
            part["properties"][name] = {"type": "object"} if name == "metadata" else kept(each, inner) if inner else {}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            part["additionalProperties"] = False
    elif isinstance(schema.get("additionalProperties"), dict):
        part["additionalProperties"] = kept(schema["additionalProperties"], [inner for value in values if isinstance(value, dict) for inner in value.values()])
    if "items" in schema:
        part["items"] = kept(schema["items"], [inner for value in values if isinstance(value, list) for inner in value])
    return part


def read(paths):
    for path in paths:
        with open(path, encoding="utf-8") as file:
            yield from filter(None, yaml.load_all(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


comment, *files = sys.argv[1:]
at = files.index("--")
documents, found, named = list(read(files[:at])), {}, {}
for path in files[at + 1:]:
    if path.endswith(".json"):
        with open(path, encoding="utf-8") as file:
            named.update(json.load(file)["definitions"])
for crd in read(path for path in files[at + 1:] if not path.endswith(".json")):
    kind = crd["spec"]["names"]["kind"]
    its = [each for each in documents if each["kind"] == kind]
    for version in crd["spec"]["versions"]:
        if its and its[0]["apiVersion"] == f"{crd['spec']['group']}/{version['name']}":
            schema = version["schema"]["openAPIV3Schema"]
            if schema["properties"]["spec"].get("x-kubernetes-preserve-unknown-fields"):
                schema = next(each for name, each in named.items() if name.endswith(f".events.v1alpha1.{kind}"))
            found[kind] = kept(schema, its)
            found[kind]["properties"]["apiVersion"] = {"enum": [its[0]["apiVersion"]]}
            found[kind]["properties"]["kind"] = {"enum": [kind]}
            found[kind]["required"] = ["apiVersion", "kind", "metadata"]
lines = ",\n".join(f"  {json.dumps(kind)}: {json.dumps(schema)}" for kind, schema in sorted(found.items()))
print(f'{{\n "$comment": {json.dumps(comment)},\n "$schema": "http://json-schema.org/draft-07/schema#",\n "definitions": {{\n{lines}\n }}\n}}')
