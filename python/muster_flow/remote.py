"""Inputs on servers: https://, http:// and s3://. Their version on the server takes the place of a digest of their content."""
import datetime
import hashlib
import hmac
import http.client
import os
import time
import urllib.error
import urllib.parse
import urllib.request

from muster_bench.errors import Refusal
from muster_bench.text import without_secrets

SCHEMES = ("https://", "http://", "s3://")
ATTEMPTS = 5        # with pauses of 1, 2, 4, 8 s, because a server may be away
SILENCE = 10.0      # seconds for an answer
AWAY = {408, 429}   # statuses of a server that cannot answer now, beside 5xx
NO_HEAD = {400, 403, 405, 501}


def is_remote(path):
    return str(path).startswith(SCHEMES)


def at(folder, path):
    """Returns an input as a command gets it: an address, or a path, which may be relative to the folder of results."""
    return str(path) if is_remote(path) else str(folder / path)


def version_of(address):
    """Returns the version of a file on a server: its ETag, or its date and size. The version of a set of records is the version of its MANIFEST."""
    require_plain(address)
    name, manifest = urllib.parse.urlsplit(address).path.rpartition("/")[2], _beside(address, "MANIFEST")
    status = {}
    for place in [address, manifest] if "." in name else [manifest, address]:
        answer = _asked(place)
        if isinstance(answer, int):
            status[place] = answer
            continue
        tag, date, size = (answer.get(header) for header in ("ETag", "Last-Modified", "Content-Length"))
        if tag or date:
            return f"version {tag}" if tag else f"version {date}, {size} bytes"
        raise Refusal(f"'{without_secrets(address)}' cannot be an input (its server sends no ETag and no Last-Modified, so a change would not be seen); use another server, or a copy")
    if status[address] != 404:
        raise Refusal(f"'{without_secrets(address)}' cannot be an input (status {status[address]}); check the address and the key")
    raise Refusal(f"'{without_secrets(address)}' cannot be an input (it is not on its server: status 404); make it, or mend the address")


def require_plain(address):
    """Throws if an address is none, or has a password: it would be in the arguments of commands and in the results."""
    try:
        parts = urllib.parse.urlsplit(address)
        plain = parts.hostname and "@" not in parts.netloc and parts.port != 0 and address.isprintable() and (" " not in address or parts.scheme == "s3")
    except ValueError:   # its text may have the password
        plain = False
    if not plain or "://...@" in without_secrets(address):
        scheme, _, rest = address.partition("://")   # a password may have characters that end an address
        shown = f"{scheme}://...@{rest.rpartition('@')[2]}" if "@" in rest else address
        raise Refusal(f"'{without_secrets(shown)}' cannot be an input (it is no address of a server and a file, or it has a user or a password); "
                      "write an address such as https://server/folder, and put names and passwords into ~/.netrc")


def _beside(address, name):
    path, mark, query = address.partition("?")
    return f"{path.rstrip('/')}/{name}{mark}{query}"


def _asked(address):
    """Returns the headers of a file, or the status 404 or 403: S3 has 403 for an absent file if the key may not list."""
    method = "HEAD"
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(2 ** (attempt - 1))
        try:
            with urllib.request.urlopen(_request(address, method), timeout=SILENCE) as answer:
                return answer.headers
        except urllib.error.HTTPError as error:
            why = f"status {error.code}"
            if method == "HEAD" and error.code in NO_HEAD:
                method = "GET"
                continue
            if error.code in (403, 404):
                return error.code
            if error.code < 500 and error.code not in AWAY:
                raise Refusal(f"'{without_secrets(address)}' cannot be an input ({why}); check the address and the key") from None
        except (OSError, ValueError, http.client.HTTPException) as error:   # the last one: an answer that is no HTTP
            why = str(getattr(error, "reason", error))
    raise Refusal(f"'{without_secrets(address)}' is away ({without_secrets(why)}, asked {ATTEMPTS} times); run the same command when it is back")


def _request(address, method):
    headers = {"Range": "bytes=0-0"} if method == "GET" else {}
    if not address.startswith("s3://"):
        return urllib.request.Request(address, headers=headers, method=method)
    bucket, _, key = address.removeprefix("s3://").partition("/")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    endpoint = (os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "").rstrip("/")
    path = "/" + urllib.parse.quote(key)
    if not endpoint and "." not in bucket:
        endpoint = f"https://{bucket}.s3.{region}.amazonaws.com"
    else:   # Amazon's certificates do not match bucket names with a dot
        endpoint, path = endpoint or f"https://s3.{region}.amazonaws.com", f"/{bucket}{path}"
    return urllib.request.Request(endpoint + path, headers={**headers, **_signed(method, urllib.parse.urlsplit(endpoint), path, region)}, method=method)


def _signed(method, endpoint, path, region):
    """Returns the headers of Amazon's signature, version 4, of a request without a body; none for a public bucket."""
    user, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY", "")
    if not user:
        return {}
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    nothing = hashlib.sha256(b"").hexdigest()
    headers = {"host": endpoint.netloc, "x-amz-content-sha256": nothing, "x-amz-date": now}
    if token := os.environ.get("AWS_SESSION_TOKEN"):
        headers["x-amz-security-token"] = token
    names, scope = ";".join(sorted(headers)), f"{now[:8]}/{region}/s3/aws4_request"
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    asked = f"{method}\n{endpoint.path.rstrip('/')}{path}\n\n{lines}\n{names}\n{nothing}"
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(asked.encode()).hexdigest()}"
    key = f"AWS4{secret}".encode()
    for word in (now[:8], region, "s3", "aws4_request"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return {**headers, "Authorization": f"AWS4-HMAC-SHA256 Credential={user}/{scope}, SignedHeaders={names}, Signature={signature}"}
