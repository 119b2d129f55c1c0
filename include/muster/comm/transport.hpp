// The one seam for transports: messages between the ranks of a group, started and tested, never blocking.
#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>

#include <muster/comm/algorithm.hpp>
#include <muster/comm/reduction.hpp>
#include <muster/core/clock.hpp>

namespace muster::inline v0 {

/// Which collective a message belongs to. Every message carries it and the receiver compares: that is how ranks that
/// disagree find out.
struct stamp {
  std::uint64_t sequence = 0;  ///< the how-manieth collective of the group
  std::uint64_t count = 0;     ///< elements, as the collective counts them
  std::int32_t root = 0;
  collective kind = collective::none;
  dtype type = dtype::none;
  operation op = operation::none;
  algorithm how = algorithm::automatic;

  bool operator==(const stamp&) const = default;
};

/// "allreduce of 1024 float32, sum, by ring": how errors write a stamp.
[[nodiscard]] std::string describe(const stamp& mark);

/// A short message outside the order of collectives, by which ranks tell each other of trouble.
struct notice {
  enum class kind : std::uint8_t {
    abort = 1,        ///< the sender gave up because of `text`
    acknowledge = 2,  ///< the sender gave up because somebody else did
    position = 3,     ///< the sender waits, in the collective of `mark`
    gone = 4          ///< the transport's own word: the rank `origin` has ended, which `text` explains
  };
  kind what = kind::position;
  std::int32_t origin = 0;    ///< rank in the group of the transport it came by
  std::int32_t status = 0;    ///< the exit status the sender is about to end with
  std::int32_t witness = -1;  ///< of `gone`: the rank that says so, who may be cut off itself; -1: it was seen here
  stamp mark;
  char text[456] = {};  ///< one line, cut to fit, zero at its end

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
  bool shared_memory = false;       ///< receives read the sender's memory in place
  bool native_collectives = false;  ///< `native` may say yes
  bool native_first = false;        ///< its own collectives compare stamps, can be taken back and beat the library's
  bool device_memory = false;       ///< buffers may be on a GPU
  bool any_source = false;          ///< `request::peer` of a receive may be `any_source`
  bool detects_death = false;       ///< a dead peer is found out before the deadline
  bool moves_buffers = false;       ///< `request_owner::move_buffer` says yes
  bool concurrent_groups = false;   ///< different groups may be used by different threads at the same time
  transport_costs costs;
};

/// In `request::peer` of a receive: from whichever rank sends first. For tagged messages only. Where the sender is lost
/// amid its message a transport may end the receive with nothing: `received` is 0.
inline constexpr int any_source = -1;

/// The tag of the messages with which a world agrees on its settings. Tags below it are the program's.
inline constexpr std::uint32_t settings_tag = 16000;

class request;

/// What a request needs of the transport it was given to: to be taken back.
class request_owner {
 public:
  /// Makes sure that nobody reads or writes the request or its buffer any more; waits for a peer that is just at it.
  virtual void cancel(request& pending) noexcept = 0;
  /// The buffer of a send or receive that is not done is `to` from now on, and nobody touches the old one any more. A
  /// send's bytes are there already; what had come of a receive stays behind. For transports whose abilities have
  /// `moves_buffers`; with others false, and nothing has changed.
  [[nodiscard]] virtual bool move_buffer(request& /*pending*/, std::byte* /*to*/) noexcept { return false; }

 protected:
  ~request_owner() = default;
};

/// One send, receive or native collective: what is asked for, what came of it, and room for the transport's own
/// bookkeeping, so that starting one allocates nothing. Lives where it is made (it does not move) and takes itself back
/// when it is destroyed unfinished. The buffer is the caller's and stays alive and untouched until the request is done.
class request {
 public:
  request() = default;
  request(const request&) = delete;
  request& operator=(const request&) = delete;
  ~request() {
    if (auto* const held = held_by(); held != nullptr) held->cancel(*this);
  }
  /// The owner. Where a thread besides this one moves the transport, it ends requests of this one too.
  [[nodiscard]] request_owner* held_by() noexcept {
    return std::atomic_ref<request_owner*>(owner).load(std::memory_order_acquire);
  }

  // What is asked for.
  std::byte* data = nullptr;  ///< read by a send, written by a receive
  std::size_t bytes = 0;      ///< of a send; what a receive of a collective must be, and a tagged one may be at most
  int peer = 0;
  std::uint32_t tag = 0;  ///< 0 for collectives
  stamp mark;
  const reduction* combine = nullptr;  ///< a receive combines with `data` instead of overwriting it
  bool incoming_first = false;         ///< the order of that combination

  // What came, valid when done.
  int source = 0;
  std::size_t received = 0;

  // The transport's. `owner` is set while the transport may touch the request.
  request_owner* owner = nullptr;
  request* next = nullptr;
  int state = 0;
  alignas(16) std::byte room[96];
};

/// A collective that is handed to the transport whole.
///
/// Without `native_first`, one that was started cannot be taken back, for a peer that does not come it may never end,
/// and it may write until it does. So the transport copies what is small into memory of its own, and what is larger
/// begins with a barrier: then all ranks are known to be there.
struct native_call {
  static constexpr std::size_t copied_up_to = 65536;  ///< bytes of the larger buffer

  collective kind = collective::none;  ///< what is to be done here: perhaps a step only of what `mark` says
  int root = 0;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::size_t count = 0;  ///< elements, as `stamp::count`
  std::size_t element_size = 1;
  const reduction* reduce = nullptr;
  stamp mark;  ///< what the program called, for ranks to compare
};

/// What makes a group of some of a transport's ranks.
struct subgroup_call {
  std::span<const int> members;          ///< their ranks, in the new order
  std::uint64_t id = 0;                  ///< the same for all of them, and new
  std::span<const std::uint64_t> words;  ///< what each rank's `prepare` returned, by its rank here
  clock::time_point until;               ///< the deadline
};

/// A transport connects the ranks of one group. Messages from one rank to another with one tag arrive in order. An
/// object is used by one thread at a time and lives where it was made.
///
/// `send`, `receive` and `native` (whose call lives until the request is done) start a request whose fields say what;
/// `test` makes progress and says whether a request is done; a message that does not fit its receive is a
/// mismatch_error there. `notify` and `poll` carry notices beside the messages; `pause` gives the processor away until
/// something may have happened, at the latest until the time given; `subgroup` is called by all members at once. One
/// whose members need to know something of each other first has `std::uint64_t prepare(std::span<const int> members)`
/// besides; all members get the results. One that can connect to a rank again that it has lost has `bool renew(int
/// peer, clock::time_point until)`, see any_transport. `memory` is where buffers come from that peers can reach without
/// a copy; null when no memory is better than any other.
template <class T>
concept transport = std::derived_from<T, request_owner> && !std::movable<T> &&
                    requires(T & t, const T& c, request& r, const native_call& n, const notice& sent, notice& got,
                             clock::time_point until, const subgroup_call& some) {
  { c.rank() } -> std::same_as<int>;
  { c.size() } -> std::same_as<int>;
  { c.abilities() } -> std::same_as<transport_abilities>;
  { c.memory() } -> std::same_as<std::pmr::memory_resource*>;
  { c.crowded() } -> std::same_as<bool>;     // more ranks than cores here
  { c.must_yield() } -> std::same_as<bool>;  // crowded, and who is waited for may need this very core: do not spin
  { t.send(r) } -> std::same_as<void>;
  { t.receive(r) } -> std::same_as<void>;
  { t.native(n, r) } -> std::same_as<bool>;  // false: none for this collective, type or operation
  { t.test(r) } -> std::same_as<bool>;
  { t.notify(0, sent) } -> std::same_as<void>;
  { t.poll(got) } -> std::same_as<bool>;
  { t.pause(until) } -> std::same_as<void>;
  { t.subgroup(some) } -> std::same_as<std::unique_ptr<T>>;
};

namespace detail {

/// The rank that `rank` gets in the new group. Throws configuration_error where it gets none.
[[nodiscard]] int rank_in(const subgroup_call& some, int rank);

/// Throws mismatch_error unless a message that says (mark, bytes) is what `wanted` waits for.
void check_arrival(const request& wanted, int source, const stamp& mark, std::size_t bytes);

/// Puts bytes that came where the request wants them; whole elements, if it combines, of the message from `offset` on.
void deliver(request& wanted, const std::byte* incoming, std::size_t bytes, std::uint64_t offset = 0);

}  // namespace detail
}  // namespace muster::inline v0
