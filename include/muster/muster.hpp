// muster: distributed training for C++. Includes the public headers that a training program uses. Excludes serving,
// test kits, the stores over tcp and etcd, PostgreSQL, MPI, NCCL, devices, and the library's algorithms.
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

#include <muster/comm/algorithms/algorithm.hpp>
#include <muster/comm/algorithms/algorithm_rules.hpp>
#include <muster/comm/algorithms/calibrate.hpp>
#include <muster/comm/algorithms/registry.hpp>
#include <muster/comm/block.hpp>
#include <muster/comm/bootstrap/exchange.hpp>
#include <muster/comm/bootstrap/host_identity.hpp>
#include <muster/comm/bootstrap/launch_env.hpp>
#include <muster/comm/bootstrap/memory_store.hpp>
#include <muster/comm/bootstrap/open_store.hpp>
#include <muster/comm/bootstrap/store.hpp>
#include <muster/comm/collectives/all_to_all.hpp>
#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/collectives/buffers.hpp>
#include <muster/comm/collectives/gather.hpp>
#include <muster/comm/collectives/packed.hpp>
#include <muster/comm/collectives/reduce.hpp>
#include <muster/comm/collectives/reduce_scatter.hpp>
#include <muster/comm/collectives/scan.hpp>
#include <muster/comm/collectives/scatter.hpp>
#include <muster/comm/collectives/uneven.hpp>
#include <muster/comm/comm_settings.hpp>
#include <muster/comm/context.hpp>
#include <muster/comm/group.hpp>
#include <muster/comm/messages.hpp>
#include <muster/comm/reduction.hpp>
#include <muster/comm/transport.hpp>
#include <muster/comm/transports/threads.hpp>
#include <muster/comm/work.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/buffer.hpp>
#include <muster/core/bytes.hpp>
#include <muster/core/clock.hpp>
#include <muster/core/codec/codec.hpp>
#include <muster/core/codec/compression.hpp>
#include <muster/core/codec/plain.hpp>
#include <muster/core/codec/powersgd.hpp>
#include <muster/core/codec/qsgd.hpp>
#include <muster/core/codec/sign.hpp>
#include <muster/core/codec/topk.hpp>
#include <muster/core/convert.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/dlpack.hpp>
#include <muster/core/dtype.hpp>
#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/core/events.hpp>
#include <muster/core/float16.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/histogram.hpp>
#include <muster/core/lanes.hpp>
#include <muster/core/log.hpp>
#include <muster/core/number.hpp>
#include <muster/core/plugin.hpp>
#include <muster/core/progress.hpp>
#include <muster/core/random.hpp>
#include <muster/core/spec.hpp>
#include <muster/core/trace_context.hpp>
#include <muster/core/training_position.hpp>
#include <muster/core/update.hpp>
#include <muster/core/update/adagrad.hpp>
#include <muster/core/update/adam.hpp>
#include <muster/core/update/assign.hpp>
#include <muster/core/update/lars.hpp>
#include <muster/core/update/sgd.hpp>
#include <muster/core/update/update_step.hpp>
#include <muster/core/version.hpp>
#include <muster/data/bad_records.hpp>
#include <muster/data/balanced_batch.hpp>
#include <muster/data/batch_shard.hpp>
#include <muster/data/cache.hpp>
#include <muster/data/classes.hpp>
#include <muster/data/column_options.hpp>
#include <muster/data/cursor.hpp>
#include <muster/data/dataset.hpp>
#include <muster/data/dataset_builder.hpp>
#include <muster/data/image.hpp>
#include <muster/data/image_steps.hpp>
#include <muster/data/jpeg.hpp>
#include <muster/data/loader.hpp>
#include <muster/data/minibatch.hpp>
#include <muster/data/mixture.hpp>
#include <muster/data/open.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/record_schema.hpp>
#include <muster/data/record_source.hpp>
#include <muster/data/record_step.hpp>
#include <muster/data/record_transform.hpp>
#include <muster/data/records/manifest.hpp>
#include <muster/data/records/reader.hpp>
#include <muster/data/records/shards.hpp>
#include <muster/data/records/writer.hpp>
#include <muster/data/remote_files.hpp>
#include <muster/data/source_statistics.hpp>
#include <muster/data/sources/cifar.hpp>
#include <muster/data/sources/csv.hpp>
#include <muster/data/sources/fixed_records.hpp>
#include <muster/data/sources/idx.hpp>
#include <muster/data/sources/image_folder.hpp>
#include <muster/data/sources/jsonl.hpp>
#include <muster/data/sources/libsvm.hpp>
#include <muster/data/sources/mapped_file.hpp>
#include <muster/data/sources/npy.hpp>
#include <muster/data/sources/npz.hpp>
#include <muster/data/sources/raw.hpp>
#include <muster/data/sources/safetensors.hpp>
#include <muster/data/sources/synthetic.hpp>
#include <muster/data/sources/tar.hpp>
#include <muster/data/sources/tfrecord.hpp>
#include <muster/data/sources/tfrecord_examples.hpp>
#include <muster/data/standardise.hpp>
#include <muster/elastic/departure.hpp>
#include <muster/elastic/elastic.hpp>
#include <muster/elastic/elastic_settings.hpp>
#include <muster/elastic/followed_data.hpp>
#include <muster/elastic/place_shards.hpp>
#include <muster/elastic/session.hpp>
#include <muster/elastic/state.hpp>
#include <muster/elastic/step.hpp>
#include <muster/ps/client.hpp>
#include <muster/ps/consistency.hpp>
#include <muster/ps/job.hpp>
#include <muster/ps/ps_settings.hpp>
#include <muster/ps/table.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/checkpoint.hpp>
#include <muster/train/collective_statistics.hpp>
#include <muster/train/optimizers/optimizer.hpp>
#include <muster/train/optimizers/schedule.hpp>
#include <muster/train/sync/compress.hpp>
#include <muster/train/sync/gossip.hpp>
#include <muster/train/sync/gradient_backend.hpp>
#include <muster/train/sync/gradient_sync.hpp>
#include <muster/train/sync/host_gradients.hpp>
#include <muster/train/sync/sync_mode.hpp>
#include <muster/train/sync/typed_gradients.hpp>
#include <muster/train/timeline.hpp>
#include <muster/train/tracker.hpp>
#include <muster/train/train_settings.hpp>
#include <muster/train/training.hpp>

#ifndef MUSTER_COMPILED
#include <muster/train/detail/definitions.hpp>
#endif
