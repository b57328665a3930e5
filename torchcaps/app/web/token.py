"""The token: whoever has the address that `serve` printed may ask, other users of the machine may not.

The page is opened as `/?token=...`. The answer sets a cookie and leads to the same address without the token, which so
is not in what one copies, bookmarks or shows. Programs send the header `Authorization: Bearer TOKEN`.
"""

import hmac
import secrets

from starlette.datastructures import Headers, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import Scope

PARAMETER = "token"


def new_token() -> str:
    return secrets.token_hex(24)


def is_given(token: str, scope: Scope) -> bool:
    """Whether a request has the token, as a cookie, a header or in its address; compared in constant time."""
    headers = Headers(scope=scope)
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    offered = [credentials.strip()] if scheme.lower() in ("bearer", "token") else []
    offered += [value for name, value in cookie_parser(headers.get("cookie", "")).items() if name == _cookie(scope)]
    offered += QueryParams(scope["query_string"]).getlist(PARAMETER)
    return any(hmac.compare_digest(token.encode(), value.encode(errors="replace")) for value in offered)


def exchange(token: str, scope: Scope) -> Response | None:
    """The page asked for with a token is asked for once more without; with the right one, there is a cookie."""
    if (scope["method"], scope["path"]) != ("GET", "/") or PARAMETER not in QueryParams(scope["query_string"]):
        return None
    answer = RedirectResponse("/", 303)
    if is_given(token, scope):
        answer.set_cookie(_cookie(scope), token, httponly=True, samesite="strict")
    return answer


def _cookie(scope: Scope) -> str:
    """Cookies do not tell the ports of a host apart, so that the name does."""
    return f"torchcaps-{(scope.get('server') or ('', 0))[1]}"
