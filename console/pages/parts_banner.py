"""The banner of a console of which a part is down: which one, and what that means for this page."""

from __future__ import annotations

from collections.abc import Mapping

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from console.templatetags.q_tags import icon

_MEANS = {
    "redis": (
        "Redis does not answer",
        "This page is made from the database: what engines do at this moment is not known. Jobs "
        "that you ask for are kept, and begin when it is back.",
    ),
    "worker": ("No worker runs", "Jobs that you ask for are kept, and begin when one does."),
    "relay": ("The relay does not run", "What engines show is as of when it stopped."),
    "reconciler": (
        "The reconciler does not run",
        "A job whose end is not known stays so, and no head of the audit log is signed.",
    ),
}


def parts_banner(parts: Mapping[str, bool]) -> SafeString:
    """Nothing while every part is up. Without Redis no other part can be heard."""
    down = [name for name in _MEANS if not parts[name]]
    down = down[:1] if "redis" in down else down
    if not down:
        return SafeString("")
    return format_html(
        '<div class="banner b-warn" role="status" data-key="{}">{}<div>{}</div></div>',
        "|".join(down),
        icon("alert-triangle"),
        format_html_join("", "<p><b>{}.</b> {}</p>", (_MEANS[name] for name in down)),
    )
