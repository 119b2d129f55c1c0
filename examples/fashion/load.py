"""Sends the test images to a server, a single image in each request, over some connections at a time; writes the
replies and their times."""
import argparse
import contextlib
import http.client
import json
import struct
import threading
import time

from fashion import read_idx


def ask(connection, path, image, side):
    """Returns (probabilities, version) for an image, by the Open Inference Protocol."""
    head = json.dumps({"inputs": [{"name": "image", "datatype": "UINT8", "shape": [1, *side], "parameters": {"binary_data_size": len(image)}}],
                       "parameters": {"binary_data_output": True}}).encode()
    connection.request("POST", path, head + bytes(image), {"Inference-Header-Content-Length": str(len(head))})
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise OSError(f"status {answer.status}: {body.decode(errors='replace')}")
    length = int(answer.headers["Inference-Header-Content-Length"])
    description = json.loads(body[:length])
    return struct.unpack(f"<{(len(body) - length) // 4}f", body[length:]), description["model_version"]


class Load:
    def __init__(self, chosen):
        extents, self.images = read_idx(chosen.images)
        self.side, self.count = extents[1:], min(chosen.requests, extents[0])
        with open(chosen.selected, encoding="utf-8") if chosen.selected else contextlib.nullcontext() as file:
            version = f"/versions/{json.load(file)['version']}" if file else ""
        self.model = None   # the name of the model that answers, with the members of an ensemble
        self.names = None   # of its classes
        self.server, self.path = chosen.server, f"/v2/models/{chosen.model}{version}/infer"
        self.classes, self.seconds, self.versions, self.failed = [None] * self.count, [None] * self.count, {}, []
        self._next, self._guard = 0, threading.Lock()

    def wait(self, patience):
        """Waits until the model is served in the requested version: a server finds a new version some time after its
        publication."""
        until = time.monotonic() + patience
        while True:
            try:
                connection = http.client.HTTPConnection(self.server, timeout=5)
                connection.request("GET", self.path.removesuffix("/infer") + "/ready")
                answer = connection.getresponse()
                answer.read()
                if answer.status == 200:
                    connection.request("GET", self.path.removesuffix("/infer"))
                    metadata = json.loads(connection.getresponse().read())
                    self.model, self.names = metadata["platform"], metadata["outputs"][0]["parameters"]["classes"]
                    return
            except OSError:
                pass
            if time.monotonic() > until:
                raise SystemExit(f"the model of '{self.path}' at {self.server} is not served (none within {patience:g} s); look at the server's log")
            time.sleep(0.1)

    def send(self):
        connection, size = http.client.HTTPConnection(self.server, timeout=30), self.side[0] * self.side[1]
        while True:
            with self._guard:
                at, self._next = self._next, self._next + 1
            if at >= self.count:
                return
            begin = time.monotonic()
            try:
                probabilities, version = ask(connection, self.path, self.images[at * size:(at + 1) * size], self.side)
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(f"image {at}: {error}")
                connection.close()
                continue
            self.seconds[at] = time.monotonic() - begin
            self.classes[at] = max(range(len(probabilities)), key=probabilities.__getitem__)
            self.versions[version] = self.versions.get(version, 0) + 1


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--server", required=True, metavar="HOST:PORT")
    options.add_argument("--model", required=True, metavar="NAME")
    options.add_argument("--selected", metavar="FILE", help="ask for the version that was selected [the newest that is served]")
    options.add_argument("--offered", metavar="FILE", help="the selection of an offer; no request if it has published no version")
    options.add_argument("--images", required=True, metavar="FILE", help="an IDX file")
    options.add_argument("--requests", type=int, default=10_000, metavar="N", help="at most so many")
    options.add_argument("--connections", type=int, default=4, metavar="N")
    options.add_argument("--patience", type=float, default=60, metavar="SECONDS", help="until the model is served")
    options.add_argument("--json", required=True, metavar="FILE")
    chosen = options.parse_args()
    if chosen.offered:
        with open(chosen.offered, encoding="utf-8") as file:
            if json.load(file)["version"] is None:
                with open(chosen.json, "w", encoding="utf-8") as empty:
                    empty.write("{}")
                print("no model is good enough yet, so none is asked")
                return
    load = Load(chosen)
    load.wait(chosen.patience)
    begin = time.monotonic()
    threads = [threading.Thread(target=load.send) for _ in range(chosen.connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - begin
    with open(chosen.json, "w", encoding="utf-8") as file:
        json.dump({"seconds": took, "latencies": load.seconds, "classes": load.classes, "names": load.names, "versions": load.versions, "model": load.model, "failed": load.failed}, file)
    print(f"{load.count} requests in {took:.2f} s, {len(load.failed)} failed, answered by versions {load.versions} ({load.model})")
    if load.failed:
        raise SystemExit(f"{len(load.failed)} requests failed ({load.failed[0]}); look at the server's log")


if __name__ == "__main__":
    main()
