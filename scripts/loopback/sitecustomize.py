"""Ray's metrics ask for no token, and Ray has them listen on every address: on a node they listen on loopback.

Python imports this file as it starts, wherever `scripts/node` has put its folder on the path. Only Ray's own processes
that export metrics are changed: their WSGI servers, which name no address.
"""

import sys

EXPORTERS = ("/ray/dashboard/", "/ray/autoscaler/")

if any(part in argument for argument in sys.orig_argv for part in EXPORTERS):
    from wsgiref import simple_server

    def _bind(server: simple_server.WSGIServer) -> None:
        server.server_address = ("127.0.0.1", server.server_address[1])
        _bind_there(server)

    _bind_there = simple_server.WSGIServer.server_bind
    simple_server.WSGIServer.server_bind = _bind  # type: ignore[method-assign]
