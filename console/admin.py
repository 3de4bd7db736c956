"""Django's own admin, for admins: every row to look at, none to change.

What changes anything goes through the services, with its entry; here there is no such way.
"""

from __future__ import annotations

from typing import Any  # Django's admin takes contexts of anything

from django.contrib import admin
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse

from console.access import Act
from console.choices import Via
from console.models import (
    ApiToken,
    AuditCheck,
    AuditEntry,
    AuditSegment,
    Engine,
    Job,
    JobRankResult,
    RoleGrant,
    Upload,
    User,
)
from console.pages.session import log_out
from console.requests import actor_of, rights_in
from console.services.audit_reads import audit_read


class ConsoleAdminSite(admin.AdminSite):
    """Decided as everything else is: who may change users may look at every row."""

    site_header = site_title = "Quiesce, all rows"
    index_title = "To look at; changes go through the console"
    enable_nav_sidebar = False

    def has_permission(self, request: HttpRequest) -> bool:
        """For admins of the whole fleet."""
        return rights_in(request).may_everywhere(Act.USERS)

    def login(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The console's own log-in, with its throttle and its record."""
        if request.user.is_authenticated:
            raise PermissionDenied
        return redirect_to_login(request.GET.get("next", request.path))

    def logout(  # type: ignore[override]
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The console's own, which closes sockets."""
        return log_out(request)

    def password_change(  # type: ignore[override]
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """By the service only, which ends sessions."""
        raise PermissionDenied


class ReadOnly(admin.ModelAdmin):  # type: ignore[type-arg]  # generic for mypy only
    """Rows to look at."""

    show_full_result_count = False
    list_per_page = 50

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """As the site."""
        return rights_in(request).may_everywhere(Act.USERS)

    def has_module_permission(self, request: HttpRequest) -> bool:
        """As the site."""
        return rights_in(request).may_everywhere(Act.USERS)

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Never."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Never."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Never."""
        return False


class JobAdmin(ReadOnly):
    """Jobs."""

    list_display = ("id", "created_at", "state", "kind", "engine", "requested_by_name", "via")
    list_filter = ("state", "kind", "via")
    list_select_related = ("engine",)


class AuditAdmin(ReadOnly):
    """The audit log; who reads it here is on record as on its pages."""

    list_display = ("seq", "created_at", "action", "actor_name", "via", "engine_name", "result")
    list_filter = ("stage", "via", "result")
    search_fields = ("actor_name__exact", "action__startswith", "request_id__exact")

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Note the reader."""
        audit_read(actor=actor_of(request, via=Via.UI))
        return super().changelist_view(request, extra_context)

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Note the reader."""
        audit_read(actor=actor_of(request, via=Via.UI))
        return super().changeform_view(request, object_id, form_url, extra_context)


class TokenAdmin(ReadOnly):
    """Tokens, without the hash."""

    exclude = ("digest",)
    list_display = ("name", "prefix", "user", "created_at", "expires_at", "last_used_at")


class UserAdmin(ReadOnly):
    """People, without the hash."""

    exclude = ("password",)
    list_display = ("username", "is_active", "is_service", "last_login")


class EngineAdmin(ReadOnly):
    """Engines."""

    list_display = ("name", "enabled", "removed_at", "control_address")


site = ConsoleAdminSite(name="admin")
site.register(Job, JobAdmin)
site.register(AuditEntry, AuditAdmin)
site.register(ApiToken, TokenAdmin)
site.register(User, UserAdmin)
site.register(Engine, EngineAdmin)
site.register([AuditCheck, AuditSegment, JobRankResult, RoleGrant, Upload], ReadOnly)
