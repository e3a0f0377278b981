"""Cuts a stream of bytes into lines, wherever its pieces end. Pure."""


class Lines:
    """`feed` it what came. A line may be `most` bytes long."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._begun = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete with this piece; empty ones are left out.

        Raises:
            ValueError: a line is too long.
        """
        searched = len(self._begun)
        self._begun += data
        end = self._begun.rfind(b"\n", searched)
        lines: list[bytes] = []
        if end >= 0:
            lines = [line for line in bytes(self._begun[:end]).split(b"\n") if line.strip()]
            del self._begun[: end + 1]
        if len(self._begun) > self._most or any(len(line) > self._most for line in lines):
            raise ValueError(f"a line of more than {self._most} bytes")
        return lines
