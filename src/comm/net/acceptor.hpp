// Pending connections to this process: kept until the peer has proved that it knows the secret, and not for long.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <vector>

#include "event_loop.hpp"
#include "handshake.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// Accepts connections and answers their handshakes, on an event loop. Any process can connect, but gets no further:
/// one that does not prove within five seconds that it knows the secret is dropped, the oldest first when there are
/// many or no descriptor is left, and nothing waits for any of them.
class acceptor {
 public:
  /// Whether this process wants the connection of an authenticated peer; the peer hears of it.
  using judge = std::function<bool(const introduction&)>;
  /// Gets a connection that stands.
  using taker = std::function<void(tcp_socket, const introduction&)>;

  /// `listening`: where others connect; `self`: what they ask for; `most`: pending connections at a time.
  acceptor(event_loop& loop, std::vector<tcp_socket> listening, const job_secret& secret, std::uint32_t self,
           std::size_t most, judge wants, taker take);

  /// Drops pending connections after their time, and listens again where it could not. To be called at `next` at the
  /// latest.
  void tick(clock::time_point now);
  [[nodiscard]] clock::time_point next() const noexcept;
  /// Accepts no more, and drops those that it hears.
  void close() noexcept;
  /// Why the last connection that came could not be accepted; 0: it was. By any thread.
  [[nodiscard]] int trouble() const noexcept { return trouble_.load(); }
  /// Connections that were dropped before they had proved anything. By any thread.
  [[nodiscard]] std::uint64_t strangers() const noexcept { return strangers_.load(); }

 private:
  struct stranger {
    tcp_socket socket;
    handshake talk;
    clock::time_point until;
    event_loop::registration ready{};
  };
  struct listener {
    tcp_socket socket;
    event_loop::registration ready{};
  };

  void accept(const tcp_socket& from);
  void hear(std::list<stranger>::iterator one);
  void drop(std::list<stranger>::iterator one);

  event_loop& loop_;
  std::list<listener> listening_;
  job_secret secret_;
  std::uint32_t self_;
  std::size_t most_;
  judge wants_;
  taker take_;
  std::list<stranger> heard_;                                  // in the order in which they came
  clock::time_point closed_until_ = clock::time_point::max();  // set: no descriptor was left
  bool told_ = false;                                          // that none was left
  std::atomic<int> trouble_{0};
  std::atomic<std::uint64_t> strangers_{0};
};

}}}  // namespace muster::v0::detail
