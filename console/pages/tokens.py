"""API tokens: whose, what they may, when they end, when they were used; make one, revoke one."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import timedelta

from django.http import HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from console.access import Act
from console.choices import Via
from console.clock import db_now
from console.exceptions import ConsoleError, Invalid
from console.pages.asking import key_read, sentence
from console.pages.once import is_first
from console.pages.shell import page, page_render, see_other
from console.requests import actor_of, rights_in
from console.selectors.people import token_word, tokens_list, users_list
from console.services.tokens import MadeToken, token_create, token_revoke

DAYS = (90, 30, 7, 1)
# What the class of an act asks of a person; a token confirms nothing.
CLASSES = {
    Act.READ: "A", Act.TRY: "A", Act.AUDIT: "A", Act.PAUSE: "B", Act.STORAGE: "B",
    Act.TOKENS: "B", Act.ENGINES: "B", Act.USERS: "B", Act.FLUSH: "C", Act.CONTROL: "C",
    Act.WEIGHTS: "C", Act.CLEAR: "D", Act.CLOSE: "D",
}  # fmt: skip


@dataclass
class TokenForm:
    """What was typed, and one error a field."""

    owner: str
    name: str = ""
    scopes: list[str] = field(default_factory=lambda: [str(Act.READ)])
    reach: str = ""
    days: str = "90"
    key: str = field(default_factory=lambda: str(uuid.uuid4()))
    errors: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(data: QueryDict, owner: str) -> TokenForm:
        """As posted."""
        return TokenForm(
            owner=data.get("owner", owner),
            name=data.get("name", "").strip(),
            scopes=data.getlist("scopes"),
            reach=data.get("reach", "").strip(),
            days=data.get("days", ""),
            key=key_read(data.get("key", "")),
        )

    def check(self) -> bool:
        """True when it may be tried."""
        if not self.name:
            self.errors["name"] = "Name it, so that it can be told from the others."
        if not self.scopes:
            self.errors["scopes"] = "Choose one at least."
        if self.days not in {str(days) for days in DAYS}:
            self.errors["days"] = "Choose one of the offered lives."
        return not self.errors


def _list_page(request: HttpRequest, made: MadeToken | None = None) -> HttpResponse:
    now, rights = db_now(), rights_in(request)
    shown = request.GET.get("show", "")
    if shown not in ("", "active", "mine"):
        raise Invalid("show must be active or mine")
    found = [(one, token_word(one, now)) for one in tokens_list(rights=rights)]
    live = [one for one, word in found if word in ("active", "expires soon")]
    mine = [one for one, _ in found if one.user_id == rights.user_id]
    rows = [
        (one, word)
        for one, word in found
        if (shown != "active" or one in live) and (shown != "mine" or one in mine)
    ]
    return page_render(
        request,
        "tokens.html",
        nav="tokens",
        title="API tokens",
        status=201 if made else 200,
        context={
            "rows": rows,
            "shown": shown,
            "num_all": len(found),
            "num_mine": len(mine),
            "num_live": len(live),
            "num_soon": sum(word == "expires soon" for _, word in found),
            "made": made,
            "now": now,
        },
    )


@page
@require_safe
def tokens(request: HttpRequest) -> HttpResponse:
    """One's own; for an admin those of everybody."""
    return _list_page(request)


def _form_page(request: HttpRequest, form: TokenForm, status: int = 200) -> HttpResponse:
    rights = rights_in(request)
    rights.require(Act.TOKENS)
    owners = (
        [user.username for user in users_list(rights=rights) if user.is_active]
        if (rights.may(Act.USERS))
        else [form.owner]
    )
    return page_render(
        request,
        "token_new.html",
        nav="tokens",
        title="New API token",
        status=status,
        context={
            "form": form,
            "owners": owners,
            "acts": [(act, CLASSES[act], rights.may(act)) for act in Act],
            "ends": [(str(days), db_now() + timedelta(days=days)) for days in DAYS],
        },
    )


@page
@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """The form; posted, the list with the new token's text, this once."""
    actor = actor_of(request, via=Via.UI)
    if request.method != "POST":
        return _form_page(request, TokenForm(owner=actor.name))
    form = TokenForm.of(request.POST, actor.name)
    if not form.check():
        return _form_page(request, form, 422)
    if not is_first(request, form.key):
        form.errors["form"] = "This form has made a token already; its text is not shown again."
        return _form_page(request, form, 409)
    try:
        made = token_create(
            username=form.owner,
            name=form.name,
            scopes=form.scopes,
            reach=form.reach,
            expires_at=db_now() + timedelta(days=int(form.days)),
            actor=actor,
            process="web",
        )
    except ConsoleError as error:
        form.key = str(uuid.uuid4())
        form.errors["form"] = sentence(error.message)
        return _form_page(request, form, error.status)
    return _list_page(request, made)


@page
@require_POST
def revoke(request: HttpRequest, prefix: str) -> HttpResponseBase:
    """End one at once."""
    token_revoke(
        prefix=prefix,
        reason=request.POST.get("reason", ""),
        actor=actor_of(request, via=Via.UI),
        process="web",
    )
    return see_other(reverse("tokens"))
