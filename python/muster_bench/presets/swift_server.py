"""Swift, Debian's object store, with its S3: started here, for tests and presets."""
import hashlib
import hmac
import http.client
import os
import pwd
import signal
import socket
import subprocess
import sys
import time

from ports import free_port  # beside this file


def wait_for(port):
    for _ in range(600):
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
    sys.exit(f"nothing listens to port {port}")


class swift:
    """Swift with its S3: with a single server for each kind and a single copy of the data."""
    user, key = "test:tester", "testing"

    def __init__(self, folder):
        self.ports = {kind: free_port() for kind in ("account", "container", "object", "proxy")}
        (folder / "node" / "d1").mkdir(parents=True)
        (folder / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = x\n[storage-policy:0]\nname = one\ndefault = yes\n")
        common = f"bind_ip = 127.0.0.1\nworkers = 0\nswift_dir = {folder}\ndevices = {folder}/node\nmount_check = false\n"
        common += f"user = {pwd.getpwuid(os.getuid()).pw_name}\n"
        for kind in ("account", "container", "object"):
            builder = folder / f"{kind}.builder"
            for words in (["create", "4", "1", "0"], ["add", "--region", "1", "--zone", "1", "--ip", "127.0.0.1", "--port",
                           str(self.ports[kind]), "--device", "d1", "--weight", "1"], ["rebalance"]):
                subprocess.run(["swift-ring-builder", builder, *words], check=False, capture_output=True)
            (folder / f"{kind}.conf").write_text(f"[DEFAULT]\n{common}bind_port = {self.ports[kind]}\n"
                                                 f"[pipeline:main]\npipeline = {kind}-server\n[app:{kind}-server]\nuse = egg:swift#{kind}\n")
        (folder / "proxy.conf").write_text(
            f"[DEFAULT]\n{common}bind_port = {self.ports['proxy']}\n[pipeline:main]\npipeline = catch_errors cache s3api tempauth proxy-server\n"
            "[app:proxy-server]\nuse = egg:swift#proxy\naccount_autocreate = true\n[filter:catch_errors]\nuse = egg:swift#catch_errors\n[filter:cache]\nuse = egg:swift#memcache\nmemcache_servers = 127.0.0.1:1\n"
            "[filter:s3api]\nuse = egg:swift#s3api\nlocation = us-east-1\n"
            f"[filter:tempauth]\nuse = egg:swift#tempauth\nuser_test_tester = {self.key} .admin\n")
        self.folder, self.processes = folder, {}
        for kind in self.ports:
            self.start(kind)

    def start(self, kind):
        self.processes[kind] = subprocess.Popen([f"swift-{kind}-server", self.folder / f"{kind}.conf"], stdout=subprocess.DEVNULL,
                                                stderr=subprocess.DEVNULL, start_new_session=True)
        wait_for(self.ports[kind])

    def kill(self, kind):
        os.killpg(self.processes[kind].pid, signal.SIGKILL)
        self.processes.pop(kind).wait()

    def put(self, path, body=b""):
        """Puts an object with a hand-made signature, so that the test does not depend only on libcurl's."""
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        digest, host = hashlib.sha256(body).hexdigest(), f"127.0.0.1:{self.ports['proxy']}"
        names = "host;x-amz-content-sha256;x-amz-date"
        request = f"PUT\n{path}\n\nhost:{host}\nx-amz-content-sha256:{digest}\nx-amz-date:{now}\n\n{names}\n{digest}"
        scope = f"{now[:8]}/us-east-1/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        key = ("AWS4" + self.key).encode()
        for word in scope.split("/"):
            key = hmac.new(key, word.encode(), hashlib.sha256).digest()
        signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        connection = http.client.HTTPConnection(host)
        connection.request("PUT", path, body, {"x-amz-date": now, "x-amz-content-sha256": digest, "Authorization":
                           f"AWS4-HMAC-SHA256 Credential={self.user}/{scope}, SignedHeaders={names}, Signature={signature}"})
        answer = connection.getresponse()
        assert answer.status == 200, (path, answer.status, answer.read())
