"""The API's schemas of one version of Kubernetes, in which a field that is not there is a fault."""

import json
import re
from pathlib import Path

import jsonschema
import referencing
from referencing.jsonschema import DRAFT202012

# By the Prometheus Operator, from 0.48: what we use of it.
SERVICE_MONITOR = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "monitoring.coreos.com/v1"},
        "kind": {"const": "ServiceMonitor"},
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["endpoints", "selector"],
            "properties": {
                "selector": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"matchLabels": {"type": "object"}},
                },
                "endpoints": {"type": "array", "minItems": 1, "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["port"],
                    "properties": {
                        "port": {"type": "string"},
                        "path": {"type": "string"},
                        "interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
                        "authorization": {
                            "type": "object",
                            "additionalProperties": False,
                            "properties": {
                                "type": {"const": "Bearer"},
                                "credentials": {
                                    "type": "object",
                                    "additionalProperties": False,
                                    "required": ["name", "key"],
                                    "properties": {"name": {"type": "string"}, "key": {"type": "string"}},
                                },
                            },
                        },
                    },
                }},
            },
        },
    },
}


class Schemas:
    """The schemas in a folder such as `v1.36.0-local-strict`."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.version = re.match(r"v(\d+\.\d+)", self.folder.name)[1]
        definitions = json.loads((self.folder / "_definitions.json").read_text())
        names = {"_definitions.json", definitions.get("$id", "_definitions.json")}
        resource = referencing.Resource.from_contents(definitions, default_specification=DRAFT202012)
        self.registry = referencing.Registry().with_resources((name, resource) for name in names)

    def has(self, document):
        """Whether this version knows the kind."""
        return self.path(document).exists() or document["kind"] == "ServiceMonitor"

    def path(self, document):
        group, _, version = document["apiVersion"].rpartition("/")
        group = group.partition(".")[0]
        words = [document["kind"].lower(), *([group] if group else []), version]
        return self.folder / f"{'-'.join(words)}.json"

    def faults(self, document):
        """The faults of an object, a line each."""
        if document["kind"] == "ServiceMonitor":
            schema = SERVICE_MONITOR
        else:
            schema = json.loads(self.path(document).read_text())
        validator = jsonschema.validators.Draft202012Validator(schema, registry=self.registry)
        for error in validator.iter_errors(document):
            yield f"{error.json_path}: {error.message[:200]}"
