"""The HTTP server of the dashboard: its requests (openapi.json describes them too), and the refused ones."""
import asyncio
import contextlib
import hmac
import ipaddress
import json
import logging
import math
import os
import pathlib
import secrets
import signal
import socket
import sys
import time
import urllib.parse

from aiohttp import web

from ..errors import FINISHED, Refusal
from ..files import PRIVATE, digest_of, make_folder, write_whole, writing
from ..runner import MARKER
from .connections import AT_ONCE, Connections
from .exporter import Exporter
from .runs import Runs, attempt_of, files_in
from .spans import Traces, step
from .start import Starter
from .workflows import Workflows

HERE = pathlib.Path(__file__).parent
POLICY = ("default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self' 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'self'; "
          "frame-ancestors 'none'")
FOREIGN = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"    # for files that runs have written
MOST_POSTED, MOST_METRICS = 4 << 20, 64 << 20     # bytes of a request; bytes that the workers of a run may post
MOST_BODIES = 16                                  # bodies that are read at a time
# seconds for a client to send a body, and to receive a reply that is no file
IN_TIME = 30.0


class Dashboard:
    def __init__(self, folder, places, address, token):
        self.token, self.connections = token, None
        self.cookie = f"muster_{digest_of(str(pathlib.Path(folder).absolute()))[:8]}"
        self.runs, self.traces, self.workflows = Runs(folder), Traces(folder), Workflows(Runs(folder).folder)
        self.starter, self.exporter = Starter(folder, places, address, token), Exporter(self.runs, self.traces)
        self._reading, self._bodies = asyncio.Lock(), asyncio.Semaphore(MOST_BODIES)

    def app(self):
        app = web.Application(middlewares=[self.guard], client_max_size=MOST_POSTED)
        app.add_routes([
            web.get("/", self.page), web.get("/{name:dashboard[.](?:js|css)}", self.page), web.get("/metrics", self.metrics),
            web.get("/api/openapi.json", self.openapi), web.get("/api/presets", self.presets),
            web.get("/api/runs", self.list), web.post("/api/runs", self.start), web.get("/api/runs/{folder}", self.folder),
            web.post("/api/runs/{folder}/stop", self.stop), web.post("/api/runs/{folder}/continue", self.go_on),
            web.get("/api/runs/{folder}/files/{path:.+}", self.file), web.get("/api/runs/{folder}/{run}", self.run),
            web.get("/api/runs/{folder}/{run}/log", self.log), web.get("/api/runs/{folder}/{run}/step", self.step),
            web.get("/api/runs/{folder}/{run}/files/{path:.+}", self.file), web.post("/api/runs/{folder}/{run}/metrics", self.post_metrics),
            web.get("/api/compare", self.compare), web.post("/api/v2/spans", self.post_spans),
            web.get("/api/workflows", self.list_workflows), web.get("/api/workflows/{folder}/{model}/{version}", self.lineage),
            web.get("/api/traces", self.list_traces), web.get("/api/traces/{trace}", self.trace)])
        return app

    # ---- refused requests ----

    @web.middleware
    async def guard(self, request, handler):
        """Replies here, so that the connection is marked as busy until the reply is sent."""
        with self.connections.busy(request.protocol) if self.connections else contextlib.nullcontext():
            response = await self._answer(request, handler)
            response.headers.update({"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin",
                                     "Cache-Control": response.headers.get("Cache-Control", "no-cache")})
            response.headers.setdefault("Content-Security-Policy", POLICY.format(nonce="none"))
            try:
                await asyncio.wait_for(_send(request, response), None if isinstance(response, _File) else IN_TIME)
            except asyncio.TimeoutError:
                if request.transport is not None:
                    request.transport.abort()
            except ConnectionError:
                pass
            return response

    async def _answer(self, request, handler):
        try:
            self._check(request)
            return await handler(request)
        except Refusal as refusal:
            response = _error(getattr(refusal, "http", 400), refusal)
            if response.status in (401, 403):
                response.force_close()   # closes the connection: queued requests on it would wait here without limit
        except web.HTTPRequestEntityTooLarge:
            response = _error(413, f"the request is too long (at most {MOST_POSTED:,} bytes); send less at a time")
        except web.HTTPException as error:
            response = _error(error.status, f"{request.method} {request.path[:200]} is not answered ({error.reason}); see /api/openapi.json")
        except Exception:  # an internal error: it is logged, and the next request is served
            logging.exception("%s %s", request.method, request.path)
            response = _error(500, "the dashboard failed (its log says why); try again")
        return response

    def _check(self, request):
        origin = request.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != request.host:
            raise _refused(403, f"a page of '{origin[:80]}' may not ask (its origin is another one); open the dashboard itself")
        if not (request.path == "/" and "token" in request.query):
            kind, _, shown = request.headers.get("Authorization", "").partition(" ")
            shown = shown if kind.lower() == "bearer" else urllib.parse.unquote(request.cookies.get(self.cookie, ""))
            if not self._is_token(shown):
                raise _refused(401, "the token is missing or another one; open the address that muster-bench serve has printed, or send 'Authorization: Bearer TOKEN'")

    def _is_token(self, shown):
        return hmac.compare_digest(shown.encode(errors="surrogatepass"), self.token.encode(errors="surrogatepass"))

    # ---- the page ----

    async def page(self, request):
        if "token" in request.query:   # the browser keeps it, and its address bar loses it
            if not self._is_token(request.query["token"]):
                raise _refused(401, "the token is another one; open the address that muster-bench serve has printed")
            response = web.Response(status=303, headers={"Location": "/"})
            response.set_cookie(self.cookie, urllib.parse.quote(self.token, safe=""), httponly=True, samesite="Strict", max_age=30 * 86400)
            return response
        name = request.match_info.get("name", "index.html")
        text = (HERE / name).read_text(encoding="utf-8")
        if name.endswith(".css"):
            text = (HERE.parent / "page.css").read_text(encoding="utf-8") + text
        nonce = secrets.token_urlsafe(16)   # for the page's own script; nothing else that this origin sends is a script
        return web.Response(text=text.replace("{nonce}", nonce), content_type={"html": "text/html", "js": "text/javascript", "css": "text/css"}[name.rpartition(".")[2]],
                            headers={"Content-Security-Policy": POLICY.format(nonce=nonce), "Cache-Control": "no-store" if name == "index.html" else "no-cache"})

    async def openapi(self, request):
        return web.Response(text=(HERE / "openapi.json").read_text(encoding="utf-8"), content_type="application/json")

    # ---- runs ----

    async def _read(self, call, *words):
        """Reads files outside the event loop, one request at a time: the cached data belongs to no thread."""
        async with self._reading:
            return await asyncio.to_thread(call, *words)

    async def presets(self, request):
        return _json(request, {"presets": await self._read(self.starter.presets)})

    async def list(self, request):
        return _json(request, {"runs": await self._read(self.runs.list)})

    async def run(self, request):
        return _json(request, await self._read(self.runs.run, *_names(request)))

    async def folder(self, request):
        folder = request.match_info["folder"]
        home = self.runs.home(folder)
        return _json(request, {"folder": folder, "content": self.runs.content(folder), "said": self.starter.last_line_of(folder),
                               "files": files_in(home, [path for path in home.iterdir() if path.name not in ("lock", MARKER)])})

    async def log(self, request):
        return _json(request, await self._read(self.runs.log, *_names(request), request.query.get("worker", ""), _number(request, "offset", -1)))

    async def step(self, request):
        attempt = attempt_of(self.runs.home(*_names(request)))
        return _json(request, await asyncio.to_thread(step, attempt / "trace.json", _number(request, "number", 0)))

    async def compare(self, request):
        return _json(request, await self._read(self.runs.compare, *[_two(request, name) for name in ("first", "second")]))

    async def file(self, request):
        """Sends a file by the system's sendfile, so that a long file takes no memory here. The report of a folder is
        shown. Any other file is sent as a text attachment, because a run has written it."""
        path, names = request.match_info["path"], _names(request)
        file = self.runs.file(path, *names)
        is_report = path == "report.html" and len(names) == 1
        response = _File(f"/proc/self/fd/{file.fileno()}", headers={
            "Content-Security-Policy": FOREIGN, "Content-Type": f"text/{'html' if is_report else 'plain'}; charset=utf-8",
            "Content-Disposition": f"{'inline' if is_report else 'attachment'}; filename*=UTF-8''{urllib.parse.quote(path.rpartition('/')[2])}"})
        response.held = file   # keeps the file open while it is sent
        return response

    async def start(self, request):
        folder = await asyncio.to_thread(self.starter.start, await self._body(request))
        return web.json_response({"folder": folder}, status=201)

    async def stop(self, request):
        self.starter.stop(request.match_info["folder"])
        return web.json_response({"folder": request.match_info["folder"]}, status=202)

    async def go_on(self, request):
        return web.json_response({"folder": await asyncio.to_thread(self.starter.go_on, request.match_info["folder"])}, status=201)

    # ---- metrics and traces from workers, and the scrape of Prometheus ----

    async def _body(self, request):
        if request.content_type != "application/json":
            raise Refusal(f"the request is '{request.content_type[:80]}' (it has to be application/json); send JSON")
        try:
            async with self._bodies:
                return json.loads(await asyncio.wait_for(request.read(), IN_TIME), parse_constant=_no_number)
        except asyncio.TimeoutError:
            raise _refused(408, f"the request did not come within {IN_TIME:g} s; send it again") from None
        except (ValueError, RecursionError) as error:
            raise Refusal(f"the request is no JSON ({str(error)[:120]}); mend it") from None

    async def post_metrics(self, request):
        home = self.runs.home(*_names(request))
        lines = [_posted(row) for row in _listed(await self._body(request))]
        path = attempt_of(home) / "posted.jsonl"
        if (path.stat().st_size if path.exists() else 0) > MOST_METRICS:
            raise Refusal(f"this run has posted more than {MOST_METRICS:,} bytes (no more are kept); post less often")
        with writing(path), open(path, "a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))
        return web.json_response({"kept": len(lines)}, status=202)

    async def post_spans(self, request):
        await asyncio.to_thread(self.traces.add, await self._body(request))
        return web.Response(status=202)

    async def list_traces(self, request):
        return _json(request, {"traces": await self._read(self.traces.list)})

    async def trace(self, request):
        return _json(request, await self._read(self.traces.trace, request.match_info["trace"]))

    async def list_workflows(self, request):
        return _json(request, {"workflows": await self._read(self.workflows.list)})

    async def lineage(self, request):
        page = await self._read(self.workflows.lineage, *[request.match_info[name] for name in ("folder", "model", "version")])
        return web.Response(text=page, content_type="text/html", headers={"Content-Security-Policy": FOREIGN})

    async def metrics(self, request):
        return web.Response(body=await self._read(self.exporter.text), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def _refused(status, text):
    refusal = Refusal(text)
    refusal.http = status
    return refusal


def _error(status, text):
    return web.Response(status=status, text=json.dumps({"error": " ".join(str(text).split())}) + "\n", content_type="application/json")


class _File(web.FileResponse):
    """A file that is sent once: aiohttp prepares such a response again."""

    async def prepare(self, request):
        return None if self.prepared else await super().prepare(request)


async def _send(request, response):
    await response.prepare(request)
    await response.write_eof()


def _finite(value):
    """Returns the value with null for numbers that JSON lacks."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json(request, value):
    """Returns the value as JSON, or status 304 if it has not changed since the client's last request."""
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), allow_nan=False)
    tag = f'"{digest_of(text)[:16]}"'
    if request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers={"ETag": tag})
    return web.Response(text=text, content_type="application/json", headers={"ETag": tag})


def _names(request):
    return [request.match_info[name] for name in ("folder", "run") if name in request.match_info]


def _two(request, name):
    parts = request.query.get(name, "").split("/")
    if len(parts) != 2:
        raise Refusal(f"{name} cannot be '{'/'.join(parts)[:80]}' (it is FOLDER/RUN); take the id of a run")
    return parts


def _number(request, name, default):
    text = request.query.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise Refusal(f"{name} cannot be '{text[:40]}' (it is a whole number); change it") from None


def _no_number(text):
    raise ValueError(f"{text} is no number")


def _listed(body):
    rows = body if isinstance(body, list) else [body]
    if not 1 <= len(rows) <= 1000:
        raise Refusal(f"the request has {len(rows)} rows (it is one, or a list of up to 1,000); send such")
    return rows


def _posted(row):
    """Returns the checked form of {"worker": 0, "metrics": {"loss": 0.5}}, with an optional time in "at"."""
    example = "{\"worker\": 0, \"metrics\": {\"loss\": 0.5}}"
    if not isinstance(row, dict) or set(row) - {"worker", "metrics", "at"} or not isinstance(row.get("metrics"), dict) or not row["metrics"]:
        raise Refusal(f"a row is not worker, metrics and perhaps at (it is '{json.dumps(row)[:80]}'); send such as {example}")
    worker, at = row.get("worker", 0), row.get("at", round(time.time(), 3))
    if not isinstance(worker, int) or isinstance(worker, bool) or not 0 <= worker < 1_000_000:
        raise Refusal(f"the worker cannot be '{str(worker)[:40]}' (it is a whole number, 0 or more); send such as {example}")
    for name, value in (*row["metrics"].items(), ("at", at)):
        if not name or len(name) > 100 or isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise Refusal(f"'{name[:40]}' cannot be '{str(value)[:40]}' (it is a finite number, under a name of up to 100 letters); send such as {example}")
    return {"at": at, "worker": worker, "metrics": row["metrics"]}


# ---- the program ----

def serve(folder, listen, token, places):
    """Serves until SIGTERM or SIGINT. Runs continue after that."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise Refusal(f"--listen cannot be '{listen}' (it is ADDRESS:PORT); write such as 127.0.0.1:8080")
    if not token and not (host == "localhost" or _is_loopback(host)):
        raise Refusal(f"--listen {listen} can be reached by other machines (a client that has the token can start commands); choose one with --token-file FILE, or "
                      "listen at 127.0.0.1")
    folder = pathlib.Path(folder).absolute()
    if (folder / MARKER).exists():
        raise Refusal(f"'{folder}' is one folder of results (its runner writes there); name the folder that it is in")
    make_folder(folder)
    return asyncio.run(_serve(folder, host, int(port), token, places))


def _is_loopback(host):
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _own_token(folder):
    """Returns a token that is drawn at the first start and stored where only this user can read it: active runs know
    it."""
    path = make_folder(folder / ".dashboard") / "token"
    with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
        about = os.fstat(file.fileno())
        if about.st_uid == os.geteuid() and about.st_mode & 0o077 == 0 and len(token := file.read(100)) == 43:
            return token
    token = secrets.token_urlsafe(32)
    write_whole(path, token, mode=PRIVATE)
    return token


async def _serve(folder, host, port, token, places):
    loop, ending = asyncio.get_running_loop(), asyncio.Event()
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise Refusal(f"--listen {host}:{port} cannot be used ({os.strerror(error.errno)}); choose another") from None
    called = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    address = f"http://{called}:{listening.getsockname()[1]}"
    drawn = "" if token else _own_token(folder)
    dashboard = Dashboard(folder, places, address, token or drawn)
    runner = web.AppRunner(dashboard.app(), access_log=None, handle_signals=False)
    await runner.setup()
    dashboard.connections = Connections(runner.server)
    server = await loop.create_server(dashboard.connections, sock=listening, backlog=AT_ONCE)
    listening.listen(128)
    watching = loop.create_task(dashboard.connections.watch())
    for which in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(which, ending.set)
    print(f"muster-bench: {address}/{f'?token={drawn}' if drawn else ''} shows the runs in {folder}", file=sys.stderr, flush=True)
    await ending.wait()
    watching.cancel()
    server.close()
    await runner.server.shutdown(IN_TIME)
    await runner.cleanup()
    return FINISHED
