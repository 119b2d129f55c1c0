// muster: distributed training for C++. This header is all of it but the vendors' parts.
//
//   #include <muster/muster.hpp>
//   #include "mlp.hpp"
//   int main(int argc, char** argv) {
//     return muster::run_main(argc, argv, [](muster::context& context, auto&) {  // once a rank, process or thread
//       auto loader = muster::open_source("mnist:.") | muster::shuffle(1) | muster::batch(100) | muster::prefetch(4);
//       mlp model(context, 784, 128, 10);  // your own: its tensors are in a muster::arena, and it computes their gradients
//       muster::sgd optimizer(model.arena, {.momentum = 0.9f});
//       muster::training training(context, model.arena, optimizer, loader);
//       training.run({.epochs = 5, .checkpoint = "checkpoints"}, [&](muster::training_step& step) {
//         step.backward(step.next(loader), [&](auto& part, auto& pass) { model.forward_backward(part, pass); });
//         step.update(optimizer, 0.05);                        // at every rank, or at none
//         step.report("loss", model.loss(), model.samples());  // counted when the step commits
//       });
//     });
//   }
#pragma once

// The headers that no other of them includes.
#include <muster/collectives.hpp>
#include <muster/comm/algorithms/calibrate.hpp>
#include <muster/comm/algorithms/registry.hpp>
#include <muster/comm/bootstrap/exchange.hpp>
#include <muster/comm/bootstrap/host_identity.hpp>
#include <muster/comm/bootstrap/memory_store.hpp>
#include <muster/comm/bootstrap/open_store.hpp>
#include <muster/comm/transports/local.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/codec/powersgd.hpp>
#include <muster/core/convert.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/log.hpp>
#include <muster/core/progress.hpp>
#include <muster/core/version.hpp>
#include <muster/data/dataset_builder.hpp>
#include <muster/data/image_steps.hpp>
#include <muster/data/mixture.hpp>
#include <muster/data/open.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/records/reader.hpp>
#include <muster/data/records/shards.hpp>
#include <muster/data/records/writer.hpp>
#include <muster/data/sources/cifar.hpp>
#include <muster/data/sources/csv.hpp>
#include <muster/data/sources/idx.hpp>
#include <muster/data/sources/image_folder.hpp>
#include <muster/data/sources/libsvm.hpp>
#include <muster/data/sources/npy.hpp>
#include <muster/data/sources/raw.hpp>
#include <muster/data/sources/synthetic.hpp>
#include <muster/data/sources/tfrecord_examples.hpp>
#include <muster/data/standardise.hpp>
#include <muster/elastic/place_shards.hpp>
#include <muster/elastic/settings.hpp>
#include <muster/ps/job.hpp>
#include <muster/ps/settings.hpp>
#include <muster/train/checkpoint.hpp>
#include <muster/train/settings.hpp>
#include <muster/train/statistics.hpp>
#include <muster/train/sync/compress.hpp>
#include <muster/train/sync/host_gradients.hpp>
#include <muster/train/timeline.hpp>
#include <muster/train/training.hpp>
