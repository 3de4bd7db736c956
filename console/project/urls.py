"""Every path of the console."""

from django.urls import include, path

from api.main import api
from console.admin import site
from console.pages import errors
from console.pages.health import healthz

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("api/v1/", api.urls),
    path("django-admin/", site.urls),
    path("", include("console.pages.urls")),
]

handler400 = errors.bad_request
handler403 = errors.forbidden
handler404 = errors.not_found
handler500 = errors.server_error
