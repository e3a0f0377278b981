"""YAML in which a key that stands twice is an error: the first of two same-named models would silently vanish."""

from collections.abc import Hashable

import yaml


class NotYaml(ValueError):
    """The text is none, or has a key twice. The message says where, in one line."""


def read(text: str) -> object:
    """Return what the text says.

    Raises:
        NotYaml: it is not YAML.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 a SafeLoader that also refuses duplicate keys
    except (yaml.YAMLError, RecursionError) as error:
        raise NotYaml(f"is not YAML: {' '.join(str(error).split())}") from error


class _Loader(yaml.SafeLoader):
    """A SafeLoader that refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:  # noqa: FBT001, FBT002 the base class's signature
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable) or key in seen:
                problem = f"the key {key!r} stands twice" if isinstance(key, Hashable) else "a key must be plain text"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)
