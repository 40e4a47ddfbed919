"""The resources of package routers in Flask, whose routes are Werkzeug's. Run by gunicorn."""

from urllib.parse import quote

from flask import Flask, Response, request
from werkzeug.middleware.proxy_fix import ProxyFix

app = Flask(__name__)
# As behind any proxy: it trusts x-forwarded-prefix and similar headers.
app.wsgi_app = ProxyFix(app.wsgi_app, x_host=1, x_prefix=1)
app.url_map.strict_slashes = False
ALL = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def serve(resource):
    def handler(**_):
        saw = request.method + " " + quote(request.environ["PATH_INFO"].encode("latin-1"))
        device = quote(request.headers.get("x-gatehouse-device", ""))
        return Response(
            f"served {resource}\n",
            headers={"x-served": resource, "x-saw": saw, "x-saw-device": device},
        )

    return handler


for path, methods, resource in [
    ("/v1/products/<id>", ["GET"], "products"),
    ("/v1/telemetry", ["POST"], "telemetry"),
    ("/v1/telemetry/<stream>", ["POST"], "telemetry"),
    ("/v1/telemetry", ["GET"], "telemetry-read"),
    ("/v1/telemetry/<stream>", ["GET"], "telemetry-read"),
    ("/v1/fleet/config", ALL, "fleet-config"),
    ("/v1/me/config", ALL, "me-config"),
    ("/v1/admin/health", ALL, "health"),
    ("/v1/admin/users", ALL, "users"),
    ("/v1/admin/users/<id>", ALL, "users"),
    ("/v1/devices/<id>", ["GET"], "device-read"),
    ("/v1/devices/<id>", ["PUT", "DELETE"], "device"),
    ("/files/<path:name>", ALL, "files"),
]:
    app.add_url_rule(path, f"{methods} {path}", serve(resource), methods=methods)
