"""nginx as a plain streaming proxy with keep-alive on both sides: what compiled code needs for the bytes alone."""

from pathlib import Path

_CONFIG = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log warn;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  tcp_nodelay on;
  keepalive_requests 1000000000;
  client_body_buffer_size 256k;
  client_body_temp_path {folder}/nginx-body;
  proxy_temp_path {folder}/nginx-proxy;
  fastcgi_temp_path {folder}/nginx-fastcgi;
  uwsgi_temp_path {folder}/nginx-uwsgi;
  scgi_temp_path {folder}/nginx-scgi;
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 256; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


def command(binary: str, folder: Path, *, port: int, engine: int) -> list[str]:
    """Write nginx's configuration into `folder`; return the command that runs it."""
    path = folder / "nginx.conf"
    path.write_text(_CONFIG.format(folder=folder, port=port, engine=engine))
    return [binary, "-c", str(path), "-e", str(folder / "nginx-error.log")]
