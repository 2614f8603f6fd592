"""YAML as far as JSON goes: no tags, no aliases (a bomb of them is one line), no key twice."""

from __future__ import annotations

from typing import Any

import yaml

__all__ = ["StrictLoader"]


class StrictLoader(yaml.SafeLoader):
    """A safe loader that takes every document for what it says."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuses an alias before it is followed."""
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Refuses a key that is there twice."""
        seen = set()
        for node_of_key, _ in node.value:
            key = self.construct_object(node_of_key, deep=True)
            if not isinstance(key, str):
                raise yaml.YAMLError(f"the key {key!r} is no text")
            if key in seen:
                raise yaml.YAMLError(f"the key {key!r} is there twice")
            seen.add(key)
        return super().construct_mapping(node, deep)
