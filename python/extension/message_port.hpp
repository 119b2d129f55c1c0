// Tagged messages between the ranks of a group, with deadlines and errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/comm/transport.hpp>
#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 { namespace detail {

class message_port;

/// A message that is being sent or received. It refers to the caller's memory until it is done or destroyed; the
/// destructor cancels an unfinished message.
class port_message {
 public:
  port_message(const port_message&) = delete;
  port_message& operator=(const port_message&) = delete;
  ~port_message();

  /// Returns the sender of a received message.
  [[nodiscard]] int source() const noexcept { return request_.source; }

 private:
  friend class message_port;
  port_message() = default;

  message_port* port_ = nullptr;
  request request_;
  bool is_send_ = false;
  bool is_done_ = false;
  seconds timeout_{0};
  clock::time_point deadline_{};
  std::exception_ptr failure_;
};

/// Sends and receives tagged messages between ranks. Messages from one rank to another with one tag arrive in order.
/// Any thread may call any function; every message makes progress when any message is tested or waited for.
class message_port {
 public:
  /// Tags are below this number.
  static constexpr std::uint32_t first_reserved_tag = first_library_tag - 1;

  /// Owns a group that is used for messages alone.
  explicit message_port(group&& ranks);
  message_port(const message_port&) = delete;
  message_port& operator=(const message_port&) = delete;
  ~message_port();

  /// Start a message. Throw configuration_error for a rank or a tag that cannot be. A receive takes exactly `bytes`;
  /// without `peer` it takes the first message of any rank with that tag.
  [[nodiscard]] std::unique_ptr<port_message> send(const void* data, std::size_t bytes, int peer, std::uint32_t tag,
                                                   seconds timeout);
  [[nodiscard]] std::unique_ptr<port_message> receive(void* data, std::size_t bytes, std::optional<int> peer,
                                                      std::uint32_t tag, seconds timeout);
  /// Makes progress; returns true when the message is done. Throws timeout_error after the message's timeout,
  /// peer_failure when its peer has ended, and mismatch_error for another size.
  bool test(port_message& message);
  /// Waits until the message is done (true), or until `limit` (false). Throws the same.
  bool wait_until(port_message& message, clock::time_point limit);
  /// Ends all messages with this error, also later ones.
  void fail(std::exception_ptr cause) noexcept;

 private:
  friend class port_message;
  void start(port_message& message, std::uint32_t tag);
  bool advance(port_message& message);
  void read_control();
  void end(port_message& message, std::exception_ptr failure) noexcept;
  void check_peers();

  std::mutex mutex_;
  group ranks_;
  std::vector<port_message*> open_;
  std::vector<clock::time_point> ended_;  // by rank: the time after which its messages fail
  std::exception_ptr failure_;
};

}}}  // namespace muster::v0::detail
