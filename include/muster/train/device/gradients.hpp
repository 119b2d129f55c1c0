// Gradients on a device, for a gradient_sync.
#pragma once

#include <cstddef>
#include <memory>

#include <muster/comm/transports/nccl/communicator.hpp>
#include <muster/core/dtype.hpp>
#include <muster/train/device/device_arena.hpp>
#include <muster/train/sync/gradient_sync.hpp>

namespace muster { inline namespace v0 {

/// Returns the gradients of a device's arena, summed by a communicator. Arena and communicator must outlive the result.
/// The gradients are sent as float32, float16 or bfloat16. The last two send half the bytes, and round each gradient at
/// the sender and once more for each rank. Throws configuration_error for other types.
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
/// `ready` declares that the kernel that writes a gradient is enqueued on the arena's stream. The reduction of a bucket
/// follows that kernel on a separate stream. The host does not block until `wait`, and even then only enqueues: later
/// work on the arena's stream sees the gradients of the whole batch. In an elastic session `devices.rebuild(group)` in
/// `on_rebuild` connects the remaining ranks. When a rank dies during a step, `ready` or `wait` throw peer_failure or
/// timeout_error, which the session handles.
[[nodiscard]] std::unique_ptr<gradient_backend> gradients_on(device_arena& tensors, nccl::communicator& devices,
                                                             dtype send_as = dtype::float32);

/// Returns gradients that the step's group sums in pinned memory of the host, for ranks that share a device, which NCCL
/// rejects, and for ranks without NCCL between them. `begin(step.group())` names the group. A bucket is copied to the
/// host when it is written. Its allreduce starts when the copy is complete, and the sums are copied back. These stages
/// overlap for different buckets. A single rank copies nothing. Throws the errors of the group, and timeout_error for a
/// kernel that does not finish within the group's timeout.
///
///     muster::training training(context, muster::gradients_on(arena), optimizer, loader);
[[nodiscard]] std::unique_ptr<gradient_backend> gradients_on(device_arena& tensors, dtype send_as = dtype::float32);

/// Returns gradients of a device that NCCL sums by PowerSGD of a rank (core/codec/powersgd.hpp). A matrix sends
/// `rank` * (rows + columns) floats. The tensors, the order and the state are the same as with
/// `compress("powersgd:RANK")`. The results differ from the host's by rounding only, and have the same bits at every
/// rank and in each run. A column of zeros restarts from the same random numbers each time. Throws configuration_error
/// for rank 0.
[[nodiscard]] std::unique_ptr<gradient_backend> powersgd_on(device_arena& tensors, nccl::communicator& devices,
                                                            std::size_t rank);

}}  // namespace muster::v0
