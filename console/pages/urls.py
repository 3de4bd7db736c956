"""Paths of the pages."""

from django.urls import path, register_converter

from console.pages import (
    again,
    audit,
    backend_new,
    backends,
    engine_settings,
    engines,
    flush,
    jobs,
    operate,
    palette,
    pending_list,
    session,
    tokens,
    try_it,
    uploads,
    users,
    weights,
    weights_new,
)
from console.pages.fleet import fleet


class EngineName:
    """As in the model: letters, digits and hyphens."""

    regex = "[a-z0-9][a-z0-9-]{0,62}"

    def to_python(self, value: str) -> str:
        """As it is."""
        return value

    def to_url(self, value: str) -> str:
        """As it is."""
        return value


class Seq(EngineName):
    """An audit number that a database can hold."""

    regex = "[0-9]{1,18}"

    def to_python(self, value: str) -> int:  # type: ignore[override]
        """A whole number."""
        return int(value)

    def to_url(self, value: object) -> str:
        """Its digits."""
        return str(value)


register_converter(EngineName, "engine")
register_converter(Seq, "seq")

urlpatterns = [
    path("", fleet, name="fleet"),
    path("login", session.LogIn.as_view(), name="login"),
    path("logout", session.log_out, name="logout"),
    path("engines/<engine:name>", engines.engine, name="engine"),
    path("engines/<engine:name>/try", try_it.try_it, name="try-it"),
    path("engines/<engine:name>/weights", weights.weights_engine, name="weights-engine"),
    path("engines/<engine:name>/weights/return", weights_new.weights_return, name="weights-return"),
    path("engines/<engine:name>/do/<slug:kind>", operate.operate, name="operate"),
    path("engines/<engine:name>/do/<slug:kind>/plan", operate.operate_plan, name="operate-plan"),
    path("backends", backends.backends, name="backends"),
    path("engines/<engine:name>/backend", backends.backend_engine, name="backend-engine"),
    path("engines/<engine:name>/backend/attach", backend_new.attach, name="backend-attach"),
    path("engines/<engine:name>/backend/plan", backend_new.plan, name="backend-plan"),
    path("engines/<engine:name>/backend/fields", backend_new.fields, name="backend-fields"),
    path("weights", weights.weights, name="weights"),
    path("weights/new", weights_new.weights_new, name="weights-new"),
    path("weights/plan", weights_new.weights_plan, name="weights-plan"),
    path("weights/source", weights_new.weights_source, name="weights-source"),
    path("uploads", uploads.uploads, name="uploads-page"),
    path("uploads/<uuid:upload_id>/delete", uploads.delete, name="upload-delete"),
    path("flush", flush.flush, name="flush"),
    path("flush/plan", flush.flush_plan, name="flush-plan"),
    path("pending", pending_list.pending, name="pending"),
    path("jobs", jobs.jobs, name="jobs"),
    path("jobs/<uuid:job_id>", jobs.job, name="job"),
    path("jobs/<uuid:job_id>/cancel", jobs.cancel, name="job-cancel"),
    path("jobs/<uuid:job_id>/extend", jobs.extend, name="job-extend"),
    path("jobs/<uuid:job_id>/force", jobs.force, name="job-force"),
    path("jobs/<uuid:job_id>/retry", again.retry, name="job-retry"),
    path("audit", audit.audit, name="audit"),
    path("audit/verify", audit.audit_verify, name="audit-verify"),
    path("audit/export", audit.audit_export_file, name="audit-export"),
    path("audit/<seq:seq>", audit.audit_entry, name="audit-entry"),
    path("tokens", tokens.tokens, name="tokens"),
    path("tokens/new", tokens.new, name="token-new"),
    path("tokens/<slug:prefix>/revoke", tokens.revoke, name="token-revoke"),
    path("users", users.users, name="users"),
    path("new-user", users.new, name="user-new"),
    path("users/<str:username>", users.user, name="user"),
    path("users/<str:username>/active", users.active, name="user-active"),
    path("users/<str:username>/password", users.password, name="user-password"),
    path("users/<str:username>/roles", users.give, name="user-roles"),
    path("users/<str:username>/roles/<int:grant_id>/take", users.take, name="user-role-take"),
    path("register", engine_settings.register, name="engine-register"),
    path("engines/<engine:name>/settings", engine_settings.settings, name="engine-settings"),
    path("engines/<engine:name>/remove", engine_settings.remove, name="engine-remove"),
    path("palette", palette.palette, name="palette"),
]
