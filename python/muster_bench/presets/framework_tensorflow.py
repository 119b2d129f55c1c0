#!/usr/bin/python3
"""Tasks of frameworks.yaml by TensorFlow with parameter servers. This process coordinates, one process for each rank
computes its batches' gradients, and one more process keeps the variables and applies each gradient when it arrives
(asynchronous). Without Keras, whose version 3 has no parameter servers. Batch normalisation uses the batch, also for
the test images."""
import json
import os
import pathlib
import socket
import subprocess
import sys

import tensorflow as tf

from framework_data import CHANNELS, arguments, images, load, rate
from muster_bench.tracker import Tracker

ROW, HEADER, RECORD = 4, 128, 3073     # bytes: a float, the head of an .npy file, an image of CIFAR-10


def serve():
    found = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    tf.distribute.Server(found.cluster_spec(), job_name=found.task_type, task_index=found.task_id, protocol="grpc").join()


def start(ranks):
    """Starts a cluster on this machine and returns (resolver, processes)."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(ranks + 1)]
    places = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in held]
    cluster = {"worker": places[:ranks], "ps": places[ranks:]}
    for listener in held:
        listener.close()
    processes = [subprocess.Popen([sys.executable, __file__], env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CONFIG": json.dumps(
        {"cluster": cluster, "task": {"type": kind, "index": index}})}) for kind, each in cluster.items() for index in range(len(each))]
    return tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster), rpc_layer="grpc"), processes


class Network:
    def __init__(self, task, features):
        self.variables = []
        self._layers = getattr(self, f"_{task}")(features)

    def __call__(self, x):
        for layer in self._layers:
            x = layer(x)
        return x

    def _weights(self, *shape, value=None):
        inside = 1
        for size in shape[:-1]:
            inside *= size
        variable = tf.Variable(tf.random.normal(shape, stddev=(2 / inside) ** 0.5) if value is None else tf.fill(shape, value))
        self.variables.append(variable)
        return variable

    def _dense(self, inside, outside, zero=False):
        weights, shift = self._weights(inside, outside, value=0.0 if zero else None), self._weights(outside, value=0.0)
        return lambda x: x @ weights + shift

    def _convolution(self, inside, outside, stride=1, kernel=3):
        weights, scale, shift = self._weights(kernel, kernel, inside, outside), self._weights(outside, value=1.0), self._weights(outside, value=0.0)
        return lambda x: tf.compat.v1.nn.fused_batch_norm(tf.nn.conv2d(x, weights, stride, "SAME" if stride == 1 else [[0, 0], [kernel // 2] * 2, [kernel // 2] * 2, [0, 0]]),
                                                scale, shift)[0]

    def _block(self, inside, outside, stride):
        first, second = self._convolution(inside, outside, stride), self._convolution(outside, outside)
        way = self._convolution(inside, outside, stride, 1) if inside != outside else tf.identity
        return lambda x: tf.nn.relu(second(tf.nn.relu(first(x))) + way(x))

    def _logistic(self, features):
        return [self._dense(features, 1, zero=True)]

    def _resnet20(self, _):
        layers, inside = [self._convolution(3, 16), tf.nn.relu], 16
        for outside in (16, 32, 64):
            for block in range(3):
                layers.append(self._block(inside, outside, 2 if block == 0 and outside > 16 else 1))
                inside = outside
        return [*layers, lambda x: tf.reduce_mean(x, [1, 2]), self._dense(64, 10)]

    def _vgg16(self, _):
        layers, inside = [], 3
        for outside in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
            layers += [self._convolution(inside, outside), tf.nn.relu] if outside else [lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID")]
            inside = outside or inside
        layers.append(lambda x: tf.reshape(x, [-1, 512]))
        for _ in range(2):
            layers += [lambda x: tf.nn.dropout(x, 0.5), self._dense(512, 512), tf.nn.relu]
        return [*layers, self._dense(512, 10)]


def batches(chosen, features, count):
    """Returns batches that workers read from the files, shuffled anew in every epoch and for each worker."""
    folder = pathlib.Path(chosen.data)
    if chosen.task == "logistic":
        rows, labels = (tf.data.FixedLengthRecordDataset(str(folder / f"{name}.npy"), size, header_bytes=HEADER).map(
            lambda one: tf.io.decode_raw(one, tf.float32)) for name, size in (("train", ROW * features), ("train-labels", ROW)))
        samples = tf.data.Dataset.zip((rows, labels.map(lambda one: one[0])))
    else:
        def image(record):
            values = tf.io.decode_raw(record, tf.uint8)
            pixels = tf.transpose(tf.reshape(values[1:], [3, 32, 32]), [1, 2, 0])
            pixels = tf.image.random_flip_left_right(tf.image.random_crop(tf.pad(pixels, [[4, 4], [4, 4], [0, 0]]), [32, 32, 3]))
            return (tf.cast(pixels, tf.float32) / 255 - CHANNELS[0]) / CHANNELS[1], tf.cast(values[0], tf.int64)
        samples = tf.data.FixedLengthRecordDataset([str(folder / f"data_batch_{n}.bin") for n in range(1, 6)], RECORD).shuffle(count).map(image)
    return (samples.shuffle(count) if chosen.task == "logistic" else samples).repeat().batch(chosen.batch)


def main():
    chosen = arguments()
    resolver, processes = start(chosen.ranks)
    try:
        train(chosen, resolver)
    finally:
        for process in processes:
            process.kill()


def train(chosen, resolver):
    tf.random.set_seed(chosen.seed)
    _, labels, test, answers = load(chosen.task, chosen.data)
    logistic, features, count = chosen.task == "logistic", test.shape[1], len(labels)
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        network = Network(chosen.task, features)
        momenta = [] if logistic else [tf.Variable(tf.zeros(variable.shape)) for variable in network.variables]
    decay = 2.5e-6 if logistic else 1e-4

    def losses(outputs, wanted):
        """Returns (the sum of losses, hits)."""
        if logistic:
            return tf.reduce_sum(tf.nn.softplus(-wanted * outputs[:, 0])), tf.reduce_sum(tf.cast(outputs[:, 0] * wanted > 0, tf.float32))
        return (tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(wanted, outputs)),
                tf.reduce_sum(tf.cast(tf.argmax(outputs, 1) == wanted, tf.float32)))

    @tf.function
    def step(iterator, learning):
        samples, wanted = next(iterator)
        with tf.GradientTape() as tape:
            loss, hits = losses(network(samples), wanted)
            mean = loss / tf.cast(tf.shape(wanted)[0], tf.float32)
        for place, (variable, gradient) in enumerate(zip(network.variables, tape.gradient(mean, network.variables))):
            gradient += decay * variable
            if momenta:   # Nesterov momentum
                momenta[place].assign(0.9 * momenta[place] + gradient)
                gradient += 0.9 * momenta[place]
            variable.assign_sub(learning * gradient)
        return loss, hits

    def evaluate():
        sums = [0.0, 0.0]
        for first in range(0, len(test), 500):
            here = test[first:first + 500]
            for at, value in enumerate(losses(network(here if logistic else images(here).transpose(0, 2, 3, 1)), answers[first:first + 500])):
                sums[at] += float(value)
        return [value / len(test) for value in sums]
    # the coordinator measures
    tracker = Tracker(chosen.ranks, 0, lambda numbers: [numbers], transport="grpc", lines=True)
    iterator = iter(coordinator.create_per_worker_dataset(lambda: batches(chosen, features, count)))
    together, done = chosen.batch * chosen.ranks, 0
    steps = count // together
    for _ in range(chosen.epochs):
        here = steps if not chosen.steps else min(steps, chosen.steps - done)
        with tracker.batches(), tracker.phase("backward"):
            found = [coordinator.schedule(step, (iterator, tf.constant(rate(chosen, chosen.ranks, done + at, steps) / (1 if logistic else chosen.ranks), tf.float32)))
                     for at in range(here) for _ in range(chosen.ranks)]
            coordinator.join()
        done += here
        sums = [sum(map(float, each)) for each in zip(*coordinator.fetch(found))]
        tracker.add_samples(here * together)
        val_loss, val_accuracy = evaluate()
        tracker.end_epoch(train_loss=sums[0] / (here * together), train_accuracy=sums[1] / (here * together), val_loss=val_loss, val_accuracy=val_accuracy)
        if done == chosen.steps:
            break
    for name, value in (("program", "framework_tensorflow"), ("framework", f"TensorFlow {tf.__version__}"), ("batch", together), ("mode", "ps")):
        tracker.annotate(name, value)
    tracker.write(chosen.json)


if __name__ == "__main__":
    serve() if "TF_CONFIG" in os.environ else main()
