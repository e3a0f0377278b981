"""What a pod knows of its cluster: its service account's token, the cluster's certificates, its own namespace.

Read anew for each request, because Kubernetes writes a new token every hour and sometimes new certificates.
"""

import ssl
from pathlib import Path
from typing import NamedTuple

from gateway.routing.discovery.source import Away


class Credentials(NamedTuple):
    """For one request; `namespace` is the pod's own."""

    token: str
    tls: ssl.SSLContext
    namespace: str


class Account:
    """The files of one service account, in their directory."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._trusted = ""
        self._tls: ssl.SSLContext | None = None

    def read(self, *, namespace: str | None) -> Credentials:
        """Return what the files say, but for the namespace where that is given. Blocks: to be called in a thread.

        Raises:
            Away: a file is absent or cannot be used.
        """
        trusted = self._text("ca.crt")
        if self._tls is None or trusted != self._trusted:
            try:
                self._tls = ssl.create_default_context(cadata=trusted)
            except ssl.SSLError as error:
                raise Away(f"{self._directory / 'ca.crt'} has no certificates in PEM") from error
            self._trusted = trusted
        return Credentials(self._text("token"), self._tls, namespace or self._text("namespace"))

    def _text(self, name: str) -> str:
        path = self._directory / name
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError as error:
            raise Away(f"{path} cannot be read: {error.strerror}; is a service account's token mounted?") from error
        except ValueError as error:
            raise Away(f"{path} is not ASCII") from error
        if not text or (name != "ca.crt" and not text.isprintable()):
            raise Away(f"{path} is empty, or of more than one line")
        return text
