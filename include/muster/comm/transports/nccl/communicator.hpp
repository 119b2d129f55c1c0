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
#include <muster/core/device/span.hpp>
#include <muster/core/device/stream.hpp>

namespace muster { inline namespace v0 {

namespace detail {
class nccl_state;
class nccl_operation;
}

namespace nccl {

/// The operations that give on devices what they give elsewhere: sum and product; for floating point mean; for whole
/// numbers min and max, since NCCL does not promise to keep a NaN, behind which a diverged gradient would hide.
template <class Op, class T>
concept device_operation = reduction_operation<Op, T> && requires {
  Op::code;
} &&(Op::code == operation::sum || Op::code == operation::product ||
     (std::is_integral_v<T> ? Op::code == operation::min || Op::code == operation::max : Op::code == operation::mean));

/// A call of NCCL: pointers are to a device's memory, which the caller owns until the call is done on its stream.
struct device_call {
  /// The function of NCCL that is called.
  enum class kind { allreduce, reduce, broadcast, allgather, reduce_scatter, send, receive };

  kind what = kind::allreduce;
  const void* in = nullptr;  ///< null for a receive
  void* out = nullptr;       ///< null for a send; equal to `in` for a call in place
  std::size_t count = 0;     ///< elements, as NCCL counts them: of one rank's block where there are blocks
  dtype type = dtype::none;
  operation op = operation::none;
  int peer = 0;  ///< or root
};

/// What a communicator is made with.
struct communicator_options {
  /// Of connecting, and of each collective from its start on a stream to its end there; 0: the group's.
  seconds timeout{0};
};

/// The version of NCCL that this process runs with, as NCCL writes it: 22809 is 2.28.9.
[[nodiscard]] int version();

/// A collective under way, as a mark behind it in its stream. The buffers of the call are its alone until then. Used by
/// the thread that uses the communicator. Destroying one that is not done waits for it, since the device may still
/// write; an error then stays in the communicator, where the next call throws it.
class [[nodiscard]] work {
 public:
  work() noexcept = default;  ///< done
  explicit work(std::shared_ptr<detail::nccl_operation> under_way) noexcept : operation_(std::move(under_way)) {}
  work(work&&) noexcept = default;
  work& operator=(work&&) noexcept = default;

  /// True when it is done, without waiting. Throws what the communicator failed with.
  bool test();
  /// Has the processor wait until it is done. Throws what it failed with: timeout_error at its deadline, peer_failure.
  /// Then the device does not touch the buffers any more either, and their content is not defined.
  void wait();
  /// What is put on `stream` from here on begins when this is done; the processor does not wait. A failure of the
  /// collective lets the stream go on: what must not happen then has to wait for `wait`.
  void hold_back(device_stream_ref stream) const;

 private:
  std::shared_ptr<detail::nccl_operation> operation_;
};

/// Keeps memory registered with NCCL, which then does not copy through buffers of its own, until the last copy of this
/// is gone. Made by `communicator::register_memory`; does not own the memory. Null where NCCL is older than 2.19, which
/// has no registration: everything works, by copies.
using registration = std::shared_ptr<void>;

/// One device of each rank, connected by NCCL: an array of collectives on memory of devices, each put on a stream.
///
/// All ranks make the same calls in the same order; streams order them otherwise. It stands beside a group and not
/// behind the `transport` seam: a group has one collective after another and looks at each from the processor, and a
/// device is to be given many at once. The group is where the ranks meet and hear of each other: one that fails here
/// aborts the group, and a failure of the group, such as the death of a rank that its transport has found out, ends
/// every wait here with that error. So errors name ranks where the group can.
///
/// NCCL is asked for errors at every test, and ncclCommAbort ends it at the first error and at every deadline: then all
/// further calls throw the first cause. The device current at the making is the communicator's, and has to be current
/// at each call (configuration_error). Used by one thread at a time; its group by the same.
class communicator {
 public:
  /// Collective over the ranks of `ranks`, which must live as long; takes over their numbers. Two ranks cannot
  /// have the same device, nor different versions of NCCL: configuration_error, naming them. timeout_error when NCCL
  /// does not connect in time; what the group throws where a rank does not come at all.
  explicit communicator(group& ranks, const communicator_options& options = {});
  communicator(communicator&&) noexcept = default;
  communicator& operator=(communicator&&) noexcept = default;
  /// Ends in order when nothing has failed and every work is done; otherwise aborts.
  ~communicator() = default;

  /// As of the group; and whether every further call throws, because one failed, timed out or was aborted.
  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int size() const noexcept;
  [[nodiscard]] bool failed() const noexcept;

  /// Gives up: whatever is under way ends without a result, here and, through the group, at the others.
  void abort(std::string_view reason) noexcept;
  /// Collective over `ranks`, others than before: aborts what was, and connects anew with a new id. Registrations of
  /// before are void. What an elastic session calls in `on_rebuild`, and a training in `each_group`. Nothing happens
  /// where it connects these ranks already.
  void rebuild(group& ranks);

  /// Registers memory that many calls use. `values` outlives the result.
  template <device_element T>
  [[nodiscard]] registration register_memory(device_span<T> values) {
    return register_bytes(values.data(), values.size_bytes());
  }

  /// out[i] becomes op over all ranks' in[i], with the same bits at each; in place when both are the same.
  template <device_element T, device_operation<T> Op>
  work allreduce(device_span<const T> in, device_span<T> out, Op, device_stream_ref stream) {
    detail::require_size(collective::allreduce, "output", out.size(), in.size());
    return start(call<T>(kind::allreduce, in.data(), out.data(), in.size(), Op::code), stream);
  }
  template <device_element T, device_operation<T> Op>
  work allreduce(device_span<T> data, Op op, device_stream_ref stream) {
    return allreduce(device_span<const T>(data), data, op, stream);
  }
  /// Several at once, in place, as one group call of NCCL: for lists of buckets.
  template <device_element T, device_operation<T> Op>
  work allreduce(std::span<const device_span<T>> list, Op, device_stream_ref stream) {
    std::vector<device_call> calls;
    calls.reserve(list.size());
    for (const auto& data : list) {
      calls.push_back(call<T>(kind::allreduce, data.data(), data.data(), data.size(), Op::code));
    }
    return start(calls, stream);
  }

  /// The root's `out` becomes op over all ranks' `in`; elsewhere `out` may be empty.
  template <device_element T, device_operation<T> Op>
  work reduce(device_span<const T> in, device_span<T> out, Op, int root, device_stream_ref stream) {
    detail::require_root(collective::reduce, root, size());
    if (rank() == root) detail::require_size(collective::reduce, "output", out.size(), in.size());
    return start(call<T>(kind::reduce, in.data(), out.data(), in.size(), Op::code, root), stream);
  }

  /// The root's data reaches all.
  template <device_element T>
  work broadcast(device_span<T> data, int root, device_stream_ref stream) {
    detail::require_root(collective::broadcast, root, size());
    return start(call<T>(kind::broadcast, data.data(), data.data(), data.size(), operation::none, root), stream);
  }

  /// Block r of `out` (see block_of: any length will do) becomes rank r's `in`.
  template <device_element T>
  work allgather(device_span<const T> in, device_span<T> out, device_stream_ref stream) {
    detail::require_size(collective::allgather, "input", in.size(), block_of(out.size(), rank(), size()).count);
    return start(blockwise<T>(kind::allgather, in.data(), out.data(), out.size(), operation::none), stream);
  }

  /// `out` becomes this rank's block of op over all ranks' `in`.
  template <device_element T, device_operation<T> Op>
  work reduce_scatter(device_span<const T> in, device_span<T> out, Op, device_stream_ref stream) {
    detail::require_size(collective::reduce_scatter, "output", out.size(), block_of(in.size(), rank(), size()).count);
    return start(blockwise<T>(kind::reduce_scatter, in.data(), out.data(), in.size(), Op::code), stream);
  }

  /// Piece r of the root's `out` becomes rank r's `in`; elsewhere `out` may be empty.
  template <device_element T>
  work gather(device_span<const T> in, device_span<T> out, int root, device_stream_ref stream) {
    detail::require_root(collective::gather, root, size());
    if (rank() == root)
      detail::require_size(collective::gather, "output", out.size(), in.size() * static_cast<std::size_t>(size()));
    std::vector<device_call> calls{to<T>(in, root)};
    for (int from = 0; rank() == root && from < size(); ++from) calls.push_back(piece_from(out, in.size(), from));
    return start(calls, stream);
  }

  /// `out` becomes this rank's piece of the root's `in`; elsewhere `in` may be empty.
  template <device_element T>
  work scatter(device_span<const T> in, device_span<T> out, int root, device_stream_ref stream) {
    detail::require_root(collective::scatter, root, size());
    if (rank() == root)
      detail::require_size(collective::scatter, "input", in.size(), out.size() * static_cast<std::size_t>(size()));
    std::vector<device_call> calls{from<T>(out, root)};
    for (int whom = 0; rank() == root && whom < size(); ++whom) calls.push_back(piece_to(in, out.size(), whom));
    return start(calls, stream);
  }

  /// Piece r of `out` becomes the piece for this rank in rank r's `in`. Both are cut into size() equal pieces.
  template <device_element T>
  work all_to_all(device_span<const T> in, device_span<T> out, device_stream_ref stream) {
    const std::size_t count = in.size() / static_cast<std::size_t>(size());
    detail::require_size(collective::all_to_all, "output", out.size(), in.size());
    detail::require_size(collective::all_to_all, "input", in.size(), count * static_cast<std::size_t>(size()));
    std::vector<device_call> calls;
    for (int peer = 0; peer < size(); ++peer) {
      calls.push_back(piece_to(in, count, peer));
      calls.push_back(piece_from(out, count, peer));
    }
    return start(calls, stream);
  }

  /// To one rank, which receives, and from one that sends; each is done when its side of it is.
  template <device_element T>
  work send(device_span<const T> data, int peer, device_stream_ref stream) {
    require_peer("send", peer);
    return start(to(data, peer), stream);
  }
  template <device_element T>
  work receive(device_span<T> data, int peer, device_stream_ref stream) {
    require_peer("receive", peer);
    return start(from(data, peer), stream);
  }
  /// Both at once, as neighbours in a ring need it.
  template <device_element T>
  work send_receive(device_span<const T> out, int to_whom, device_span<T> in, int from_whom, device_stream_ref stream) {
    require_peer("send", to_whom);
    require_peer("receive", from_whom);
    const device_call both[] = {to(out, to_whom), from(in, from_whom)};
    return start(both, stream);
  }

 private:
  using kind = device_call::kind;

  template <class T>
  [[nodiscard]] static device_call call(kind what, const T* in, T* out, std::size_t count, operation op, int peer = 0) {
    return {what, in, out, count, dtype_of<T>(), op, peer};
  }
  template <class T>
  [[nodiscard]] static device_call to(device_span<const T> data, int peer) {
    return call<T>(kind::send, data.data(), nullptr, data.size(), operation::none, peer);
  }
  template <class T>
  [[nodiscard]] static device_call from(device_span<T> data, int peer) {
    return call<T>(kind::receive, nullptr, data.data(), data.size(), operation::none, peer);
  }
  template <class T>
  [[nodiscard]] static device_call piece_to(device_span<const T> pieces, std::size_t count, int peer) {
    return to(pieces.subspan(count * static_cast<std::size_t>(peer), count), peer);
  }
  template <class T>
  [[nodiscard]] static device_call piece_from(device_span<T> pieces, std::size_t count, int peer) {
    return from(pieces.subspan(count * static_cast<std::size_t>(peer), count), peer);
  }
  // NCCL's own where blocks are equal; else one call a block, as one group.
  template <class T>
  [[nodiscard]] std::vector<device_call> blockwise(kind what, const T* in, T* out, std::size_t count,
                                                   operation op) const {
    const bool gathers = what == kind::allgather;
    const auto ranks = static_cast<std::size_t>(size());
    if (count % ranks == 0) return {call<T>(what, in, out, count / ranks, op)};
    std::vector<device_call> calls;
    for (int owner = 0; owner < size(); ++owner) {
      const block part = block_of(count, owner, size());
      calls.push_back(gathers ? call<T>(kind::broadcast, in, out + part.first, part.count, operation::none, owner)
                              : call<T>(kind::reduce, in + part.first, out, part.count, op, owner));
    }
    return calls;
  }

  void require_peer(const char* what, int peer) const;
  [[nodiscard]] registration register_bytes(void* memory, std::size_t bytes);
  work start(std::span<const device_call> calls, device_stream_ref stream);
  work start(const device_call& one, device_stream_ref stream) { return start(std::span(&one, 1), stream); }

  communicator_options options_;
  std::shared_ptr<detail::nccl_state> state_;
};

}  // namespace nccl
}}  // namespace muster::v0
