"""What libraries for remote files raise, as sentences without addresses, signatures or keys."""

from __future__ import annotations

from collections.abc import Iterator

from ragbraid.registry.errors import FailureKind, RagbraidError, ServiceError

_REFUSED_KEYS = {"ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "RequestTimeTooSkewed"}
_TRANSIENT_CODES = {"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "503", "500"}
_BY_CLASS: dict[str, tuple[FailureKind, str]] = {
    "NoCredentialsError": ("auth", "there are no credentials for it here"),
    "PartialCredentialsError": ("auth", "a part of its credentials is missing"),
    "CredentialRetrievalError": ("auth", "its credentials cannot be had"),
    "TokenRetrievalError": ("auth", "its credentials have expired"),
    "ClientConnectorDNSError": ("unavailable", "the name of its host cannot be looked up"),
    "ClientConnectorCertificateError": ("failed", "its certificate is not trusted here"),
    "gaierror": ("unavailable", "the name of its host cannot be looked up"),
    "ConnectionRefusedError": ("unavailable", "its server cannot be reached"),
    "TooManyRedirects": ("failed", "it redirects in circles"),
    "IncompleteRead": ("unavailable", "the connection was cut off half-way"),
    "ResponseParserError": ("unavailable", "the connection was cut off half-way"),
    "ClientPayloadError": ("unavailable", "the connection was cut off half-way"),
    "EndpointConnectionError": ("unavailable", "its server cannot be reached"),
    "ClientConnectorError": ("unavailable", "its server cannot be reached"),
    "ConnectTimeoutError": ("timeout", "its server did not answer in time"),
    "ReadTimeoutError": ("timeout", "its server did not answer in time"),
    "TimeoutError": ("timeout", "its server did not answer in time"),
    "PermissionError": ("auth", "access is refused"),
    "ConnectionError": ("unavailable", "the connection was lost"),
    "ClientConnectionError": ("unavailable", "the connection was lost"),
    "HTTPClientError": ("unavailable", "the connection was lost"),
}


class CredentialsRefusedError(ServiceError):
    """The place refuses the credentials as such, so that asking for another file is of no use."""

    default_kind: FailureKind = "auth"


def is_missing(error: BaseException) -> bool:
    """Whether an error says that nothing is there, and not that it could not be asked."""
    if isinstance(error, FileNotFoundError):
        # fsspec says so of a web file for every failure, and keeps the real one as the cause.
        cause = error.__cause__
        return cause is None or isinstance(cause, FileNotFoundError) or _status(cause) == 404 or _code(cause) != ""
    return _status(error) in (404, 410)


def as_service_error(error: Exception, what: str) -> ServiceError:
    """Return the sentence for what a library raised.

    Args:
        error: what it raised.
        what: what was done with which place, such as "`s3://docs/` cannot be listed".
    """
    if isinstance(error, ServiceError):
        return error
    codes = {_code(each) for each in _chain(error)}
    if refused := sorted(codes & _REFUSED_KEYS):
        return CredentialsRefusedError(f"{what}: its credentials are refused ({refused[0]}).", hint=_HINT)
    kind, reason = _explain(error, codes)
    return ServiceError(f"{what}: {reason}.", kind=kind, hint=_HINT if kind == "auth" else None)


_HINT = "see the resource `remote` in ragbraid.toml, and the environment of the process that runs the flow"


def _explain(error: Exception, codes: set[str]) -> tuple[FailureKind, str]:
    if codes & _TRANSIENT_CODES:
        return "unavailable", f"its server is overloaded or broken ({min(codes & _TRANSIENT_CODES)})"
    for each in _chain(error):
        if (status := _status(each)) is not None:
            return _explain_status(status)
        for cls in type(each).__mro__:
            if cls.__name__ in _BY_CLASS:
                return _BY_CLASS[cls.__name__]
    named = sorted(codes - {""})
    return "failed", f"{type(error).__name__}{f' ({named[0]})' if named else ''}"


def _explain_status(status: int) -> tuple[FailureKind, str]:
    if status in (401, 403):
        return "auth", f"access is refused (HTTP {status})"
    if status == 429:
        return "rate_limit", "its server asks for patience (HTTP 429)"
    if status >= 500:
        return "unavailable", f"its server is overloaded or broken (HTTP {status})"
    return "failed", f"its server answers HTTP {status}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what led to it, the most telling first: causes before what wraps them."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links and not isinstance(link, RagbraidError):
        links.append(link)
        link = link.__cause__
    yield from reversed(links)


def _status(error: BaseException) -> int | None:
    status = getattr(error, "status", None)
    return status if isinstance(status, int) and status >= 300 else None


def _code(error: BaseException) -> str:
    """Return the code of an answer of S3, such as `NoSuchBucket`; empty for any other error."""
    response = getattr(error, "response", None)
    details = response.get("Error") if isinstance(response, dict) else None
    return str(details.get("Code", "")) if isinstance(details, dict) else ""
