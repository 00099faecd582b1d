"""One HTML file with style, script and data inside, which needs no network: its policy allows exactly this style and
this script."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from anaphor.plain_values import replace_nonfinite


def embed(markup: str, styles: Sequence[str], scripts: Sequence[str], content: Mapping[str, Any]) -> str:
    """The markup with the parts in place of `@policy@`, `@style@`, `@script@` and `@data@`."""
    style = "\n".join(styles)
    script = "(() => {\n" + '"use strict";\n' + "\n".join(scripts) + "})();\n"
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; img-src data:; "
        f"base-uri 'none'; form-action 'none'"
    )
    # Inside a script element only this character could end the element or start a comment.
    data = json.dumps(replace_nonfinite(content), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {"policy": policy, "style": style, "script": script, "data": data}
    # In one pass: inserted text may look like a placeholder.
    return re.sub(r"@(policy|style|script|data)@", lambda match: parts[match[1]], markup)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
