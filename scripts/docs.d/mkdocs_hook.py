"""What the site needs of our Markdown, as a hook of mkdocs (mkdocs.yml).

Not here: what is generated (commands.py, and others beside it), how a page looks (mkdocs.yml).
"""

from __future__ import annotations

import re

_OUTSIDE = re.compile(r"\[([^]\n]*)\]\(\.\./[^)\s]*\)")  # a link to what is not below docs/
_FENCE = re.compile(r"^(\s*```\w+)[ \t][^`\n]*$", re.MULTILINE)  # such as ```sh run=everyday


def on_page_markdown(markdown: str, **_: object) -> str:
    """Take away links that lead out of the site, and words of fences that are for our tests."""
    return _FENCE.sub(r"\1", _OUTSIDE.sub(r"\1", markdown))
