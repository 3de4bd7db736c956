"""Django's settings, derived from the checked environment. docs: `.env.example`."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from console.project.databases import celery_broker_url, database_from_url, sqlite_database
from console.project.env import EnvError, env_read
from console.project.logs import logging_config

try:
    ENV = env_read(os.environ)
    DATABASES = {
        "default": database_from_url(ENV.database_url, ENV.database_pool_size)
        if ENV.database_url
        else sqlite_database(ENV.state_dir / "console.sqlite3")
    }
except EnvError as error:
    raise ImproperlyConfigured(str(error)) from error

BASE_DIR = Path(__file__).resolve().parents[2]
STATE_DIR = ENV.state_dir
SECRET_KEY = ENV.secret_key
DEBUG = ENV.debug
ALLOWED_HOSTS = list(ENV.allowed_hosts)
CSRF_TRUSTED_ORIGINS = list(ENV.csrf_trusted_origins)
REDIS_URL = ENV.redis_url

INSTALLED_APPS = [
    "django.contrib.admin.apps.SimpleAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "axes",
    "csp",
    "django_htmx",
    "ninja",
    "console",
]
MIDDLEWARE = [
    "console.project.middleware.RequestIdMiddleware",
    "console.project.middleware.ProblemMiddleware",
    "console.project.middleware.HeadersMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "console.project.middleware.StaticMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "console.project.refusals.RefusalsMiddleware",
    "axes.middleware.AxesMiddleware",
]
ROOT_URLCONF = "console.project.urls"
ASGI_APPLICATION = "console.project.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

# -- people and sessions ---------------------------------------------------------------------
AUTH_USER_MODEL = "console.User"
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "login"
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
]
# Ten wrong passwords for a name from an address: none more from there for a quarter of an hour.
# Somebody else's tries lock nobody out.
AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = timedelta(minutes=15)
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True
AXES_USERNAME_CALLABLE = "console.project.throttle.name_fingerprint"
AXES_CLIENT_IP_CALLABLE = "console.project.throttle.client_address"
AXES_LOCKOUT_CALLABLE = "console.project.throttle.locked_out"
AXES_DISABLE_ACCESS_LOG = True
AXES_VERBOSE = False
AXES_ENABLE_ADMIN = False
AUTH_PASSWORD_VALIDATORS = [
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 12},
    },
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
]
SESSION_COOKIE_AGE = 8 * 3600
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Strict"
CSRF_COOKIE_HTTPONLY = True  # pages hand the token to htmx themselves
CSRF_COOKIE_SAMESITE = "Strict"
CSRF_FAILURE_VIEW = "console.pages.errors.csrf_failure"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = ENV.https
# The __Host- prefix needs Secure, which a plain-http loopback console cannot set.
SESSION_COOKIE_NAME = "__Host-sid" if ENV.https else "quiesce_sid"
CSRF_COOKIE_NAME = "__Host-csrf" if ENV.https else "quiesce_csrf"

# -- headers ---------------------------------------------------------------------------------
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
USE_X_FORWARDED_HOST = False
if ENV.trust_proxy:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
if ENV.https:
    SECURE_HSTS_SECONDS = 63_072_000
    SECURE_HSTS_INCLUDE_SUBDOMAINS = True
    SECURE_SSL_REDIRECT = True
    SECURE_REDIRECT_EXEMPT = [r"^api/", r"^healthz$"]  # an API answers, it does not redirect
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'none'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "img-src": ["'self'", "data:"],
        "connect-src": ["'self'"],
        "font-src": ["'self'"],
        "base-uri": ["'none'"],
        "form-action": ["'self'"],
        "frame-ancestors": ["'none'"],
    }
}
MAX_BODY_BYTES = 1 << 20
STAGING_ALLOWANCE_S = ENV.staging_allowance_s
API_RATE_PER_SECOND = ENV.api_rate_per_second
PIECE_BYTES = 8 << 20  # of an uploaded file; a whole one comes in many
UPLOAD_MAX_BYTES = ENV.upload_max_bytes
UPLOAD_KEEP_S = ENV.upload_keep_s
AUDIT_KEY_FILE = ENV.audit_key_file
AUDIT_ANCHORS_FILE = ENV.audit_anchors_file
CURVE_KEY_FILE = ENV.curve_key_file
DATA_UPLOAD_MAX_MEMORY_SIZE = MAX_BODY_BYTES
DATA_UPLOAD_MAX_NUMBER_FIELDS = 200

# -- words, time, files ----------------------------------------------------------------------
LANGUAGE_CODE = "en"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "/static/"
STATICFILES_DIRS = [folder for folder in [BASE_DIR / "static"] if folder.is_dir()]
STATIC_ROOT = ENV.static_root
WHITENOISE_USE_FINDERS = STATIC_ROOT is None
WHITENOISE_AUTOREFRESH = DEBUG

# -- Redis: doorbells, hints, newest snapshots -------------------------------------------------
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {
            # The dict form hands these to redis-py: its own defaults time idle sockets out.
            "hosts": [{"address": REDIS_URL, "socket_timeout": None, "max_connections": 10_000}],
            "prefix": "quiesce.live",
        },
    }
}
CELERY_BROKER_URL = celery_broker_url(REDIS_URL)
# Acknowledged when it starts, because the database is the queue: a message that is lost with its
# worker is rung for again from the outbox, and one that is not held cannot be delivered twice.
# With late acknowledgement a worker of kombu 5.7 ends when Redis is away while a task runs.
CELERY_TASK_ACKS_LATE = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_DISABLE_PREFETCH = True  # a free process fetches; no message waits behind a long job
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": ENV.visibility_timeout_s,
    "unacked_restore_interval": 10,
    "unacked_restore_throttle": 1,
    "socket_keepalive": True,
    "health_check_interval": 10,
    "socket_timeout": 30,
    "socket_connect_timeout": 2,
    # A doorbell may be lost, so publishing tries twice and gives up.
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0.1,
    "interval_max": 0.1,
}
CELERY_TASK_TIME_LIMIT = 900
CELERY_TASK_SOFT_TIME_LIMIT = 840
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = 5
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TASK_DEFAULT_QUEUE = "quiesce.jobs"

LOGGING = logging_config(ENV.log_level)
DEFAULT_EXCEPTION_REPORTER_FILTER = "console.project.reports.ValuesHidden"
