"""The stacked ensemble (docs/stacking.md) as its users run it, with real stores; scikit-learn is the oracle.

    program.py CLASS

MUSTER_TEST_STACKING is the program, MUSTER_TEST_SOURCES the repository."""
import io
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

os.environ.setdefault("OMP_NUM_THREADS", "1")
PROGRAM, SOURCES = os.environ["MUSTER_TEST_STACKING"], pathlib.Path(os.environ["MUSTER_TEST_SOURCES"])
sys.path.insert(0, str(SOURCES / "python/muster_bench/presets"))
try:
    import grpc
    import numpy
    import redis
    import sklearn  # noqa: F401  (the oracle)
    from stacking_services import MODELS, Collector, Ensemble, learner, missing
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(0)

DISTRIBUTED = "DistributedLogisticRegression"


def field(number, value):
    """Returns a field of a protocol buffer with bytes."""
    return bytes([number << 3 | 2, len(value)]) + value   # of less than 128


def matrix_of(data):
    """Returns the second field with bytes, if there are two."""
    at = 0
    while True:
        number, at, size, shift = data[at] >> 3, at + 1, 0, 0
        while shift == 0 or data[at - 1] > 127:
            size, at, shift = size | (data[at] & 127) << shift, at + 1, shift + 7
        if number == 2:
            return data[at:at + size]
        at += size


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.data = cls.folder / "data.npy"
        subprocess.run([sys.executable, SOURCES / "examples/stacking/make_data.py", cls.data], check=True, capture_output=True)

    def ensemble(self, *words, **more):
        started = Ensemble(PROGRAM, self.data, *words, **more)
        self.addCleanup(started.stop)
        return started

    def score(self, ensemble, *words):
        done = ensemble.client(*words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return re.fullmatch(r"Greeting: \S+ score (\S+)\n", done.stdout)[1]

    def refused(self, done, *words, status):
        self.assertEqual((done.returncode, done.stderr.count("\n")), (status, 1), done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def call(self, ensemble, name, method, request, metadata=(), timeout=60):
        with grpc.insecure_channel(f"127.0.0.1:{ensemble.ports[name]}") as channel:
            return channel.unary_unary(method)(request, timeout=timeout, metadata=metadata)


class Oracle(Case):
    def test_predictions_and_score_are_those_of_scikit_learn(self):
        from sklearn.linear_model import LogisticRegression
        from sklearn.metrics import roc_auc_score
        from sklearn.model_selection import cross_val_predict
        from sklearn.ensemble import RandomForestRegressor
        models = [*MODELS, DISTRIBUTED]
        ensemble = self.ensemble("REDIS", 5, models=models)
        ensemble.kill("trainer-4")   # of the distributed kind: on three ranks
        ensemble.start("trainer-4", "--ranks", 3, port=ensemble.ports["trainer-4"])
        score = self.score(ensemble)
        store, data = redis.Redis(port=ensemble.store.port), numpy.load(self.data)
        x, y = data[:, :-1], data[:, -1]

        def load(key):
            return numpy.load(io.BytesIO(matrix_of(store.get(key))))
        kept = {key.split(b"/")[1].split(b".")[0].decode(): load(key) for key in store.keys() if b"model" in key}   # they expire
        for number, model in enumerate(models):
            found = kept[f"model_{number}"][:, 0]
            if model == DISTRIBUTED:
                exact = LogisticRegression(solver="newton-cg", tol=1e-12, max_iter=1000)
                self.assertLess(abs(found - cross_val_predict(exact, x, y, cv=[(a, b) for a, b in parts(len(y))], method="predict_proba")[:, 1]).max(), 1e-6)
            elif model == "RandomForestRegressor":
                scores = [roc_auc_score(y, cross_val_predict(RandomForestRegressor(n_estimators=2, max_depth=2, min_samples_leaf=2, random_state=seed),
                                                             x, y, cv=5)) for seed in range(20)]
                self.assertTrue(min(scores) <= roc_auc_score(y, found) <= max(scores), (scores, roc_auc_score(y, found)))
            else:
                self.assertLess(abs(found - cross_val_predict(learner(model), x, y, cv=5)).max(), 1e-6, model)
        features = kept["models"]
        self.assertEqual(features.shape, (300, 5))
        classes = cross_val_predict(LogisticRegression(tol=1e-10, max_iter=10_000), features, y, cv=5)
        self.assertEqual((kept["model_full"][:, 0] != classes).sum(), 0)
        self.assertAlmostEqual(float(score), roc_auc_score(classes, y), places=12)


def parts(count):
    from sklearn.model_selection import KFold
    return KFold(5).split(range(count))


class Transfers(Case):
    def test_each_has_the_same_score_in_turn_and_at_once(self):
        scores = {}
        for transfer in ("INLINE", "XDT", "REDIS", "S3"):
            if missing(transfer):
                print(f"{transfer} is left out: {missing(transfer)} is not installed")
                continue
            for parallel in (False, True):
                ensemble = self.ensemble(transfer, 4, parallel)
                scores[transfer, parallel] = self.score(ensemble)
                ensemble.stop()
        self.assertEqual(len(set(scores.values())), 1, scores)

    def test_sixteen_trainers_and_more_than_a_message_may_have(self):
        ensemble = self.ensemble("INLINE", 16, True)   # four models with all rows: 10 MB
        self.assertGreater(float(self.score(ensemble)), 0.8)

    def test_rows_that_models_share_are_in_an_ensemble_once(self):
        ensemble = self.ensemble("REDIS", 4, models=["KNeighborsRegressor", "Lasso"])
        self.score(ensemble)
        store = redis.Redis(port=ensemble.store.port)
        sizes = {key.split(b"/")[1].split(b".")[0]: store.strlen(key) for key in store.keys()}
        least = self.data.stat().st_size
        for name, copies in ((b"model_0", 1), (b"model_2", 1), (b"models", 1), (b"model_full", 1)):
            self.assertEqual(sizes[name] // (least - 100), copies, sizes)   # less a header

    def test_invocations_at_once_do_not_mix(self):
        ensemble = self.ensemble("REDIS", 4, True)
        found = []
        threads = [threading.Thread(target=lambda: found.append(ensemble.client())) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([done.returncode for done in found], [0] * 3, found)
        self.assertEqual(len({done.stdout for done in found}), 1, found)
        keys = redis.Redis(port=ensemble.store.port).keys()
        self.assertEqual(len({key.split(b"/")[0] for key in keys}), 3)
        self.assertEqual(len(keys), 3 * (1 + 4 + 1 + 1))

    def test_a_damaged_object_is_found(self):
        ensemble = self.ensemble("REDIS", 1, models=["Lasso"])
        store = redis.Redis(port=ensemble.store.port)
        key = b"abc/dataset." + b"0" * 64
        store.set(key, self.data.read_bytes())
        with self.assertRaises(grpc.RpcError) as caught:
            self.call(ensemble, "trainer-0", "/stacking.Trainer/Train", field(2, key) + field(3, b'{"model": "Lasso"}') + field(4, b"0"))
        self.assertIn("its digest does not match", caught.exception.details())


class Traces(Case):
    def test_spans_have_the_names_of_the_original_and_are_one_trace(self):
        collector = Collector()
        ensemble = self.ensemble("INLINE", 4, models=["Lasso", DISTRIBUTED, "Lasso", "Lasso"], zipkin=collector.url)
        trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
        hello = "/helloworld.Greeter/SayHello", field(1, b"x")
        self.call(ensemble, "driver", *hello, [("traceparent", f"00-{trace}-{parent}-01")])
        self.call(ensemble, "driver", *hello, [("b3", f"{trace[:16]}-{parent}-1")])
        self.call(ensemble, "driver", *hello, [("traceparent", f"00-{'f' * 32}-{parent}-00")])   # not recorded
        self.call(ensemble, "driver", *hello)
        ensemble.stop()
        by_trace = {}
        for span in collector.spans:
            by_trace.setdefault(span["traceId"], []).append(span)
        self.assertEqual(len(by_trace), 3)
        self.assertLessEqual({trace, trace[:16]}, set(by_trace))
        for spans in by_trace.values():
            names = [span["name"] for span in spans]
            for name in ("Invoke all trainers", "Get the inputs", "Train the meta model", "Put the full model and predictions",
                         *[f"Reducer gets model {k} from INLINE" for k in range(4)]):
                self.assertEqual(names.count(name), 1, (name, names))
            self.assertEqual(names.count("Training a model"), 4)
            self.assertIn("allreduce", names)   # muster's own timeline
            known = {span["id"] for span in spans} | {parent}
            self.assertTrue(all(span.get("parentId", parent) in known for span in spans))
            self.assertEqual({span["localEndpoint"]["serviceName"] for span in spans}, {"driver", "trainer", "reducer", "metatrainer"})

    def test_a_collector_that_is_away_is_not_waited_for(self):
        ensemble = self.ensemble("INLINE", 1, models=["Lasso"], zipkin="http://127.0.0.1:1/api/v2/spans")
        self.score(ensemble)
        last_lines = ensemble.stop()["driver"]
        self.assertRegex(last_lines, r"spans: 0 sent, [1-9]\d* dropped")
        self.assertEqual(last_lines.count("spans are dropped: http://127.0.0.1:1/api/v2/spans does not accept them"), 1, last_lines)


class Faults(Case):
    def test_a_trainer_that_is_killed_is_retried(self):
        ensemble = self.ensemble("XDT", 4)
        whole = self.score(ensemble)
        victim = ensemble.processes["trainer-1"]
        victim.send_signal(signal.SIGSTOP)   # it has its request for sure
        kill = threading.Timer(2, ensemble.kill, ["trainer-1"])
        kill.start()
        self.assertEqual(self.score(ensemble), whole)
        kill.join()
        self.assertIn("trainer 1 is retried", (pathlib.Path(ensemble.folder) / "driver.log").read_text())

    def test_one_address_is_waited_for(self):
        ensemble = self.ensemble("INLINE", 2, models=["Lasso", "LinearSVR"], instances=1, one_address=True)
        whole = self.score(ensemble)
        ensemble.kill("trainer-0")
        again = threading.Timer(2, ensemble.start, ["trainer-0"], {"port": ensemble.ports["trainer-0"]})
        again.start()
        self.assertEqual(self.score(ensemble), whole)
        again.join()

    def test_nobody_there(self):
        ensemble = self.ensemble("INLINE", 1, models=["Lasso"])
        ensemble.kill("reducer")
        self.refused(ensemble.client("-grpcTimeout", 10), f"127.0.0.1:{ensemble.ports['reducer']}: ", status=4)
        ensemble.processes["metatrainer"].send_signal(signal.SIGSTOP)
        ensemble.start("reducer", port=ensemble.ports["reducer"])
        time.sleep(1)   # the driver connects anew
        self.refused(ensemble.client("-grpcTimeout", 3), status=5)
        ensemble.processes["metatrainer"].send_signal(signal.SIGCONT)

    def test_a_store_that_is_stopped(self):
        ensemble = self.ensemble("REDIS", 1, models=["Lasso"])
        self.score(ensemble)
        ensemble.store.process.send_signal(signal.SIGSTOP)
        self.refused(ensemble.client("-grpcTimeout", 3), status=5)
        ensemble.store.process.send_signal(signal.SIGCONT)
        self.score(ensemble)
        ensemble.store.stop()
        self.refused(ensemble.client("-grpcTimeout", 10), f"redis://127.0.0.1:{ensemble.store.port}/", "onnection refused", status=3)

    def test_s3_that_refuses(self):
        if missing("S3"):
            self.skipTest(f"{missing('S3')} is not installed")
        for changed, words, status in (({"BUCKET_NAME": "nothing"}, ["/nothing/", "404", "BUCKET_NAME"], 3),
                                       ({"AWS_SECRET_KEY": "another"}, ["403", "AWS_SECRET_KEY"], 2),
                                       ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, ["http://127.0.0.1:1/", "onnect"], 3)):
            ensemble = self.ensemble("S3", 1, models=["Lasso"], **changed)
            self.refused(ensemble.client("-grpcTimeout", 10), *words, status=status)
            ensemble.stop()

    def test_it_listens_here_alone_and_takes_so_much_of_a_call(self):
        ensemble = self.ensemble("INLINE", 1, models=["Lasso"])
        port = ensemble.ports["trainer-0"]
        listening = [line.split()[1] for name in ("tcp", "tcp6") for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()
                     if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"]
        self.assertEqual([address.removeprefix("0000000000000000FFFF0000") for address in listening], [f"0100007F:{port:04X}"])   # 127.0.0.1
        piece = b"\x0a\x80\x80\x40" + bytes(1 << 20)   # field 1, 2^20 bytes
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, self.assertRaises(grpc.RpcError) as caught:
            list(channel.stream_stream("/stacking.Trainer/TrainStreamed")(iter([piece] * 300), timeout=60))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertIn("the request is too large (at most 256 MiB", caught.exception.details())
        self.score(ensemble)

    def test_a_key_that_is_none(self):
        for transfer in ("XDT", "REDIS"):
            ensemble = self.ensemble(transfer, 1, models=["Lasso"])
            prefix = f"xdt://127.0.0.1:{ensemble.ports['driver']}/" if transfer == "XDT" else ""
            for key, says in ((prefix + "abc/dataset." + "0" * 64, "it does not exist"), ("dataset", "the key is not INVOCATION/NAME.DIGEST")):
                with self.assertRaises(grpc.RpcError) as caught:
                    self.call(ensemble, "trainer-0", "/stacking.Trainer/Train", field(2, key.encode()) + field(4, b"0"), timeout=10)
                self.assertIn(says, caught.exception.details())
            ensemble.stop()

    def test_another_number_of_trainers_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, r"tAddr has 3 trainer instances \(TrainersNum is 4\)"):
            self.ensemble("INLINE", 4, instances=3)
        ensemble = self.ensemble("INLINE", 1, models=["Lasso"])
        ensemble.kill("trainer-0")
        ensemble.environment["TrainersNum"] = "3"
        ensemble.start("trainer-0", port=ensemble.ports["trainer-0"])
        time.sleep(1)   # the driver connects anew
        self.refused(ensemble.client(), "there are 3 trainer instances (TrainersNum of the driver is 1)", status=2)

    def test_a_dataset_that_is_another(self):
        other = self.folder / "other.npy"
        other.write_bytes(self.data.read_bytes()[:-8] + b"12345678")   # the last label
        (self.folder / "other.npy.sha256").write_text((self.folder / "data.npy.sha256").read_text())
        with self.assertRaisesRegex(RuntimeError, r"other.npy: its digest differs from .*other.npy.sha256"):
            Ensemble(PROGRAM, other, "INLINE", 1)


class Client(Case):
    def test_at_a_rate(self):
        ensemble = self.ensemble("INLINE", 1, models=["Lasso"])
        done = ensemble.client("-rps", 4, "-time", 2, "-latf", self.folder / "lat.csv")
        self.assertIn("Issued / completed requests: 8, 8\n", done.stdout)
        file, = self.folder.glob("rps*_lat.csv")
        self.assertTrue(all(int(line) > 0 for line in file.read_text().splitlines()))
        self.assertEqual(len(file.read_text().splitlines()), 8)

    def test_what_cannot_be_used(self):
        for words, says, environment in ((["--function", "cook"], "--function", {}), (["--function", "trainer"], "TRANSFER_TYPE cannot be 'PIPE'", {"TRANSFER_TYPE": "PIPE"}),
                                         (["--function", "reducer"], "AWS_ACCESS_KEY", {"TRANSFER_TYPE": "S3", "AWS_ACCESS_KEY": ""}),
                                         (["--function", "reducer"], "BUCKET_NAME cannot be 'x'", {"TRANSFER_TYPE": "REDIS", "BUCKET_NAME": "x"}),
                                         (["--function", "driver"], "ENABLE_TRACING cannot be 'maybe'", {"ENABLE_TRACING": "maybe"}),
                                         (["--function", "driver", "--data", "nothing.npy"], "nothing.npy: ", {})):
            done = subprocess.run([PROGRAM, *words, "-sp", "0"], capture_output=True, text=True, timeout=30, env={**os.environ, **environment}, check=False)
            self.refused(done, says, status=3 if "--data" in words else 2)


class Manifests(unittest.TestCase):
    def test_four_functions_for_each_transfer(self):
        import yaml
        environment = {"PATH": os.environ["PATH"], "AWS_ACCESS_KEY": "a\"key: \\\\", "AWS_SECRET_KEY": "{secret}", "BUCKET_NAME": "redis:6379"}
        for transfer in ("inline", "s3", "redis", "xdt"):
            text = subprocess.run(["sh", SOURCES / "examples/stacking/knative.sh", transfer, "16", "here/image:1"], capture_output=True, text=True, check=True,
                                  env=environment).stdout
            documents = list(yaml.safe_load_all(text))
            if transfer == "s3":
                secret = documents.pop(0)
                self.assertEqual(secret["stringData"], {name: environment[name] for name in ("AWS_ACCESS_KEY", "AWS_SECRET_KEY")})
            instances = {}
            for each in documents:
                template = each["spec"]["template"]
                notes, container = template["metadata"]["annotations"], template["spec"]["containers"][0]
                instances[each["metadata"]["name"]] = notes["autoscaling.knative.dev/minScale"]
                self.assertEqual(notes["autoscaling.knative.dev/minScale"], notes["autoscaling.knative.dev/maxScale"])
                variables = {variable["name"]: variable.get("value") for variable in container["env"]}
                self.assertEqual((variables["TRANSFER_TYPE"], variables["TrainersNum"], variables["BUCKET_NAME"]), (transfer.upper(), "16", "redis:6379"))
                self.assertEqual("AWS_SECRET_KEY" in variables, transfer == "s3")
                self.assertNotIn("secret}", str(each))
            self.assertEqual(instances, {"driver": "1", "trainer": "16", "reducer": "1", "metatrainer": "1"})

    def test_what_cannot_be_used(self):
        for words, says in ((["pipe", "4", "x"], "TRANSFER cannot be 'pipe'"), (["inline", "0", "x"], "TRAINERS cannot be '0'"), (["s3", "4", "x"], "AWS_ACCESS_KEY"),
                            (["redis", "4", "x"], "BUCKET_NAME")):
            done = subprocess.run(["sh", SOURCES / "examples/stacking/knative.sh", *words], capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]})
            self.assertEqual((done.returncode, done.stderr.count("\n"), done.stdout), (2, 1, ""), done.stderr)
            self.assertIn(says, done.stderr)


if __name__ == "__main__":
    unittest.main()
