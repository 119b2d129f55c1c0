// muster: distributed training for C++. This header is all of it but the vendors' parts.
//
//   #include <muster/muster.hpp>
//   int main(int argc, char** argv) {
//     muster::context context(argc, argv);
//     auto& world = context.world();
//     std::vector<float> gradient(1 << 20, float(world.rank()));
//     muster::allreduce(world, std::span(gradient), muster::mean);          // in place
//     muster::broadcast(world, std::span(gradient), /*root=*/0);
//     auto work = muster::allreduce_async(world, std::span(gradient), muster::sum);
//     work.wait();
//   }
#pragma once

#include <muster/comm/algorithm.hpp>
#include <muster/comm/algorithm_rules.hpp>
#include <muster/comm/any_transport.hpp>
#include <muster/comm/block.hpp>
#include <muster/comm/collectives/all_to_all.hpp>
#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/collectives/gather.hpp>
#include <muster/comm/collectives/reduce.hpp>
#include <muster/comm/collectives/reduce_scatter.hpp>
#include <muster/comm/collectives/scatter.hpp>
#include <muster/comm/context.hpp>
#include <muster/comm/group.hpp>
#include <muster/comm/local.hpp>
#include <muster/comm/profile.hpp>
#include <muster/comm/reduction.hpp>
#include <muster/comm/rendezvous/exchange.hpp>
#include <muster/comm/rendezvous/file_store.hpp>
#include <muster/comm/rendezvous/host_identity.hpp>
#include <muster/comm/rendezvous/launch_env.hpp>
#include <muster/comm/rendezvous/open_store.hpp>
#include <muster/comm/rendezvous/store.hpp>
#include <muster/comm/transport.hpp>
#include <muster/comm/work.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/buffer.hpp>
#include <muster/core/bytes.hpp>
#include <muster/core/clock.hpp>
#include <muster/core/dtype.hpp>
#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/core/events.hpp>
#include <muster/core/float16.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/log.hpp>
#include <muster/core/progress.hpp>
#include <muster/core/random.hpp>
#include <muster/core/training_position.hpp>
#include <muster/core/update.hpp>
#include <muster/core/version.hpp>
#include <muster/data/any_loader.hpp>
#include <muster/data/bad_records.hpp>
#include <muster/data/block_window.hpp>
#include <muster/data/cache.hpp>
#include <muster/data/cifar.hpp>
#include <muster/data/csv.hpp>
#include <muster/data/cursor.hpp>
#include <muster/data/dataset.hpp>
#include <muster/data/dataset_builder.hpp>
#include <muster/data/epoch_order.hpp>
#include <muster/data/epoch_plan.hpp>
#include <muster/data/feistel.hpp>
#include <muster/data/fixed_records.hpp>
#include <muster/data/idx.hpp>
#include <muster/data/image.hpp>
#include <muster/data/libsvm.hpp>
#include <muster/data/live_cursor.hpp>
#include <muster/data/load.hpp>
#include <muster/data/loader.hpp>
#include <muster/data/npy.hpp>
#include <muster/data/open.hpp>
#include <muster/data/permutation.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/placement.hpp>
#include <muster/data/raw.hpp>
#include <muster/data/record_batch.hpp>
#include <muster/data/record_cache.hpp>
#include <muster/data/record_chain.hpp>
#include <muster/data/record_schema.hpp>
#include <muster/data/record_source.hpp>
#include <muster/data/record_transform.hpp>
#include <muster/data/records/manifest.hpp>
#include <muster/data/records/reader.hpp>
#include <muster/data/records/writer.hpp>
#include <muster/data/slice.hpp>
#include <muster/data/synthetic.hpp>
#include <muster/data/text_file.hpp>
#include <muster/data/tfrecord.hpp>
#include <muster/elastic/session.hpp>
#include <muster/elastic/state.hpp>
#include <muster/elastic/step.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/bucket.hpp>
#include <muster/train/checkpoint.hpp>
#include <muster/train/gossip.hpp>
#include <muster/train/gradient_sync.hpp>
#include <muster/train/scatter_records.hpp>
#include <muster/train/schedule.hpp>
#include <muster/train/sgd.hpp>
#include <muster/train/sync_mode.hpp>
#include <muster/train/timeline.hpp>
#include <muster/train/tracker.hpp>
