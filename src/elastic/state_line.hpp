// What a member and one that is about to join say to each other: the state, and what every step since has brought.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include <muster/core/clock.hpp>
#include <muster/elastic/state.hpp>

#include "../comm/net/handshake.hpp"
#include "../comm/net/socket.hpp"

namespace muster::inline v0::detail {

/// A member's first words. The joiner answers with the step after which the snapshot is to be taken, 64 bits, and the
/// member with 1 when it will take it there, 0 when it is beyond it.
struct state_offer {
  std::uint64_t names = 0;      ///< digest of the parts of the state
  std::uint64_t bytes = 0;      ///< of the replicated ones
  std::uint64_t brought = 0;    ///< bytes that a step brings; 0: steps cannot be done again
  std::uint64_t steps = 0;      ///< committed now
  std::uint64_t step_time = 0;  ///< nanoseconds from one to the next
};

/// What comes then, each before its bytes.
struct state_message {
  enum class kind : std::uint64_t {
    snapshot = 1,  ///< the member's share of the replicated bytes, after step `number`
    step = 2,      ///< its share of what step `number` brought
    pause = 3      ///< the member takes no more part in generation `number`
  };
  kind what = kind::pause;
  std::uint64_t number = 0;
  std::uint64_t behind = 0;  ///< messages that wait behind this one
  std::uint64_t bytes = 0;
};

/// One member's share of bytes that several send: every so-manieth piece of them, counted from the first.
struct state_share {
  std::size_t which = 0;
  std::size_t of = 1;

  [[nodiscard]] std::uint64_t size(std::uint64_t whole) const noexcept;
  /// Its pieces of these spans, one behind another.
  [[nodiscard]] std::vector<std::span<std::byte>> pieces(std::span<const std::span<std::byte>> whole) const;
};

/// The replicated bytes of a state, without what writes itself; what its present step brought; an offer of both.
[[nodiscard]] std::vector<std::span<std::byte>> replicated_bytes(const state& of);
[[nodiscard]] std::vector<std::span<std::byte>> brought_bytes(const state& of);
[[nodiscard]] state_offer describe_state(const state& of);
[[nodiscard]] std::uint64_t size_of(std::span<const std::span<std::byte>> all) noexcept;

/// What both sides of such a connection know, and nobody else: of the job, and of where that member listens.
[[nodiscard]] job_secret secret_of_line(std::string_view token, std::string_view card);

/// A connection whose waits end when somebody says so, with a socket_error of ECANCELED, or at their deadline.
class state_line {
 public:
  state_line(tcp_socket over, std::function<bool()> given_up)
      : socket_(std::move(over)), given_up_(std::move(given_up)) {}

  /// Throws error when the other side is not of the job.
  void meet(handshake& talk, clock::time_point until);
  void read(std::span<std::byte> into, clock::time_point until);
  void write(std::span<iovec> pieces, clock::time_point until);
  template <class T>
  [[nodiscard]] T read_value(clock::time_point until) {
    T value{};
    read(std::as_writable_bytes(std::span(&value, 1)), until);
    return value;
  }
  template <class T>
  void write_value(T value, clock::time_point until) {
    iovec piece{&value, sizeof value};
    write(std::span(&piece, 1), until);
  }

  [[nodiscard]] const tcp_socket& socket() const noexcept { return socket_; }

 private:
  void wait(short events, clock::time_point until) const;

  tcp_socket socket_;
  std::function<bool()> given_up_;
};

}  // namespace muster::inline v0::detail
