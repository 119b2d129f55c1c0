// A store that one process serves to the others over TCP.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <muster/comm/bootstrap/store.hpp>

namespace muster::inline v0 {
/// A store cannot be served at an address because another socket listens there already.
class store_address_taken : public configuration_error {
 public:
  /// From the text of the error.
  using configuration_error::configuration_error;
};

/// Serves a store from a thread of its own, until it is destroyed. What is in it is in memory, at most 256 MiB, and
/// where a folder is given there too: one that serves from the same folder later goes on where this one was, also after
/// a SIGKILL, without the keys of clients. Each write is then flushed to the disk before it is answered.
///
/// A client proves by challenge and response that it knows the token, and is shown that the server does; a connection
/// that does not, that is silent for 5 s or sends garbage is dropped and counted, and so is a client that does not take
/// what it asked for. No client waits for another. The keys of a client vanish with its
/// connection.
class store_server {
 public:
  /// Listens at "10.0.0.1:29500", "[::1]:0" or ":29500" (all addresses); port 0 takes a free one. Throws
  /// configuration_error when the address cannot be had, store_address_taken when another has it, and
  /// configuration_error when the folder (made where there is none) cannot be used, or another process has it open.
  store_server(std::string_view address, std::string_view token, const std::string& folder = "");
  store_server(const store_server&) = delete;
  store_server& operator=(const store_server&) = delete;
  /// Every connected client gets peer_failure.
  ~store_server();

  /// Leaves word in a file, for this user alone (mode 0600), of where it listens and of the token, by which `tcp_store`
  /// finds it; a file that is there is replaced. It is removed when this is destroyed. At most once. Throws
  /// configuration_error when it cannot be written.
  void announce(const std::string& file);

  /// Where it listens, with the port it has: "10.0.0.1:41234".
  [[nodiscard]] std::string address() const;
  [[nodiscard]] std::uint16_t port() const noexcept;
  /// Whether one of this process listens at that port. Thread safe.
  [[nodiscard]] static bool listens_here(std::uint16_t port);

  /// Connections so far.
  struct counts {
    std::uint64_t served = 0;     ///< proved that they know the token
    std::uint64_t strangers = 0;  ///< dropped before that
    std::uint64_t offenders = 0;  ///< dropped after that, for garbage or for not taking their answers
    std::uint64_t present = 0;    ///< of those served, connected now
  };
  /// Thread safe.
  [[nodiscard]] counts met() const noexcept;
  /// Whether it has stopped serving: there was no memory, or no room on the disk. The log has the reason. Thread
  /// safe.
  [[nodiscard]] bool has_ended() const noexcept;

 private:
  struct implementation;
  std::unique_ptr<implementation> self_;
};

/// What a client does when its connection to the server breaks; see `tcp_store`.
enum class when_lost { fail, connect_again };

/// A client of a store_server: one connection, on which the calls of all threads travel at the same
/// time, and a thread that reads the answers.
///
/// When the connection breaks, or the server ends or is silent for 20 s, the calls that are under way throw
/// peer_failure and its keys are gone. So do all later calls (`when_lost::fail`); or the next one connects again,
/// until its deadline, then it throws timeout_error (`when_lost::connect_again`). If the server then found has another
/// table than the one that was lost, every call throws store_left_behind. A store that is opened so begins empty
/// when its other clients have all ended; a client that was cut off, or that the server has not heard since it was
/// started again, has 10 s.
class tcp_store final : public any_store {
 public:
  /// Connects to "host:port", or to the first of several ("10.0.0.1:29500,[2001:db8::1]:29500") that answers, or to
  /// what a server has announced in the file of "file:PATH", which is read anew for each attempt and has the token; as
  /// long as none does tries again until the deadline, then throws timeout_error. Throws configuration_error when the
  /// host is unknown, or when the listener at an address does not know the token. `own` is a server that is to live
  /// as long.
  tcp_store(std::string_view where, std::string_view token, clock::time_point until,
            std::unique_ptr<store_server> own = nullptr, when_lost then = when_lost::fail);
  tcp_store(tcp_store&&) noexcept;
  tcp_store& operator=(tcp_store&&) = delete;
  /// Closes the connection.
  ~tcp_store() override;

  [[nodiscard]] store_entry get(std::string_view key, clock::time_point until) override;
  store_swap compare_and_swap(std::string_view key, std::uint64_t expected, std::optional<std::string_view> value,
                              clock::time_point until, store_life life = store_life::of_store) override;
  [[nodiscard]] std::optional<store_entry> watch(std::string_view key, std::uint64_t known,
                                                 clock::time_point until) override;
  [[nodiscard]] std::string where() const override;
  /// Whether a server of this process serves it: `own`, or another.
  [[nodiscard]] bool is_served_here() const override;

 private:
  struct connection;

  std::unique_ptr<store_server> own_;  // before the client: it ends after it
  std::unique_ptr<connection> self_;
};

}  // namespace muster::inline v0
