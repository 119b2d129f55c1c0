// Gradients on a device, for a gradient_sync.
#pragma once

#include <cstddef>
#include <memory>

#include <muster/comm/transports/nccl/communicator.hpp>
#include <muster/core/dtype.hpp>
#include <muster/train/device/arena.hpp>
#include <muster/train/sync/gradient_sync.hpp>

namespace muster { inline namespace v0 {

/// The gradients of a device's arena, summed by a communicator; both outlive what is returned. They travel as float32,
/// float16 or bfloat16: the last two send half the bytes, and round each gradient and once more with each rank. Throws
/// configuration_error for others.
///
///     muster::gradient_sync sync(muster::gradients_on(arena, devices), {.bucket = 25_MiB, .first_bucket = 1_MiB});
///     session.run(state, [&](muster::step& step) {
///       auto backward = sync.begin();
///       backward.add_samples(batch.size());
///       model.forward_backward(batch, backward);  // puts kernels on the arena's stream, and calls ready(tensor)
///       backward.wait();
///       optimizer.apply(schedule(step));
///     });
///
/// `ready` says that what writes a gradient was put on the arena's stream: a bucket leaves behind that, on a stream of
/// its own, and the processor waits for nothing until `wait`; what is put on the arena's stream then sees the gradients
/// of the whole batch. In an elastic session `devices.rebuild(group)` in `on_rebuild` connects those that are left;
/// what a dead rank does to a step is thrown by `ready` or `wait` as peer_failure or timeout_error, by which the
/// session knows what to do.
[[nodiscard]] std::unique_ptr<gradient_backend> gradients_on(device_arena& of, nccl::communicator& devices,
                                                             dtype send_as = dtype::float32);

/// The same, summed by the group of the step in pinned memory of the host: where ranks share a device, which NCCL
/// refuses, or there is no NCCL between them. `begin(step.group())` names the group. A bucket is copied to the host
/// when it is written, its allreduce starts when it is there, and the sums are copied back, each while others are on
/// their way. One rank alone copies nothing. Its errors are those of the group, and timeout_error for a kernel that is
/// not done within the group's timeout.
///
///     muster::training training(context, muster::gradients_on(arena), optimizer, loader);
[[nodiscard]] std::unique_ptr<gradient_backend> gradients_on(device_arena& of, dtype send_as = dtype::float32);

/// Gradients of a device that NCCL sums by PowerSGD of a rank (core/codec/powersgd.hpp): `rank` * (rows + columns)
/// floats of a matrix are sent. The tensors, the order and the state are those of `compress("powersgd:RANK")`; the
/// results are the host's but for rounding, the same bits at every rank and in each run. A column of zeros begins anew
/// with the same random numbers each time. Throws configuration_error for rank 0.
[[nodiscard]] std::unique_ptr<gradient_backend> powersgd_on(device_arena& of, nccl::communicator& devices,
                                                            std::size_t rank);

}}  // namespace muster::v0
