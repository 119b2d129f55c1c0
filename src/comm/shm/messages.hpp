// Messages between the ranks of a group, through rings of bytes in their lanes.
#pragma once

#include <list>
#include <vector>

#include "board.hpp"

namespace muster::inline v0::detail {

/// Sends copy into the ring as there is room, receives take out (or combine) as data comes: a message larger than the
/// ring is a pipeline through memory that stays in cache. Nobody looks into the memory of another rank, so a request
/// can be taken back at any time.
///
/// Messages from one rank with one tag arrive in order. One that nobody waits for stays in the ring, and its sender
/// waits, until another behind it is waited for: then it is put aside.
class shm_messages {
 public:
  explicit shm_messages(shm_board& board);

  void send(request& r, request_owner& owner);
  void receive(request& r, request_owner& owner);
  bool test(request& r);
  void cancel(request& r) noexcept;

 private:
  // In front of every message, and nothing crosses the end of the ring but payload.
  struct alignas(cache_line) header {
    stamp mark;
    std::uint64_t bytes;
    std::uint32_t tag;
  };
  static_assert(sizeof(header) == cache_line);

  enum state : int { waiting, moving, done };
  struct progress {  // in request::room
    std::uint64_t moved;
  };
  static progress& of(request& r) { return *reinterpret_cast<progress*>(r.room); }

  // A message that was put aside.
  struct stray {
    int source;
    header head;
    std::vector<std::byte> bytes;
    bool complete = false;
  };
  struct outgoing {
    request* first = nullptr;
    request* last = nullptr;
    std::vector<std::byte> orphan;  // the rest of a cancelled send, begun and so to be ended
    std::uint64_t orphan_moved = 0;
  };
  struct incoming {
    bool open = false;  // in the middle of a message
    header head;
    std::uint64_t moved = 0;
    request* to = nullptr;  // neither of the two: its receive was cancelled, and it goes nowhere
    stray* aside = nullptr;
    int awaited = 0;  // receives that are posted for it
  };

  void pump_out(int peer);
  bool push(int peer, const std::byte* data, std::uint64_t bytes, std::uint64_t& moved);
  void pump_in(int peer);
  bool begin_message(int peer, incoming& in);
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
};

}  // namespace muster::inline v0::detail
