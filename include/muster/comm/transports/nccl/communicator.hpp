// Collectives among devices, by NCCL.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <muster/comm/block.hpp>
#include <muster/comm/collectives/call.hpp>
#include <muster/comm/group.hpp>
#include <muster/comm/reduction.hpp>
#include <muster/comm/work.hpp>
#include <muster/core/device/span.hpp>
#include <muster/core/device/stream.hpp>

namespace muster { inline namespace v0 {

namespace detail {
class nccl_state;
class nccl_operation;
}

namespace nccl {

/// The operations with the same results on devices as elsewhere. These are sum and product, mean for floating point,
/// and min and max for integers. NCCL does not promise that min and max keep a NaN, and a diverged gradient would hide.
template <class Op, class T>
concept device_operation = reduction_operation<Op, T> && requires {
  Op::code;
} &&(Op::code == operation::sum || Op::code == operation::product ||
     (std::is_integral_v<T> ? Op::code == operation::min || Op::code == operation::max : Op::code == operation::mean));

/// A call of NCCL: pointers are to a device's memory, which the caller owns until the call is done on its stream.
struct device_call {
  /// The function of NCCL that is called.
  enum class kind { allreduce, reduce, broadcast, allgather, reduce_scatter, send, receive };
  kind function = kind::allreduce;
  const void* in = nullptr;  ///< null for a receive
  void* out = nullptr;       ///< null for a send; equal to `in` for a call in place
  std::size_t count = 0;     ///< elements, as NCCL counts them: elements of a single rank's block if there are blocks
  dtype type = dtype::none;
  operation op = operation::none;
  int peer = 0;  ///< peer of a send or receive, else the root
};

/// The options of a communicator.
struct communicator_options {
  /// Time limit for connecting, and for each collective from the call to the end on the stream, including earlier work
  /// on the stream; 0: the group's timeout.
  seconds timeout{0};
};

/// Returns the version of NCCL in this process, as NCCL writes it: 22809 is 2.28.9.
[[nodiscard]] int version();

/// The handle of an outstanding collective, an event in its stream behind the collective. The call owns its buffers
/// until it is done. Used by the thread that uses the communicator. Destroying an unfinished work waits for it, since
/// the device may still write; an error then stays in the communicator, and the next call throws it.
class [[nodiscard]] work {
 public:
  work() noexcept = default;  ///< done
  explicit work(std::shared_ptr<detail::nccl_operation> under_way) noexcept : operation_(std::move(under_way)) {}
  work(work&&) noexcept = default;
  work& operator=(work&&) noexcept = default;

  /// Returns true when the collective is done, without waiting. Throws the error of the communicator.
  bool test();
  /// Blocks the processor until the collective is done. Throws its error: timeout_error at its deadline, peer_failure.
  /// After an error the device does not touch the buffers any more either, and their content is not defined.
  void wait();
  /// Waits no longer than `limit`. Returns true when the collective is done.
  bool wait_for(seconds limit);
  /// Makes later work on `stream` wait for this collective; the processor does not wait. If the collective fails, the
  /// stream continues: an action that must not happen after a failure has to wait for `wait`.
  void delay(device_stream_ref stream) const;

 private:
  std::shared_ptr<detail::nccl_operation> operation_;
};
static_assert(awaitable_work<work>);
using muster::operator co_await;

/// Keeps memory registered with NCCL, which then does not copy through its own buffers, until the last copy of the
/// handle is destroyed. Made by `communicator::register_memory`; does not own the memory. Null if NCCL is older than
/// 2.19, which has no registration: all calls work, with copies.
using registration = std::shared_ptr<void>;

/// A device at each rank, connected by NCCL: collectives on arrays in memory of devices, each put on a stream.
///
/// All ranks make the same calls in the same order; streams order the calls otherwise. A communicator is used beside a
/// group and is not a `transport`: a group runs one collective after another and checks each from the processor, and a
/// device should be given many collectives at once. The ranks meet and are notified of failures through the group: a
/// rank that fails here aborts the group, and a failure of the group, such as the death of a rank that its transport
/// has detected, ends every wait here with that error. So errors name ranks if the group can.
///
/// Every test asks NCCL for errors, and ncclCommAbort ends NCCL's work at the first error and at every deadline: then
/// all further calls throw the first cause. The communicator uses the device that is current at construction, which has
/// to be current at each call too (configuration_error). Used by one thread at a time; its group by the same thread.
class communicator {
 public:
  /// Connects the devices that are current at the ranks. Collective over `ranks`, which must outlive the communicator;
  /// the communicator has the rank numbers of `ranks`. `options` has the time limit. Throws configuration_error, with
  /// the ranks, where two ranks have the same device or different versions of NCCL. Throws
  /// timeout_error when NCCL does not connect in time, and the group's error if a rank does not make this call at all.
  explicit communicator(group& ranks, const communicator_options& options = {});
  communicator(communicator&&) noexcept = default;
  communicator& operator=(communicator&&) noexcept = default;
  /// Releases the connection, which ends when every `work` and `registration` is destroyed too: in order, or by an
  /// abort after a failure or during stack unwinding.
  ~communicator() = default;

  /// Returns the number of this rank in the group.
  [[nodiscard]] int rank() const noexcept;
  /// Returns the number of ranks in the group.
  [[nodiscard]] int size() const noexcept;
  /// Returns true if every further call throws, because a call failed, timed out or was aborted.
  [[nodiscard]] bool failed() const noexcept;

  /// Aborts: all outstanding work ends without a result, here and, through the group, at the other ranks.
  void abort(std::string_view reason) noexcept;
  /// Connects anew with a new id. Collective over `ranks`, which differ from the earlier ranks. Aborts all earlier work
  /// and the earlier group. Earlier registrations become void. Called in `on_rebuild` of an elastic session, and in
  /// `each_group` of a training. Does nothing if the communicator connects these ranks already.
  void rebuild(group& ranks);

  /// Registers memory that many calls use. `values` outlives the result.
  template <device_element T>
  [[nodiscard]] registration register_memory(device_span<T> values) {
    return register_bytes(values.data(), values.size_bytes());
  }

  /// Combines: out[i] becomes op over all ranks' in[i], with the same bits at each rank; in place when `in` and `out`
  /// are the same.
  template <device_element T, device_operation<T> Op>
  work allreduce(device_span<const T> in, device_span<T> out, Op, device_stream_ref stream) {
    detail::require_size(collective::allreduce, "output", out.size(), in.size());
    return start(call<T>(kind::allreduce, in.data(), out.data(), in.size(), Op::code), stream);
  }
  template <device_element T, device_operation<T> Op>
  work allreduce(device_span<T> data, Op op, device_stream_ref stream) {
    return allreduce(device_span<const T>(data), data, op, stream);
  }
  /// Runs several at once, in place, as one group call of NCCL: for lists of buckets.
  template <device_element T, device_operation<T> Op>
  work allreduce(std::span<const device_span<T>> list, Op, device_stream_ref stream) {
    std::vector<device_call> calls;
    calls.reserve(list.size());
    for (const auto& data : list) {
      calls.push_back(call<T>(kind::allreduce, data.data(), data.data(), data.size(), Op::code));
    }
    return start(calls, stream);
  }

  /// Combines at the root: the root's `out` becomes op over all ranks' `in`; elsewhere `out` may be empty.
  template <device_element T, device_operation<T> Op>
  work reduce(device_span<const T> in, device_span<T> out, Op, int root, device_stream_ref stream) {
    detail::require_root(collective::reduce, root, size());
    if (rank() == root) detail::require_size(collective::reduce, "output", out.size(), in.size());
    return start(call<T>(kind::reduce, in.data(), out.data(), in.size(), Op::code, root), stream);
  }

  /// Sends the root's data to all ranks.
  template <device_element T>
  work broadcast(device_span<T> data, int root, device_stream_ref stream) {
    detail::require_root(collective::broadcast, root, size());
    return start(call<T>(kind::broadcast, data.data(), data.data(), data.size(), operation::none, root), stream);
  }

  /// Gathers at all ranks: block r of `out` (see block_of: any length works) becomes rank r's `in`.
  template <device_element T>
  work allgather(device_span<const T> in, device_span<T> out, device_stream_ref stream) {
    detail::require_size(collective::allgather, "input", in.size(), block_of(out.size(), rank(), size()).count);
    return start(blockwise<T>(kind::allgather, in.data(), out.data(), out.size(), operation::none), stream);
  }

  /// Combines and scatters: `out` becomes this rank's block of op over all ranks' `in`.
  template <device_element T, device_operation<T> Op>
  work reduce_scatter(device_span<const T> in, device_span<T> out, Op, device_stream_ref stream) {
    detail::require_size(collective::reduce_scatter, "output", out.size(), block_of(in.size(), rank(), size()).count);
    return start(blockwise<T>(kind::reduce_scatter, in.data(), out.data(), in.size(), Op::code), stream);
  }

  /// Gathers at the root: piece r of the root's `out` becomes rank r's `in`; elsewhere `out` may be empty.
  template <device_element T>
  work gather(device_span<const T> in, device_span<T> out, int root, device_stream_ref stream) {
    detail::require_root(collective::gather, root, size());
    if (rank() == root)
      detail::require_size(collective::gather, "output", out.size(), in.size() * static_cast<std::size_t>(size()));
    std::vector<device_call> calls{send_call<T>(in, root)};
    for (int sender = 0; rank() == root && sender < size(); ++sender) {
      calls.push_back(receive_piece_call(out, in.size(), sender));
    }
    return start(calls, stream);
  }

  /// Scatters from the root: `out` becomes this rank's piece of the root's `in`; elsewhere `in` may be empty.
  template <device_element T>
  work scatter(device_span<const T> in, device_span<T> out, int root, device_stream_ref stream) {
    detail::require_root(collective::scatter, root, size());
    if (rank() == root)
      detail::require_size(collective::scatter, "input", in.size(), out.size() * static_cast<std::size_t>(size()));
    std::vector<device_call> calls{receive_call<T>(out, root)};
    for (int receiver = 0; rank() == root && receiver < size(); ++receiver) {
      calls.push_back(send_piece_call(in, out.size(), receiver));
    }
    return start(calls, stream);
  }

  /// Exchanges pieces: piece r of `out` becomes the piece for this rank in rank r's `in`. Both are cut into size()
  /// equal pieces.
  template <device_element T>
  work all_to_all(device_span<const T> in, device_span<T> out, device_stream_ref stream) {
    const std::size_t count = in.size() / static_cast<std::size_t>(size());
    detail::require_size(collective::all_to_all, "output", out.size(), in.size());
    detail::require_size(collective::all_to_all, "input", in.size(), count * static_cast<std::size_t>(size()));
    std::vector<device_call> calls;
    for (int peer = 0; peer < size(); ++peer) {
      calls.push_back(send_piece_call(in, count, peer));
      calls.push_back(receive_piece_call(out, count, peer));
    }
    return start(calls, stream);
  }

  /// Sends to a rank that calls `receive`. The work is done when this rank's side is done.
  template <device_element T>
  work send(device_span<const T> data, int peer, device_stream_ref stream) {
    require_rank_in_range("send", peer);
    return start(send_call(data, peer), stream);
  }
  /// Receives from a rank that calls `send`.
  template <device_element T>
  work receive(device_span<T> data, int peer, device_stream_ref stream) {
    require_rank_in_range("receive", peer);
    return start(receive_call(data, peer), stream);
  }
  /// Sends and receives at the same time, as neighbours in a ring do.
  template <device_element T>
  work send_receive(device_span<const T> out, int receiver, device_span<T> in, int sender, device_stream_ref stream) {
    require_rank_in_range("send", receiver);
    require_rank_in_range("receive", sender);
    const device_call both[] = {send_call(out, receiver), receive_call(in, sender)};
    return start(both, stream);
  }

 private:
  using kind = device_call::kind;

  template <class T>
  [[nodiscard]] static device_call call(kind function, const T* in, T* out, std::size_t count, operation op,
                                        int peer = 0) {
    return {function, in, out, count, dtype_of<T>(), op, peer};
  }
  template <class T>
  [[nodiscard]] static device_call send_call(device_span<const T> data, int peer) {
    return call<T>(kind::send, data.data(), nullptr, data.size(), operation::none, peer);
  }
  template <class T>
  [[nodiscard]] static device_call receive_call(device_span<T> data, int peer) {
    return call<T>(kind::receive, nullptr, data.data(), data.size(), operation::none, peer);
  }
  template <class T>
  [[nodiscard]] static device_call send_piece_call(device_span<const T> pieces, std::size_t count, int peer) {
    return send_call(pieces.subspan(count * static_cast<std::size_t>(peer), count), peer);
  }
  template <class T>
  [[nodiscard]] static device_call receive_piece_call(device_span<T> pieces, std::size_t count, int peer) {
    return receive_call(pieces.subspan(count * static_cast<std::size_t>(peer), count), peer);
  }
  // Uses NCCL's own collective if blocks are equal; otherwise one call per block, as one group.
  template <class T>
  [[nodiscard]] std::vector<device_call> blockwise(kind function, const T* in, T* out, std::size_t count,
                                                   operation op) const {
    const bool gathers = function == kind::allgather;
    const auto ranks = static_cast<std::size_t>(size());
    if (count % ranks == 0) return {call<T>(function, in, out, count / ranks, op)};
    std::vector<device_call> calls;
    for (int owner = 0; owner < size(); ++owner) {
      const block part = block_of(count, owner, size());
      calls.push_back(gathers ? call<T>(kind::broadcast, in, out + part.first, part.count, operation::none, owner)
                              : call<T>(kind::reduce, in + part.first, out, part.count, op, owner));
    }
    return calls;
  }

  void require_rank_in_range(const char* operation, int rank) const;
  [[nodiscard]] registration register_bytes(void* address, std::size_t bytes);
  work start(std::span<const device_call> calls, device_stream_ref stream);
  work start(const device_call& call, device_stream_ref stream) { return start(std::span(&call, 1), stream); }

  communicator_options options_;
  std::shared_ptr<detail::nccl_state> state_;
};

}  // namespace nccl
}}  // namespace muster::v0
