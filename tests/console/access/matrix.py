"""What each role may do, said a second time and by hand: route by route, topic by topic, command by
command. The product decides by `console.access`; nothing here reads it.

V viewer, A auditor, O operator, P pusher, M admin; "*" also an account without any role.
"""

from __future__ import annotations

ROLES = {"V": "viewer", "A": "auditor", "O": "operator", "P": "pusher", "M": "admin"}

READ = "VAOPM"
AUDIT = "AM"
ADMIN = "M"
FLUSH = "OPM"
WEIGHTS = "OPM"
PAUSE = "OPM"
CONTROL = "OM"
STORAGE = "OM"
TRY = "OM"
ANYBODY = "*VAOPM"
NOBODY = ""

# (method, path): who. {…} are objects of the engine `local` or nobody's; see test_matrix.
API = {
    ("GET", "/engines"): READ,
    ("POST", "/engines"): ADMIN,
    ("GET", "/keys"): READ,
    ("GET", "/engines/{name}"): READ,
    ("PATCH", "/engines/{name}"): ADMIN,
    ("DELETE", "/engines/{name}"): ADMIN,
    ("GET", "/engines/{name}/checkpoints"): WEIGHTS,
    ("GET", "/backends"): ANYBODY,
    ("GET", "/jobs"): READ,
    ("POST", "/jobs"): FLUSH,  # a flush; the kinds have rows of their own below
    ("GET", "/jobs/{job_id}"): READ,
    ("POST", "/jobs/{job_id}/cancel"): CONTROL,  # of another's flush: a pusher may not
    ("POST", "/jobs/{job_id}/extend"): CONTROL,
    ("POST", "/jobs/{job_id}/force"): CONTROL,
    ("POST", "/jobs/{job_id}/retry"): FLUSH,
    ("POST", "/jobs/{job_id}/undo"): FLUSH,
    ("GET", "/uploads"): READ,
    ("POST", "/uploads"): WEIGHTS,
    ("GET", "/uploads/{upload_id}"): READ,
    ("PATCH", "/uploads/{upload_id}"): WEIGHTS,
    ("DELETE", "/uploads/{upload_id}"): WEIGHTS,
    ("GET", "/audit"): AUDIT,
    ("GET", "/audit/{seq}"): AUDIT,
    ("GET", "/audit/head"): AUDIT,
    ("GET", "/audit/verify"): AUDIT,
    ("GET", "/audit/export"): AUDIT,
    ("GET", "/me"): ANYBODY,
    ("GET", "/events"): READ,
    ("GET", "/tokens"): READ,
    ("POST", "/tokens"): READ,
    ("POST", "/tokens/{prefix}/revoke"): ADMIN,  # somebody else's: not there for others
    ("GET", "/users"): ADMIN,
    ("POST", "/users"): ADMIN,
    ("GET", "/users/{username}"): ADMIN,
    ("PATCH", "/users/{username}"): ADMIN,
    ("POST", "/users/{username}/grants"): ADMIN,
    ("DELETE", "/users/{username}/grants/{grant_id}"): ADMIN,
}
# Whoever may not does not learn that it is there.
HIDDEN = {("POST", "/tokens/{prefix}/revoke"), ("POST", "token-revoke")}

KINDS = {
    "flush_cache": FLUSH,
    "update_weights_from_disk": WEIGHTS,
    "update_weights_from_tensor": WEIGHTS,
    "update_weights_from_distributed": WEIGHTS,
    "update_weight_version": WEIGHTS,
    "pause_generation": PAUSE,
    "continue_generation": PAUSE,
    "abort_requests": CONTROL,
    "release_memory": CONTROL,
    "resume_memory": CONTROL,
    "attach_storage_backend": STORAGE,
    "detach_storage_backend": STORAGE,
    "clear_storage_backend": STORAGE,
    "set_cache_policies": STORAGE,
    "repair": CONTROL,
}

# (method, name of the URL): who.
PAGES = {
    ("GET", "fleet"): READ,
    ("GET", "engine"): READ,
    ("POST", "try-it"): TRY,
    ("GET", "weights-engine"): READ,
    ("GET", "weights-return"): WEIGHTS,
    ("POST", "weights-return"): WEIGHTS,
    ("GET", "operate"): PAUSE,  # a pause
    ("POST", "operate"): PAUSE,
    ("GET", "operate-plan"): READ,
    ("GET", "backends"): READ,
    ("GET", "backend-engine"): READ,
    ("GET", "backend-attach"): STORAGE,
    ("POST", "backend-attach"): STORAGE,
    ("POST", "backend-plan"): STORAGE,
    ("GET", "backend-fields"): STORAGE,
    ("GET", "weights"): READ,
    ("GET", "weights-new"): WEIGHTS,
    ("POST", "weights-new"): WEIGHTS,
    ("GET", "weights-plan"): WEIGHTS,
    ("GET", "weights-source"): WEIGHTS,
    ("GET", "uploads-page"): READ,
    ("POST", "upload-delete"): WEIGHTS,
    ("GET", "flush"): FLUSH,
    ("POST", "flush"): FLUSH,
    ("GET", "flush-plan"): READ,
    ("GET", "jobs"): READ,
    ("GET", "pending"): READ,
    ("GET", "job"): READ,
    ("POST", "job-cancel"): CONTROL,
    ("POST", "job-extend"): CONTROL,
    ("POST", "job-force"): CONTROL,
    ("GET", "job-retry"): FLUSH,
    ("POST", "job-retry"): FLUSH,
    ("GET", "audit"): AUDIT,
    ("GET", "audit-verify"): AUDIT,
    ("POST", "audit-verify"): AUDIT,
    ("GET", "audit-export"): AUDIT,
    ("GET", "audit-entry"): AUDIT,
    ("GET", "palette"): READ,
    ("GET", "tokens"): READ,
    ("GET", "token-new"): READ,
    ("POST", "token-new"): READ,
    ("POST", "token-revoke"): ADMIN,
    ("GET", "users"): ANYBODY,
    ("GET", "user-new"): ADMIN,
    ("POST", "user-new"): ADMIN,
    ("GET", "user"): ADMIN,
    ("POST", "user-active"): ADMIN,
    ("POST", "user-password"): ADMIN,
    ("POST", "user-roles"): ADMIN,
    ("POST", "user-role-take"): ADMIN,
    ("GET", "engine-register"): ADMIN,
    ("POST", "engine-register"): ADMIN,
    ("GET", "engine-settings"): ADMIN,
    ("POST", "engine-settings"): ADMIN,
    ("POST", "engine-remove"): ADMIN,
}
# No log-in asked for: the way in and out, the pulse, the API's own description.
PUBLIC = {"login", "logout", "healthz", "openapi-json", "openapi-view", "api-root"}

TOPICS = {"fleet": READ, "jobs": READ, "pending": READ, "engine": READ, "job": READ}

# Arguments with which a command is tried, and who may run it with --as.
COMMANDS = {
    "create_user": ("new.person --service", ADMIN),
    "reset_password": ("someone", ADMIN),
    "set_user": ("someone --disable", ADMIN),
    "give_role": ("someone viewer --on env=x", ADMIN),
    "take_role": ("someone viewer", ADMIN),
    "create_token": ("{self} ci", READ),
    "revoke_token": ("{other_token}", ADMIN),
    "register_engine": ("new ipc:///n/c.sock ipc:///n/e.sock", ADMIN),
    "replace_audit_key": ("", ADMIN),
    "close_audit_segment": ("--before 2020-01-01 --to {folder}", ADMIN),
    "restrict_role": ("nobody", ADMIN),
}
ZERO = "00000000-0000-4000-8000-000000000000"

# The console's own processes and its first start: they act for nobody.
PROCESSES = {"prepare_state", "reconcile", "relay"}
