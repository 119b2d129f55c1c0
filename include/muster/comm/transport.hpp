// The interface of transports: messages between the ranks of a group, started and tested, never blocking.
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

namespace muster { inline namespace v0 {

/// The collective that a message belongs to. Every message carries it, and the receiver compares it with its own call,
/// which detects ranks that disagree.
struct collective_signature {
  std::uint64_t sequence = 0;  ///< number of the collective in its group
  std::uint64_t count = 0;     ///< elements, as the collective counts them
  std::int32_t root = 0;
  collective kind = collective::none;
  dtype type = dtype::none;
  operation op = operation::none;
  muster::algorithm algorithm = muster::algorithm::automatic;

  bool operator==(const collective_signature&) const = default;
};

/// "allreduce of 1024 float32, sum, by ring": how errors write a signature.
[[nodiscard]] std::string describe(const collective_signature& signature);

/// A control message: short, outside the order of collectives, about failures and progress.
struct control_message {
  enum class kind : std::uint8_t {
    abort = 1,        ///< the sender gave up because of `text`
    acknowledge = 2,  ///< the sender gave up because another rank did
    position = 3,     ///< the sender waits, in the collective of `signature`
    leave = 4,        ///< the sender has left the group, after so many collectives as its sequence says
    gone = 5          ///< from this rank's transport: the rank `origin` has ended; `text` has the reason
  };
  kind what = kind::position;
  std::int32_t origin = 0;  ///< rank in the group of the transport it came by
  std::int32_t status = 0;  ///< the exit status the sender is about to end with
  collective_signature signature;
  char text[456] = {};  ///< one line, cut to fit, zero at its end

  /// What a transport says of a rank that has ended; `reason` is cut to fit.
  [[nodiscard]] static control_message gone_rank(int rank, std::string_view reason) noexcept;
  /// Whether the sender says that it ends by a failure.
  [[nodiscard]] bool is_end() const noexcept { return what == kind::abort || what == kind::acknowledge; }
  /// Copies as much of `line` as fits.
  void set_text(std::string_view line) noexcept {
    const std::size_t n = line.size() < sizeof text - 1 ? line.size() : sizeof text - 1;
    std::memcpy(text, line.data(), n);
    text[n] = '\0';
  }
};

/// What a message costs: the model behind the choice of an algorithm. Seconds, and seconds a byte.
struct transport_costs {
  double latency = 1e-6;
  double per_byte = 1e-10;
  double reduce_per_byte = 1e-10;
  double next_message = 1;  ///< what each of several messages to several peers at once adds, in latencies
  double ranks_a_core = 1;  ///< beyond one, the work of different ranks hardly overlaps
};

/// What a transport can do; asked for, never assumed.
struct transport_abilities {
  std::string_view name;            ///< "self", "local", "mpi": a literal
  bool native_collectives = false;  ///< `native` may say yes
  bool native_first =
      false;  ///< its own collectives compare signatures, can be cancelled and are faster than the library's
  bool any_source = false;         ///< `request::peer` of a receive may be `any_source`
  bool detects_death = false;      ///< the death of a peer is detected before the deadline
  bool moves_buffers = false;      ///< `transport::move_buffer` says yes
  bool concurrent_groups = false;  ///< different groups may be used by different threads at the same time
  bool combines_whole = false;     ///< a message is held and combined when all of it is there: large ones go in pieces
  transport_costs costs;
};

/// In `request::peer` of a receive: from any rank, whichever sends first. For tagged messages only. If the sender fails
/// in the middle of its message, a transport may complete the receive with `received` 0.
inline constexpr int any_source = -1;

/// Tags from this one on are reserved for the library.
inline constexpr std::uint32_t first_library_tag = 16000;

/// Bytes of the larger buffer of a native collective, see `transport::native`.
inline constexpr std::size_t native_copied_up_to = 65536;

class transport;

/// What its traffic has shown of the connection to a rank.
struct link_quality {
  std::uint64_t sent = 0;  ///< bytes that have arrived there so far
  double bandwidth = 0;    ///< bytes a second, the last that it was busy with or a higher rate; 0: not known
  double latency = 0;      ///< seconds of the shortest round trip
};

/// One send, receive or native collective: its arguments, its result, and memory for the transport, so that starting
/// one allocates nothing. It does not move, and is cancelled when it is destroyed unfinished. The caller owns the
/// buffer, which stays alive and untouched until the request is done.
class request {
 public:
  request() = default;
  request(const request&) = delete;
  request& operator=(const request&) = delete;
  ~request();
  /// The owner; null when the request is done. Where a thread besides this one moves the transport, it ends requests of
  /// this one too: so only what holds that transport's lock reads `owner` itself.
  [[nodiscard]] transport* held_by() const noexcept {
    return std::atomic_ref<transport*>(const_cast<transport*&>(owner)).load(std::memory_order_acquire);
  }

  // The arguments.
  std::byte* data = nullptr;  ///< read by a send, written by a receive
  std::size_t bytes = 0;      ///< of a send; what a receive of a collective must be, and a tagged one may be at most
  int peer = 0;
  std::uint32_t tag = 0;  ///< 0 for collectives
  collective_signature signature;
  const reduction* combine = nullptr;  ///< a receive combines with `data` instead of overwriting it
  bool incoming_first = false;         ///< the order of that combination

  // Of a receive, valid when done.
  int source = 0;            ///< rank of the sender
  std::size_t received = 0;  ///< bytes of the message

  // The transport's.
  transport* owner = nullptr;      ///< set while the transport may touch the request; null: done, or never started
  request* next = nullptr;         ///< the next of the transport's list that the request is in
  int state = 0;                   ///< as the transport defines it
  alignas(16) std::byte room[96];  ///< the transport's own data of the request; not initialised
};

/// One call of a collective, with its element type erased: the signature says what is done, the rest with what.
struct collective_call : collective_signature {
  collective_call() = default;
  /// The signature, input, output, bytes an element, reduction, and deadline in seconds. Not an aggregate: that would
  /// be cleared as a whole first, a tenth of the shortest call.
  collective_call(const collective_signature& what, const std::byte* from, std::byte* to, std::size_t size,
                  reduction&& by, seconds limit)
      : collective_signature(what), in(from), out(to), element_size(size), reduce(std::move(by)), timeout(limit) {}

  const std::byte* in = nullptr;  ///< the caller's; null where this rank gives nothing
  std::byte* out = nullptr;       ///< equal to `in` for a call in place
  std::size_t element_size = 1;
  reduction reduce;
  seconds timeout{0};                             ///< 0: the group's
  const collective_signature* step_of = nullptr;  ///< the collective that this is a step of; null: of none
  /// What the program called, for ranks to compare.
  [[nodiscard]] const collective_signature& signature() const noexcept { return step_of != nullptr ? *step_of : *this; }
};

/// What makes a group of some of a transport's ranks.
struct subgroup_call {
  std::span<const int> members;          ///< their ranks, in the new order
  std::uint64_t id = 0;                  ///< the same for all of them, and new
  std::span<const std::uint64_t> words;  ///< what each rank's `prepare` returned, by its rank here
  clock::time_point until;               ///< the deadline

  /// The number that `rank`, a member, has in the new group.
  [[nodiscard]] int place_of(int rank) const;
};

/// A transport connects the ranks of one group. Messages from one rank to another with one tag arrive in order. An
/// object is used by one thread at a time and lives where it was made.
class transport {
 public:
  transport() = default;
  transport(const transport&) = delete;
  transport& operator=(const transport&) = delete;
  virtual ~transport() = default;

  /// This rank's number in the group, from 0, the number of ranks, and what the transport can do; constant.
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual transport_abilities abilities() const = 0;
  /// Where buffers come from that peers can reach without a copy; null when no memory is better than any other.
  [[nodiscard]] virtual std::pmr::memory_resource* memory() const { return nullptr; }
  /// Whether there are more ranks than cores here.
  [[nodiscard]] virtual bool oversubscribed() const = 0;
  /// Oversubscribed, and the rank that this one waits for may need this core: yield instead of polling.
  [[nodiscard]] virtual bool should_yield() const { return oversubscribed(); }

  /// Start a send or receive; the fields of the request are its arguments.
  virtual void send(request& r) = 0;
  virtual void receive(request& r) = 0;
  /// Starts a native collective. The call lives until the request is done. False at every rank alike: the transport has
  /// none for this collective, type or operation, and nothing was started.
  ///
  /// Without `native_first` a started collective cannot be cancelled: if a peer does not take part it may never end,
  /// and may write to the buffer until then. So the transport copies small buffers into its own memory, and the group
  /// has a barrier before a collective of more than `native_copied_up_to` bytes, which shows that all ranks take part.
  virtual bool native(const collective_call& /*call*/, request& /*r*/) { return false; }
  /// Makes progress; true when the request is done. Throws mismatch_error for a message that does not fit its receive.
  virtual bool test(request& r) = 0;
  /// Cancels a request: afterwards neither transport nor peers use it or its buffer. Waits for a peer that is using it.
  virtual void cancel(request& r) noexcept = 0;
  /// Replaces the buffer of an unfinished send or receive by `to`; neither transport nor peers use the old one any
  /// more. A send's bytes are in `to` already; received bytes are not copied. For transports with the ability
  /// `moves_buffers`; returns false without a change for others and for a request that is done.
  [[nodiscard]] virtual bool move_buffer(request& /*r*/, std::byte* /*to*/) noexcept { return false; }

  /// Send and receive control messages, which are independent of the others; `poll` returns false when there is none.
  virtual void notify(int peer, const control_message& message) = 0;
  virtual bool poll(control_message& message) = 0;
  /// Yields the core, or sleeps until there may be progress, no longer than `until`.
  virtual void pause(clock::time_point until) = 0;
  /// After a control message that a rank has ended, of which only the connection may have broken: starts to connect to
  /// it again. Earlier messages are lost, so the caller cancels the requests between the two. If the connection is not
  /// made by `until`, or nothing listens at its addresses, there is another such message. False where this transport
  /// cannot connect again, or has tried already.
  [[nodiscard]] virtual bool renew(int /*peer*/, clock::time_point /*until*/) { return false; }

  /// Of the connection to that rank; all zeros where there is none, or the transport cannot tell. Costs a system call.
  [[nodiscard]] virtual link_quality quality(int /*peer*/) { return {}; }

  /// Called by each member of a new group before `subgroup`, which gets the results of all members.
  [[nodiscard]] virtual std::uint64_t prepare(std::span<const int> /*members*/) { return 0; }
  /// Collective over the members: makes the transport of the new group.
  [[nodiscard]] virtual std::unique_ptr<transport> subgroup(const subgroup_call& some) = 0;
};

inline request::~request() {
  if (auto* const held = held_by(); held != nullptr) held->cancel(*this);
}

/// A transport that forwards every call to another one, for derived classes to override some. Requests belong to the
/// inner transport; so do groups that are split from it, unless `subgroup` is overridden.
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
  void send(request& r) override { inner_->send(r); }
  void receive(request& r) override { inner_->receive(r); }
  bool native(const collective_call& call, request& r) override { return inner_->native(call, r); }
  bool test(request& r) override { return inner_->test(r); }
  void cancel(request& r) noexcept override {
    if (auto* const owner = r.held_by(); owner != nullptr && owner != this) owner->cancel(r);
  }
  [[nodiscard]] bool move_buffer(request& r, std::byte* to) noexcept override {
    auto* const owner = r.held_by();
    return owner != nullptr && owner != this && owner->move_buffer(r, to);
  }
  void notify(int peer, const control_message& message) override { inner_->notify(peer, message); }
  bool poll(control_message& message) override { return inner_->poll(message); }
  void pause(clock::time_point until) override { inner_->pause(until); }
  [[nodiscard]] bool renew(int peer, clock::time_point until) override { return inner_->renew(peer, until); }
  [[nodiscard]] link_quality quality(int peer) override { return inner_->quality(peer); }
  [[nodiscard]] std::uint64_t prepare(std::span<const int> members) override { return inner_->prepare(members); }
  [[nodiscard]] std::unique_ptr<transport> subgroup(const subgroup_call& some) override {
    return inner_->subgroup(some);
  }

 protected:
  [[nodiscard]] transport& inner() const noexcept { return *inner_; }

 private:
  std::unique_ptr<transport> inner_;
};

namespace detail {

/// Throws mismatch_error unless a message that says (signature, bytes) is what `wanted` waits for.
void check_arrival(const request& wanted, int source, const collective_signature& signature, std::size_t bytes);

/// Puts bytes that came where the request wants them; whole elements, if it combines, of the message from `offset` on.
void deliver(request& wanted, const std::byte* incoming, std::size_t bytes, std::uint64_t offset = 0);

}  // namespace detail
}}  // namespace muster::v0
