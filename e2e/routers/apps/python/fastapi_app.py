"""The resources of package routers in FastAPI, whose routes are Starlette's. Run by uvicorn."""

from urllib.parse import quote

from fastapi import FastAPI, Request, Response

app = FastAPI(openapi_url=None)
ALL = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
READ = ["GET", "HEAD"]


def serve(resource):
    async def handler(request: Request) -> Response:
        saw = request.method + " " + quote(request.scope["path"], errors="surrogateescape")
        device = quote(request.headers.get("x-gatehouse-device", ""))
        return Response(
            f"served {resource}\n",
            headers={"x-served": resource, "x-saw": saw, "x-saw-device": device},
        )

    return handler


for path, methods, resource in [
    ("/v1/products/{id}", READ, "products"),
    ("/v1/telemetry", ["POST"], "telemetry"),
    ("/v1/telemetry/{stream}", ["POST"], "telemetry"),
    ("/v1/telemetry", READ, "telemetry-read"),
    ("/v1/telemetry/{stream}", READ, "telemetry-read"),
    ("/v1/fleet/config", ALL, "fleet-config"),
    ("/v1/me/config", ALL, "me-config"),
    ("/v1/admin/health", ALL, "health"),
    ("/v1/admin/users", ALL, "users"),
    ("/v1/admin/users/{id}", ALL, "users"),
    ("/v1/devices/{id}", READ, "device-read"),
    ("/v1/devices/{id}", ["PUT", "DELETE"], "device"),
    ("/files/{name:path}", ALL, "files"),
]:
    app.add_api_route(path, serve(resource), methods=methods)
