"""The certificates that an issuer's TLS is verified by: the system's, or those of a file; read again if it changes."""

import ssl
from pathlib import Path

from gateway.identity.fetch import Unreachable


class Authorities:
    """Gives the TLS context for requests to one issuer."""

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        self._read_at_ns = 0
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext | bool:
        """Return a context that trusts the file alone; True, for the system's certificates, where there is no file.

        Raises:
            Unreachable: the file is absent, or holds no certificates in PEM.
        """
        if self._path is None:
            return True
        try:
            changed_at_ns = self._path.stat().st_mtime_ns
            if self._context is None or changed_at_ns != self._read_at_ns:
                self._context = ssl.create_default_context(cafile=self._path)
                self._read_at_ns = changed_at_ns
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise Unreachable(f"the certificates of {self._path} cannot be read") from error
        return self._context
