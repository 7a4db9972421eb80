"""The JSON schema of a config file, for editors that check and complete TOML."""

from pathlib import Path
from typing import Any

# What config_schema() gives, kept as a file that editors can be pointed to: `make schema` writes it.
SCHEMA = Path(__file__).with_name("config.schema.json")


def config_schema() -> dict[str, Any]:
    """The schema of a config file: that of a whole config, but a file that extends another may leave anything out."""
    from filtergroups.config import Config

    schema = Config.model_json_schema()
    sections = schema["$defs"]
    # A part of [data] may fit several kinds, until it says its own.
    kinds = schema["properties"]["data"].pop("discriminator")["mapping"]
    schema["properties"]["data"]["anyOf"] = schema["properties"]["data"].pop("oneOf")
    whole_data = [
        {"properties": {"kind": {"const": kind}}, "required": sections[_name(reference)].pop("required")}
        for kind, reference in sorted(kinds.items())
    ]
    whole_network = {"required": sections["NetworkConfig"].pop("required")}
    schema["properties"]["extends"] = {
        "description": "another config, or preset:paper: what this file does not say is taken from it",
        "title": "Extends",
        "type": "string",
    }
    schema["if"] = {"required": ["extends"]}
    schema["else"] = {
        "properties": {"data": {"oneOf": whole_data}, "network": whole_network},
        "required": schema.pop("required"),
    }
    return schema


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]
