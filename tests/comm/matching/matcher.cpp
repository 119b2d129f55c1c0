// The matcher alone: its transport is a list of what peers sent, and all is moved on by one thread in drawn orders.
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <muster/comm/matching/matcher.hpp>
#include <muster/comm/transports/threads.hpp>
#include <muster/core/random.hpp>
#include "catch.hpp"

namespace {

namespace matching = muster::detail;
using kind = matching::message_kind;

/// What a peer sent and has not been looked at; what it announced comes when it is cleared.
struct wire {
  struct item {
    matching::envelope head;
    std::vector<std::byte> bytes;
  };
  std::deque<item> sent;
  std::map<std::uint64_t, item> announced;
  std::optional<std::vector<std::byte>> open;  // bytes of the message that is coming
  std::size_t come = 0;
  std::uint64_t next = 0;
};

struct world {
  static constexpr int peers = 3;
  static constexpr std::uint64_t generation = 9;

  matching::matching_group group{generation, {0, 1, 2}, 0, peers};
  std::vector<wire> wires{peers};
  matching::matcher messages{peers, [this](int peer, std::uint64_t number) { clear(peer, number); }};

  muster::thread_transport owner{std::make_shared<muster::thread_hub>(1),
                                 0};  // whatever it is: requests in flight have one

  world() { messages.open(group); }

  wire& from(int peer) { return wires[static_cast<std::size_t>(peer)]; }

  void clear(int peer, std::uint64_t number) {
    auto found = from(peer).announced.extract(number);
    REQUIRE(!found.empty());
    from(peer).sent.push_back(std::move(found.mapped()));
  }

  /// The first bytes of a message say its number among those of its peer.
  void send(int peer, std::uint32_t tag, std::size_t bytes, bool announces) {
    wire& w = from(peer);
    std::vector<std::byte> data(bytes);
    const std::uint64_t number = w.next++;
    std::memcpy(data.data(), &number, sizeof number);
    const auto head = [&](kind of) {
      return matching::envelope{
          .signature = {}, .total = bytes, .number = number, .group_id = generation, .tag = tag, .kind = of};
    };
    if (!announces) return w.sent.push_back({head(kind::message), data});
    w.announced.emplace(number, wire::item{head(kind::data), data});
    w.sent.push_back({head(kind::rts), {}});
  }

  void post(muster::request& r, std::span<std::byte> room, int peer, std::uint32_t tag) {
    r.data = room.data();
    r.bytes = room.size();
    r.peer = peer;
    r.tag = tag;
    r.owner = &owner;
    r.state = matching::message_progress::waiting;
    ::new (r.transport_storage) matching::message_progress{.group = &group, .receives = true};
    messages.post(r);
  }

  /// Some more comes from there, at most `most` bytes; false when nothing does.
  bool move(int peer, std::size_t most) {
    wire& w = from(peer);
    auto& target = messages.target_of(peer);
    if (!w.open) {
      if (w.sent.empty()) return false;
      auto& next = w.sent.front();
      if (next.head.kind == kind::data) {
        REQUIRE(messages.match_body(peer, next.head, target) == nullptr);
      } else if (!messages.match(peer, next.head, false, target)) {
        return false;
      }
      if (next.head.kind != kind::rts) w.open = next.bytes;
      w.come = 0;
      w.sent.pop_front();
      if (!w.open) return true;
    }
    const std::size_t n = std::min(most, w.open->size() - w.come);
    target.put(w.come, std::span(*w.open).subspan(w.come, n));
    w.come += n;
    if (w.come < w.open->size()) return true;
    messages.on_complete(target);
    w.open.reset();
    return true;
  }
};

struct receive {
  receive(std::size_t room, std::uint64_t order_) : data(room), order(order_) {}
  std::vector<std::byte> data;
  muster::request r;
  std::uint64_t order;
};

}  // namespace

TEST_CASE("the matcher gives each message to one receive, in order, whatever is taken back on the way") {
  const auto seed = GENERATE(range(0, 300));
  muster::random_stream random(20261125, static_cast<std::uint64_t>(seed));
  const auto below = [&](int n) { return static_cast<int>(random.below(static_cast<std::uint64_t>(n))); };
  constexpr std::size_t largest = 400;
  world all;
  std::list<receive> posted;
  std::uint64_t orders = 0;
  std::map<std::pair<int, std::uint32_t>, std::map<std::uint64_t, std::uint64_t>> got;  // by order of the receives
  std::size_t sent = 0, taken = 0, dropped = 0;
  const auto collect = [&] {
    posted.remove_if([&](const receive& one) {
      if (one.r.owner != nullptr) return false;
      std::uint64_t number = 0;
      std::memcpy(&number, one.data.data(), sizeof number);
      CHECK(got[{one.r.source, one.r.tag}].emplace(one.order, number).second);
      ++taken;
      return true;
    });
  };
  for (int step = 0; step < 400; ++step) {
    const int what = below(10);
    if (what < 3) {
      all.send(below(3), 1 + static_cast<std::uint32_t>(below(2)), 8 + random.below(largest - 8), below(3) == 0);
      ++sent;
    } else if (what < 6) {
      auto& one = posted.emplace_back(largest, orders++);
      all.post(one.r, one.data, below(4) - 1, 1 + static_cast<std::uint32_t>(below(2)));
    } else if (what == 6 && !posted.empty()) {
      const auto victim = std::next(posted.begin(), below(static_cast<int>(posted.size())));
      if (victim->r.state == matching::message_progress::moving) ++dropped;  // its message, if that was not put aside
      all.messages.cancel(victim->r);
      posted.erase(victim);
    } else {
      (void)all.move(below(3), 1 + random.below(largest));
    }
    collect();
  }
  // What is left is taken by receives from any source.
  for (const std::uint32_t tag : {1u, 2u}) {
    for (std::size_t i = 0; i < sent; ++i) {
      auto& one = posted.emplace_back(largest, orders++);
      all.post(one.r, one.data, muster::any_source, tag);
    }
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (int peer = 0; peer < world::peers; ++peer) moved = all.move(peer, largest) || moved;
    collect();
  }
  for (const auto& [from, by_order] : got) {
    std::uint64_t before = 0;
    for (const auto& [order, number] : by_order) {
      CHECK(number + 1 > before);  // each later than the one that an earlier receive got
      before = number + 1;
    }
  }
  for (const auto& w : all.wires) {
    CHECK(w.sent.empty());
    CHECK(w.announced.empty());
    CHECK(!w.open);
  }
  CHECK(taken <= sent);
  CHECK(taken + dropped >= sent);
  for (auto& one : posted) all.messages.cancel(one.r);
}
