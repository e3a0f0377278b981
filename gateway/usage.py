"""GET /v1/usage: what the caller's own tenant used, from the ledger."""

from urllib.parse import parse_qsl

from gateway.admission.ledger.query import of_tenant
from gateway.admission.ledger.reader import LedgerReader
from gateway.client.answer import Answer
from gateway.client.request import Request
from gateway.errors import CONTENT_TYPE, BadRequest
from gateway.pipeline import Pipeline, identifying
from gateway.trail import Trail

# Far more than there are: each may stand once.
_MAX_PARAMETERS = 16


class UsagePage:
    """Shows usage to authenticated callers."""

    def __init__(self, reader: LedgerReader, pipeline: Pipeline) -> None:
        self._reader = reader
        self._pipeline = pipeline

    async def show(self, request: Request, answer: Answer, trail: Trail) -> None:
        """Answer with the rows of the days and groups that are asked for."""
        principal = await self._pipeline.authenticate(request, trail)
        query = of_tenant(principal.tenant, _parameters(request.target), today=self._reader.today())
        body = await self._reader.page(query)
        answer.whole(200, f"Content-Type: {CONTENT_TYPE}\r\n{identifying(trail)}", body)


def _parameters(target: bytes) -> list[tuple[str, str]]:
    text = target.partition(b"?")[2].decode("ascii", "backslashreplace")
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS)
    except ValueError as error:
        raise BadRequest(f"The query has more than {_MAX_PARAMETERS} parameters; send each once.") from error
