"""The resources of package routers in Django, some as path() and some as re_path(), whose $
also stands before a last newline. Run by waitress."""

from urllib.parse import quote

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, HttpResponseNotAllowed
from django.urls import path, re_path

settings.configure(
    ALLOWED_HOSTS=["*"],
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="not one",
    USE_X_FORWARDED_HOST=True,
)


def serve(resource=None, **by_method):
    """A view; by_method names resources that only some methods are for."""

    def view(request, **_):
        found = resource or by_method.get("GET" if request.method == "HEAD" else request.method)
        if not found:
            return HttpResponseNotAllowed(by_method)
        return HttpResponse(
            f"served {found}\n",
            headers={
                "x-served": found,
                "x-saw": request.method + " " + quote(request.path_info),
                "x-saw-device": quote(request.headers.get("x-gatehouse-device", "")),
            },
        )

    return view


telemetry = serve(POST="telemetry", GET="telemetry-read")
urlpatterns = [
    path("v1/products/<id>", serve(GET="products")),
    path("v1/telemetry", telemetry),
    re_path(r"^v1/telemetry/(?P<stream>[^/]+)$", telemetry),
    re_path(r"^v1/fleet/config/?$", serve("fleet-config")),
    path("v1/me/config", serve("me-config")),
    path("v1/me/config/", serve("me-config")),
    path("v1/admin/health", serve("health")),
    re_path(r"^v1/admin/users$", serve("users")),
    path("v1/admin/users/<id>", serve("users")),
    path("v1/devices/<id>", serve(GET="device-read", PUT="device", DELETE="device")),
    path("files/<path:name>", serve("files")),
]
app = get_wsgi_application()
