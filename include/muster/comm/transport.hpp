// The one seam for transports: messages between the ranks of a group, started and tested, never blocking.
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

namespace muster::inline v0 {

/// Which collective a message belongs to. Every message carries it and the receiver compares: that is how ranks that
/// disagree find out.
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

/// A short message outside the order of collectives, by which ranks tell each other of trouble.
struct control_message {
  enum class kind : std::uint8_t {
    abort = 1,        ///< the sender gave up because of `text`
    acknowledge = 2,  ///< the sender gave up because another rank did
    position = 3,     ///< the sender waits, in the collective of `mark`
    gone = 4          ///< the transport's own word: the rank `origin` has ended, which `text` explains
  };
  kind what = kind::position;
  std::int32_t origin = 0;    ///< rank in the group of the transport it came by
  std::int32_t status = 0;    ///< the exit status the sender is about to end with
  std::int32_t witness = -1;  ///< of `gone`: the rank that says so, which may be cut off itself; -1: it was seen here
  collective_signature signature;
  char text[456] = {};  ///< one line, cut to fit, zero at its end

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
  double ranks_a_core = 1;  ///< beyond one, what different ranks do at the same time hardly overlaps
};

/// What a transport can do; asked for, never assumed.
struct transport_abilities {
  std::string_view name;            ///< "self", "local", "mpi": a literal
  bool native_collectives = false;  ///< `native` may say yes
  bool native_first = false;       ///< its own collectives compare signatures, can be taken back and beat the library's
  bool any_source = false;         ///< `request::peer` of a receive may be `any_source`
  bool detects_death = false;      ///< a dead peer is found out before the deadline
  bool moves_buffers = false;      ///< `transport::move_buffer` says yes
  bool concurrent_groups = false;  ///< different groups may be used by different threads at the same time
  transport_costs costs;
};

/// In `request::peer` of a receive: from whichever rank sends first. For tagged messages only. Where the sender is lost
/// amid its message a transport may end the receive with nothing: `received` is 0.
inline constexpr int any_source = -1;

/// Tags from this one on are the library's, those below it the program's.
inline constexpr std::uint32_t first_library_tag = 16000;

/// Bytes of the larger buffer of a native collective, see `transport::native`.
inline constexpr std::size_t native_copied_up_to = 65536;

class transport;

/// One send, receive or native collective: what is asked for, what came of it, and room for the transport's own
/// bookkeeping, so that starting one allocates nothing. Lives where it is made (it does not move) and takes itself back
/// when it is destroyed unfinished. The buffer is the caller's and stays alive and untouched until the request is done.
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

  // What is asked for.
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
  /// Crowded, and the rank that is waited for may need this very core: do not spin.
  [[nodiscard]] virtual bool should_yield() const { return oversubscribed(); }

  /// These start a request whose fields say what.
  virtual void send(request& r) = 0;
  virtual void receive(request& r) = 0;
  /// Starts a collective that the transport does whole. The call lives until the request is done. False: there is none
  /// for this collective, type or operation, at every rank alike; then nothing was started.
  ///
  /// Without `native_first`, one that was started cannot be taken back, for a peer that does not come it may never end,
  /// and it may write until it does. So the transport copies what is small into memory of its own, and before what is
  /// larger than `native_copied_up_to` the group has a barrier: then all ranks are known to be there.
  virtual bool native(const collective_call& /*call*/, request& /*r*/) { return false; }
  /// Makes progress and says whether a request is done; a message that does not fit its receive is a mismatch_error.
  virtual bool test(request& r) = 0;
  /// Afterwards neither transport nor peer uses the request or its buffer; waits for a peer that is just using it.
  virtual void cancel(request& r) noexcept = 0;
  /// The buffer of a send or receive that is not done is `to` from now on, and neither transport nor peer uses the old
  /// one any more. A send's bytes are there already; what had come of a receive stays behind. For transports whose
  /// abilities have `moves_buffers`; with others, and where the request is done by now, false, and nothing has changed.
  [[nodiscard]] virtual bool move_buffer(request& /*r*/, std::byte* /*to*/) noexcept { return false; }

  /// Control messages go beside the messages.
  virtual void notify(int peer, const control_message& message) = 0;
  virtual bool poll(control_message& message) = 0;
  /// Gives the processor away until something may have happened, at the latest until the time given.
  virtual void pause(clock::time_point until) = 0;
  /// After a control message that a rank is gone, whose connection alone may have broken: begins to connect to it
  /// again. Nothing of before comes any more, so what is under way between the two is to be taken back. If it is not
  /// connected by `until`, or nothing listens at its addresses, there is another such control message. False where this
  /// transport cannot connect again, or has tried.
  [[nodiscard]] virtual bool renew(int /*peer*/, clock::time_point /*until*/) { return false; }

  /// Called by each member of a group that is to be, before `subgroup`: all members get the results of all.
  [[nodiscard]] virtual std::uint64_t prepare(std::span<const int> /*members*/) { return 0; }
  /// Called by all members at once.
  [[nodiscard]] virtual std::unique_ptr<transport> subgroup(const subgroup_call& some) = 0;
};

inline request::~request() {
  if (auto* const held = held_by(); held != nullptr) held->cancel(*this);
}

/// A transport that is another one, but for what a class derived from it overrides. Requests are the inner one's; so
/// are groups made from it, unless `subgroup` is overridden.
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

/// Throws mismatch_error unless a message that says (mark, bytes) is what `wanted` waits for.
void check_arrival(const request& wanted, int source, const collective_signature& signature, std::size_t bytes);

/// Puts bytes that came where the request wants them; whole elements, if it combines, of the message from `offset` on.
void deliver(request& wanted, const std::byte* incoming, std::size_t bytes, std::uint64_t offset = 0);

}  // namespace detail
}  // namespace muster::inline v0
