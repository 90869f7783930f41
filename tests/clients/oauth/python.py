"""The official Python SDK signs in by itself: from the refusal of a request without a token to a call of a tool.

    python.py <address of the server>

A line for each check on stdout, `ok` or `FAIL`, which run.sh counts.
"""

import sys
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

REDIRECT = "http://127.0.0.1:9/callback"
MAX_STEPS = 20


class Stored:
    """What a client stores between its requests."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class Person:
    """A person in a browser: follows redirects with cookies to the address of the client."""

    answer: dict[str, str]

    async def open(self, address: str) -> None:
        async with httpx2.AsyncClient(trust_env=False) as browser:
            for _ in range(MAX_STEPS):
                if address.startswith(REDIRECT):
                    break
                response = await browser.get(address)
                if response.next_request is None:
                    raise RuntimeError(f"{response.status_code} {response.text}")
                address = str(response.next_request.url)
            else:
                raise RuntimeError(f"too many redirects, the last to {address}")
        self.answer = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}

    async def come_back(self) -> AuthorizationCodeResult:
        answer = self.answer
        return AuthorizationCodeResult(code=answer["code"], state=answer.get("state"), iss=answer.get("iss"))


async def sign_in(url: str, mode: str) -> None:
    """Signs in and calls a tool."""
    person = Person()
    metadata = OAuthClientMetadata.model_validate(
        {
            "client_name": "client-tests",
            "redirect_uris": [REDIRECT],
            "grant_types": ["authorization_code"],
            "token_endpoint_auth_method": "none",
        }
    )
    auth = OAuthClientProvider(url, metadata, Stored(), person.open, person.come_back)
    async with httpx2.AsyncClient(auth=auth, timeout=60, trust_env=False) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            result = await client.call_tool("run_python", {"code": "print(6 * 7)"})
    stdout = (result.structured_content or {}).get("stdout")
    if stdout != "42\n":
        raise AssertionError(result)


def main() -> None:
    for mode in ("legacy", "auto"):
        sentence = f"Python, {mode}: signs in from the refusal of a request, and calls a tool"
        try:
            anyio.run(sign_in, sys.argv[1], mode)
            print(f"ok   {sentence}", flush=True)
        except BaseException as error:
            print(f"FAIL {sentence}\n     {error!r}", flush=True)
            if isinstance(error, KeyboardInterrupt):
                raise


main()
