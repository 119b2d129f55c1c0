// A connection between two processes that carry a store: bytes in, messages out.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <muster/core/clock.hpp>

#include "handshake.hpp"
#include "replica_message.hpp"
#include "socket.hpp"

namespace muster::inline v0::detail {

/// One connection, from the first attempt on. It never waits; nobody is believed before the handshake, and what is said
/// before it stands is kept until it does.
class replica_line {
 public:
  /// How it stands.
  enum class state {
    opening,   ///< connecting, or proving who it is
    standing,  ///< `other` is there
    refused,   ///< nobody listens there, or somebody else does: whom it looked for is not there any more
    ended      ///< for any other reason
  };
  using listener = std::function<void(const replica_message& said)>;

  /// To the first of these addresses that answers, for the member `wanted`; 0: whoever is there.
  replica_line(std::vector<address> to, std::uint64_t wanted, const replica_member& self, const job_secret& secret,
               clock::time_point now);
  /// Somebody came.
  replica_line(tcp_socket came, const replica_member& self, const job_secret& secret, clock::time_point now);

  /// Goes on as far as it can; `hear` gets each whole message.
  void advance(clock::time_point now, const listener& hear);
  void send(const replica_message& what);
  /// What was sent is on its way; no more comes.
  void close() const noexcept { socket_.shutdown_write(); }

  [[nodiscard]] state now() const noexcept { return state_; }
  /// Who is there, when it stands or stood.
  [[nodiscard]] const std::optional<replica_member>& other() const noexcept { return other_; }
  [[nodiscard]] std::uint64_t wanted() const noexcept { return wanted_; }
  [[nodiscard]] bool is_outgoing() const noexcept { return outgoing_; }
  /// The other side heard a proof and turned away: it is not of this job, or this process is not.
  [[nodiscard]] bool was_turned_away() const noexcept { return turned_away_; }
  [[nodiscard]] bool wants_to_write() const noexcept;
  [[nodiscard]] int file() const noexcept { return socket_.file(); }

 private:
  void connect_next();
  [[nodiscard]] bool finish_connecting();
  [[nodiscard]] bool greet();
  void read(const listener& hear);
  void take_frames(const listener& hear);
  void meet(const replica_message& said);
  void write();

  replica_member self_;
  job_secret secret_;
  std::vector<address> places_;
  std::size_t next_place_ = 0;
  bool all_refused_ = true;
  std::uint64_t wanted_ = 0;
  bool outgoing_ = false;
  bool connecting_ = false;
  bool known_ = false;
  bool proved_ = false;
  bool turned_away_ = false;
  tcp_socket socket_;
  std::optional<handshake> greeting_;
  std::optional<replica_member> other_;
  state state_ = state::opening;
  clock::time_point give_up_;
  std::string in_;
  std::string out_;
  std::size_t written_ = 0;  // of it
  std::string early_;        // said before it stands
};

}  // namespace muster::inline v0::detail
