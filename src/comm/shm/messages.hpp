// Messages between the ranks of a group, through rings of bytes in their lanes.
#pragma once

#include <list>
#include <map>
#include <vector>

#include "board.hpp"

namespace muster::inline v0::detail {

/// Sends copy into the ring as there is room, receives take out (or combine) as data comes: a message larger than the
/// ring is a pipeline through memory that stays in cache. Nobody looks into the memory of another rank, so a request
/// can be taken back at any time.
///
/// Messages from one rank with one tag arrive in order. One that nobody waits for stays in the ring, and its sender
/// waits, until another behind it is waited for: then it is put aside. A large tagged one is announced, and comes when
/// it has a receive: so what is put aside is small, and nothing waits behind what nobody takes.
class shm_messages {
 public:
  /// Tagged messages up to this come unasked.
  static constexpr std::size_t eager = std::size_t{64} << 10;

  explicit shm_messages(shm_board& board);
  shm_messages(const shm_messages&) = delete;
  shm_messages& operator=(const shm_messages&) = delete;

  void send(request& r, transport& owner);
  void receive(request& r, transport& owner);
  bool test(request& r) {
    move();
    return r.owner == nullptr;
  }
  /// Whether there is something to move that no request of this rank stands for any more.
  [[nodiscard]] bool owes() const noexcept { return clears_ > 0 || drops_ > 0 || !orphans_.empty(); }
  /// All that is under way.
  void move();
  void cancel(request& r) noexcept;

 private:
  enum class kind : std::uint32_t {
    message,
    announce,  // of a message of so many bytes
    clear,     // what was announced under that number has a receive
    body       // and here it is
  };
  // In front of every message, and nothing crosses the end of the ring but payload.
  struct alignas(cache_line) header {
    stamp mark;
    std::uint64_t bytes;
    std::uint32_t tag;
    kind what;
    std::uint64_t number;
  };
  static_assert(sizeof(header) == cache_line);

  enum state : int { waiting, announced, cleared, moving, done };
  struct progress {  // in request::room
    std::uint64_t moved;
    std::uint64_t number;  // under which it was announced
    bool announces;
  };
  static progress& of(request& r) { return *reinterpret_cast<progress*>(r.room); }

  // A message that was put aside.
  struct stray {
    int source;
    header head;
    std::vector<std::byte> bytes;
    bool complete = false;  // or announced
  };
  // A send that was taken back after its receiver had heard of it: it goes on.
  struct orphan {
    request r;
    std::vector<std::byte> bytes;
  };
  struct outgoing {
    request* first = nullptr;
    request* last = nullptr;
    std::vector<header> urgent;                   // goes between messages
    std::map<std::uint64_t, request*> uncleared;  // announced, by number
    std::uint64_t announcements = 0;
  };
  struct incoming {
    bool open = false;  // in the middle of a message
    header head;
    std::uint64_t moved = 0;
    request* to = nullptr;  // neither of the two: its receive was cancelled, and it goes nowhere
    stray* aside = nullptr;
    std::map<std::uint64_t, request*> cleared;  // receives of announced messages; null for one that was cancelled
    int awaited = 0;                            // receives that are posted for it
    int drops = 0;                              // messages that are to come and go nowhere
  };

  void pump_out(int peer);
  bool push(int peer, const std::byte* data, std::uint64_t bytes, std::uint64_t& moved);
  bool push(int peer, const header& head);
  bool begin_sending(int peer, request& r);
  void finish_send(request& r) noexcept;
  void adopt(outgoing& out, request& r);
  void sever(int peer) noexcept;
  [[nodiscard]] std::uint64_t unread(int peer);
  [[noreturn]] void break_off(int peer, const char* what) const;
  void pump_in(int peer);
  bool begin_message(int peer, incoming& in);
  void begin_payload(int peer, incoming& in);
  void bind(int peer, const header& announcement, request& r);
  void take(int peer, incoming& in);
  bool take_stray(request& r);
  void unpost(request& r) noexcept;

  shm_board& board_;
  std::vector<outgoing> out_;
  std::vector<incoming> in_;
  request* posted_first_ = nullptr;  // receives in the order they were started
  request* posted_last_ = nullptr;
  int awaited_from_any_ = 0;
  std::list<stray> strays_;  // out of the ordinary: it may allocate
  std::list<orphan> orphans_;
  std::size_t clears_ = 0;  // that are in no ring yet
  std::size_t drops_ = 0;   // of all peers
};

}  // namespace muster::inline v0::detail
