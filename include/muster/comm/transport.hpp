// The interface of transports: messages between the ranks of a group, started and tested, never blocking.
//
// Protocol of a request. The caller sets the arguments and calls `send`, `receive` or `native`; the transport sets
// `owner`. While `owner` is set, the transport may read and write the request and its buffer, and the caller does
// neither. The transport sets the results and then `owner` to null, in any of its functions or in another thread that
// advances the transport. `cancel` and the destructor of an unfinished request take the request back from the
// transport. Invariant: after `owner` is null, neither the transport nor a peer touches the request or its buffer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <muster/comm/algorithms/algorithm.hpp>
#include <muster/comm/reduction.hpp>
#include <muster/core/clock.hpp>
#include <muster/core/error.hpp>

namespace muster { inline namespace v0 {

namespace detail {
struct uneven_pieces;
}

/// The collective that a message belongs to. Every message carries the signature, and the receiver compares it with its
/// own call, which detects ranks that disagree.
struct collective_signature {
  std::uint64_t sequence = 0;  ///< number of the collective in its group
  std::uint64_t count = 0;     ///< elements of the larger buffer; gather, scatter, all_to_all: of a single piece
  /// With uneven pieces the root is below 0: the complement of the root, or of a digest of the counts. A gather,
  /// scatter or all_to_all then has the count 0.
  std::int32_t root = 0;
  collective kind = collective::none;
  dtype type = dtype::none;
  operation op = operation::none;
  muster::algorithm algorithm = muster::algorithm::automatic;

  /// Returns true for a collective of uneven pieces.
  [[nodiscard]] bool is_uneven() const noexcept { return root < 0; }
  bool operator==(const collective_signature&) const = default;
};

/// Returns a signature as errors write it: "allreduce of 1024 float32, sum, by ring".
[[nodiscard]] std::string describe(const collective_signature& signature);

/// A control message: short, independent of the order of collectives, about failures and progress.
struct control_message {
  enum class kind : std::uint8_t {
    abort = 1,        ///< the sender has failed because of `text`
    acknowledge = 2,  ///< the sender has failed because another rank has failed
    position = 3,     ///< the sender waits, in the collective of `signature`
    leave = 4,        ///< the sender has left the group, after `signature.sequence` collectives
    peer_ended = 5    ///< from this rank's transport: the rank `origin` has ended; `text` has the reason
  };
  kind type = kind::position;
  std::int32_t origin = 0;  ///< rank of the sender in the group of the transport that received the message
  std::int32_t status = 0;  ///< exit status of the sender
  collective_signature signature;
  char text[456] = {};  ///< one line, cut to fit, zero-terminated

  /// Returns a transport's message that a rank has ended; `reason` is cut to fit.
  [[nodiscard]] static control_message rank_ended(int rank, std::string_view reason) noexcept;
  /// Returns true if the sender reports that it has failed.
  [[nodiscard]] bool reports_failure() const noexcept { return type == kind::abort || type == kind::acknowledge; }
  /// Copies as much of `line` as fits.
  void set_text(std::string_view line) noexcept {
    const std::size_t n = line.size() < sizeof text - 1 ? line.size() : sizeof text - 1;
    std::memcpy(text, line.data(), n);
    text[n] = '\0';
  }
};

/// The cost model of messages, by which algorithms are chosen. In seconds, and seconds per byte.
struct transport_costs {
  double latency = 1e-6;
  double per_byte = 1e-10;
  double reduce_per_byte = 1e-10;
  double next_message = 1;  ///< additional time for each further message to another peer at the same time, in latencies
  double ranks_a_core = 1;  ///< ranks per core; above 1, the work of different ranks hardly overlaps
};

/// The abilities of a transport. A caller must test an ability before it relies on it.
struct transport_abilities {
  std::string_view name;            ///< "self", "threads", "mpi": a string literal
  bool native_collectives = false;  ///< `native` may return true
  bool prefers_native =
      false;  ///< native collectives compare signatures, can be cancelled and are faster than the library's
  bool any_source = false;         ///< `request::peer` of a receive may be `any_source`
  bool detects_death = false;      ///< the death of a peer is detected before the deadline
  bool replaces_buffers = false;   ///< `transport::replace_buffer` may return true
  bool concurrent_groups = false;  ///< different groups may be used by different threads at the same time
  /// a message is combined only after it has completely arrived in a buffer: large messages are sent in pieces
  bool buffers_whole_message = false;
  transport_costs costs;
};

/// Matches any sender, in `request::peer` of a receive: the first message of any rank. For tagged messages only. If the
/// sender fails in the middle of the message, a transport may complete the receive with `received` 0.
inline constexpr int any_source = -1;

/// The first tag that is reserved for the library; all higher tags are reserved too.
inline constexpr std::uint32_t first_library_tag = 16000;

/// Largest size in bytes of a native collective's larger buffer that the transport copies, see `transport::native`.
inline constexpr std::size_t native_copied_up_to = 65536;

class transport;

/// Measured quality of the connection to a rank.
struct link_quality {
  std::uint64_t sent = 0;  ///< bytes that have arrived at the rank so far
  double bandwidth = 0;    ///< estimate in bytes per second when last busy, perhaps too high; 0: not known
  double latency = 0;      ///< the shortest round trip in seconds
};

/// A send, receive or native collective: its arguments, its result, and memory for the transport, so that starting it
/// allocates nothing. A request does not move, and is cancelled when it is destroyed unfinished. The caller owns the
/// buffer, which stays alive and untouched until the request is done.
class request {
 public:
  request() = default;
  request(const request&) = delete;
  request& operator=(const request&) = delete;
  ~request();
  /// Returns the owner; null when the request is done. A thread besides the caller's may advance the transport and end
  /// the caller's requests: so only a thread that holds that transport's lock may read `owner` directly.
  [[nodiscard]] transport* owning_transport() const noexcept {
    return std::atomic_ref<transport*>(const_cast<transport*&>(owner)).load(std::memory_order_acquire);
  }

  // Arguments.
  std::byte* data = nullptr;  ///< read by a send, written by a receive
  std::size_t bytes = 0;  ///< bytes of a send; exact size of a collective's receive; largest size of a tagged receive
  int peer = 0;
  std::uint32_t tag = 0;  ///< 0 for collectives
  collective_signature signature;
  /// operation by which a receive combines the message with `data` instead of overwriting it
  const reduction* combine = nullptr;
  bool incoming_first = false;  ///< true if the message is the left operand
  /// true for a tagged receive that is done when there is a message for it, and leaves the message for another receive
  bool peeks = false;

  // Results of a receive, valid when it is done.
  int source = 0;            ///< rank of the sender
  std::size_t received = 0;  ///< bytes of the message

  // State of the transport.
  transport* owner = nullptr;  ///< set while the transport may touch the request; null: done, or never started
  request* next = nullptr;     ///< the next request in the transport's list that contains this request
  std::uint64_t order = 0;     ///< its place in a request_table
  int state = 0;               ///< defined by the transport
  alignas(16) std::byte transport_storage[96];  ///< the transport's own data of the request; not initialised
};

/// A call of a collective, with its element type erased: the signature and the buffers.
struct collective_call : collective_signature {
  collective_call() = default;
  /// Constructs a call; `size` is the bytes per element, `limit` the time limit. Not an aggregate: an aggregate would
  /// be cleared as a whole first, which takes a tenth of the shortest call.
  collective_call(const collective_signature& signature_in, const std::byte* input, std::byte* output, std::size_t size,
                  reduction&& reduce_in, seconds limit)
      : collective_signature(signature_in),
        in(input),
        out(output),
        element_size(size),
        reduce(std::move(reduce_in)),
        timeout(limit) {}

  const std::byte* in = nullptr;  ///< input of the caller; without meaning if this rank contributes nothing
  std::byte* out = nullptr;       ///< output; equal to `in` for a call in place; not used if this rank receives nothing
  std::size_t element_size = 1;
  reduction reduce;
  seconds timeout{0};  ///< 0: the group's timeout
  /// the division of the buffers if the call has uneven pieces, else null; lives as long as the call
  const detail::uneven_pieces* uneven = nullptr;
  /// the collective that this call is a step of; null if it is not a step
  const collective_signature* step_of = nullptr;
  /// Returns true for an allreduce of several buffers.
  [[nodiscard]] bool packs_buffers() const noexcept { return uneven != nullptr && kind == collective::allreduce; }
  /// Returns the signature of the program's call, for comparison between ranks.
  [[nodiscard]] const collective_signature& signature() const noexcept { return step_of != nullptr ? *step_of : *this; }
};

/// The arguments of `transport::subgroup`, which makes a group of some of the transport's ranks.
struct subgroup_call {
  std::span<const int> members;             ///< ranks of the members, in the new order
  std::uint64_t id = 0;                     ///< id of the new group: new, and the same at all members
  std::span<const std::uint64_t> prepared;  ///< results that `prepare` returned at each rank, by rank in this transport
  clock::time_point deadline;               ///< deadline

  /// Returns the number that `rank`, a member, has in the new group.
  [[nodiscard]] int new_rank_of(int rank) const;
};

/// A transport connects the ranks of a group. Messages from one rank to another with one tag arrive in order. An object
/// is used by one thread at a time and does not move.
class transport {
 public:
  transport() = default;
  transport(const transport&) = delete;
  transport& operator=(const transport&) = delete;
  virtual ~transport() = default;

  /// Returns the number of this rank in the group, from 0; constant.
  [[nodiscard]] virtual int rank() const = 0;
  /// Returns the number of ranks in the group; constant.
  [[nodiscard]] virtual int size() const = 0;
  /// Returns the abilities of the transport in this group; constant.
  [[nodiscard]] virtual transport_abilities abilities() const = 0;
  /// Returns the source of buffers that peers can access without a copy; null when no memory is better than any other.
  [[nodiscard]] virtual std::pmr::memory_resource* memory() const { return nullptr; }
  /// Returns true if this host has more ranks than cores.
  [[nodiscard]] virtual bool oversubscribed() const = 0;
  /// Returns true if the host is oversubscribed and the peer that this rank waits for may need this core: then the
  /// caller yields instead of polling.
  [[nodiscard]] virtual bool should_yield() const { return oversubscribed(); }

  /// Starts a send; the fields of the request are its arguments.
  virtual void send(request& req) = 0;
  /// Starts a receive; the fields of the request are its arguments.
  virtual void receive(request& req) = 0;
  /// Starts a native collective. The call lives until the request is done. Returns false at every rank alike if the
  /// transport has no native collective for this collective, type, operation or size; then nothing was started. A call
  /// with uneven pieces (`is_uneven`) is an allgather or a reduce_scatter.
  ///
  /// Without `prefers_native` a started collective cannot be cancelled: if a peer does not take part the collective may
  /// never end, and may write to the buffer until then. So the transport copies small buffers into its own memory, and
  /// the group has a barrier before a collective of more than `native_copied_up_to` bytes, which ensures that all ranks
  /// take part.
  virtual bool native(const collective_call& /*call*/, request& /*r*/) { return false; }
  /// Makes progress; returns true when the request is done. Throws mismatch_error for a message that does not fit its
  /// receive.
  virtual bool test(request& req) = 0;
  /// Cancels a request: afterwards neither transport nor peers use the request or its buffer. Waits for a peer that is
  /// using the buffer.
  virtual void cancel(request& req) noexcept = 0;
  /// Replaces the buffer of an unfinished send or receive by `replacement`; neither transport nor peers use the old
  /// buffer any more. The caller has copied a send's bytes to the new buffer; received bytes are not copied. For
  /// transports with the ability `replaces_buffers`; returns false without a change for other transports. May also
  /// return false, without a change, if another thread has completed the request.
  [[nodiscard]] virtual bool replace_buffer(request& /*r*/, std::byte* /*replacement*/) noexcept { return false; }

  /// Sends a control message to a rank. Control messages are independent of other messages.
  virtual void notify(int peer, const control_message& message) = 0;
  /// Receives a control message, which it copies to `message`; returns false when there is none.
  virtual bool poll(control_message& message) = 0;
  /// Yields the core, or sleeps until there may be progress, no longer than `deadline`.
  virtual void pause(clock::time_point deadline) = 0;
  /// Starts to connect again to a rank, after a control message that the rank has ended, because possibly only the
  /// connection broke. Earlier messages are lost, so the caller cancels its requests after the control message and
  /// before this call. If the connection is not made by `deadline`, or nothing listens at the rank's addresses, a
  /// second control message follows. Returns false if this transport cannot connect again, or has tried already.
  [[nodiscard]] virtual bool reconnect(int /*peer*/, clock::time_point /*deadline*/) { return false; }

  /// Returns the quality of the connection to that rank; all zeros if there is no connection, or if the transport
  /// cannot measure it. Costs a system call.
  [[nodiscard]] virtual link_quality quality(int /*peer*/) { return {}; }

  /// Prepares a new group: each member calls this before `subgroup`, which receives all members' results.
  [[nodiscard]] virtual std::uint64_t prepare(std::span<const int> /*members*/) { return 0; }
  /// Makes the transport of the new group. Collective over the members.
  [[nodiscard]] virtual std::unique_ptr<transport> subgroup(const subgroup_call& call) = 0;
};

inline request::~request() {
  if (auto* const held = owning_transport(); held != nullptr) held->cancel(*this);
}

/// A transport that forwards every call to another transport, for derived classes to override some calls. Requests
/// belong to the inner transport, and so do groups that are split from it, unless `subgroup` is overridden.
class transport_decorator : public transport {
 public:
  /// Owns `inner`, which is not null.
  explicit transport_decorator(std::unique_ptr<transport> inner) noexcept : inner_(std::move(inner)) {}

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  [[nodiscard]] transport_abilities abilities() const override { return inner_->abilities(); }
  [[nodiscard]] std::pmr::memory_resource* memory() const override { return inner_->memory(); }
  [[nodiscard]] bool oversubscribed() const override { return inner_->oversubscribed(); }
  [[nodiscard]] bool should_yield() const override { return inner_->should_yield(); }
  void send(request& req) override { inner_->send(req); }
  void receive(request& req) override { inner_->receive(req); }
  bool native(const collective_call& call, request& req) override { return inner_->native(call, req); }
  bool test(request& req) override { return inner_->test(req); }
  void cancel(request& req) noexcept override {
    if (auto* const owner = req.owning_transport(); owner != nullptr && owner != this) owner->cancel(req);
  }
  [[nodiscard]] bool replace_buffer(request& req, std::byte* replacement) noexcept override {
    auto* const owner = req.owning_transport();
    return owner != nullptr && owner != this && owner->replace_buffer(req, replacement);
  }
  void notify(int peer, const control_message& message) override { inner_->notify(peer, message); }
  bool poll(control_message& message) override { return inner_->poll(message); }
  void pause(clock::time_point deadline) override { inner_->pause(deadline); }
  [[nodiscard]] bool reconnect(int peer, clock::time_point deadline) override {
    return inner_->reconnect(peer, deadline);
  }
  [[nodiscard]] link_quality quality(int peer) override { return inner_->quality(peer); }
  [[nodiscard]] std::uint64_t prepare(std::span<const int> members) override { return inner_->prepare(members); }
  [[nodiscard]] std::unique_ptr<transport> subgroup(const subgroup_call& call) override {
    return inner_->subgroup(call);
  }

 protected:
  [[nodiscard]] transport& inner() const noexcept { return *inner_; }

 private:
  std::unique_ptr<transport> inner_;
};

namespace detail {

/// The error of a message with a tag, which is no error of a collective.
class message_mismatch final : public mismatch_error {
 public:
  using mismatch_error::mismatch_error;
};
/// Throws mismatch_error unless a message with that signature and size fits the receive.
void check_arrival(const request& receive, int sender, const collective_signature& signature, std::size_t bytes);

/// Writes or combines received bytes into the buffer of the receive. `offset` is the position of the bytes in the
/// message. A receive that combines gets whole elements.
void deliver(request& receive, const std::byte* incoming, std::size_t bytes, std::uint64_t offset = 0);

}  // namespace detail
}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
