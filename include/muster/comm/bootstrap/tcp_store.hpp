// A store that one process serves to the others over TCP.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <muster/comm/bootstrap/store.hpp>

namespace muster { inline namespace v0 {
/// The error when another socket already listens at the address.
class store_address_taken : public configuration_error {
 public:
  /// Constructs the error from its text.
  using configuration_error::configuration_error;
};

/// A server of a store, which runs in its own thread until it is destroyed. The table is in memory, at most 256 MiB,
/// and also in the folder if one is given: a server that is started with that folder later, also after a SIGKILL,
/// continues with the table, without the keys of clients. Each write is then flushed to the disk before the server
/// replies.
///
/// Client and server authenticate each other by challenge and response with the token. The server drops and counts a
/// connection that does not authenticate within 5 s, and a client that sends a malformed frame or does not read its
/// replies for 30 s. Such a client delays no other client. The end of a client's connection removes its keys with
/// `store_life::of_client`.
class store_server {
 public:
  /// Listens at "10.0.0.1:29500", "[::1]:0" or ":29500" (all interfaces); port 0 takes a free port. Throws
  /// store_address_taken when another socket listens at the address. Throws configuration_error when the address cannot
  /// be used, when `journal_folder` (which is created if it is missing) cannot be used, or when another process has the
  /// folder open. Throws data_error when the files in the folder cannot be read. Without a folder the table is only in
  /// memory.
  store_server(std::string_view address, std::string_view token, const std::string& journal_folder = "");
  store_server(const store_server&) = delete;
  store_server& operator=(const store_server&) = delete;
  /// Ends the connections: calls of connected clients throw peer_failure. Removes the file of `announce`.
  ~store_server();

  /// Writes the address and the token to a file for `tcp_store`, readable by this user alone (mode 0600); an existing
  /// file is replaced. Call at most once. Throws configuration_error when the file cannot be written.
  void announce(const std::string& path);

  /// Returns the address at which the server listens, with the actual port: "10.0.0.1:41234".
  [[nodiscard]] std::string address() const;
  [[nodiscard]] std::uint16_t port() const noexcept;
  /// Returns true if a server in this process listens at that port. Thread safe.
  [[nodiscard]] static bool listens_here(std::uint16_t port);

  /// Numbers of connections so far.
  struct counts {
    std::uint64_t served = 0;           ///< authenticated
    std::uint64_t unauthenticated = 0;  ///< dropped before they authenticated
    std::uint64_t offenders = 0;        ///< dropped later, for a malformed frame or for not reading their replies
    std::uint64_t present = 0;          ///< served and connected now
  };
  /// Returns the numbers of connections. Thread safe.
  [[nodiscard]] counts connection_counts() const noexcept;
  /// Returns true if the server has stopped serving, for lack of memory or of disk space. The log has the reason.
  /// Thread safe.
  [[nodiscard]] bool has_ended() const noexcept;

 private:
  struct implementation;
  std::unique_ptr<implementation> self_;
};

/// The reaction of a client when its connection to the server breaks; see `tcp_store`.
enum class when_lost { fail, connect_again };

/// A client of a store_server: a connection that all threads share, and a thread that reads the replies.
///
/// When the connection breaks, or the server ends or is silent for 20 s, outstanding calls throw peer_failure, and this
/// client's keys are removed. With `when_lost::fail` all later calls throw peer_failure too. With
/// `when_lost::connect_again` the next call connects again until its deadline, then throws timeout_error; if the server
/// has another table than before, every call throws store_left_behind. A store that is opened like this is cleared when
/// all its clients have ended. A client has ended when it closes the store, or when the server detects the end of its
/// process on the server's own host. A client that is disconnected, or has not connected since the server was
/// restarted, counts as ended after 10 s; time for which the server is stopped does not count. Opening waits for the
/// end of earlier clients, for half the time until its deadline at most.
class tcp_store final : public any_store {
 public:
  /// Connects to "host:port", to the first of several ("10.0.0.1:29500,[2001:db8::1]:29500") that answers, or by the
  /// file of "file:PATH", which `store_server::announce` wrote, with the token of the file; the file is read for each
  /// attempt. Tries until the deadline, then throws timeout_error. Throws configuration_error when the host stays
  /// unknown until then, or when the listener at "host:port" does not have the token. `own`: the server in this
  /// process, if it serves the store; the client owns the server and destroys it last.
  tcp_store(std::string_view where, std::string_view token, clock::time_point until,
            std::unique_ptr<store_server> own = nullptr, when_lost on_loss = when_lost::fail);
  tcp_store(tcp_store&&) noexcept;
  tcp_store& operator=(tcp_store&&) = delete;
  /// Closes the store, then destroys `own`.
  ~tcp_store() override;

  [[nodiscard]] store_entry get(std::string_view key, clock::time_point until) override;
  store_swap compare_and_swap(std::string_view key, std::uint64_t expected, std::optional<std::string_view> value,
                              clock::time_point until, store_life life = store_life::of_store) override;
  [[nodiscard]] std::optional<store_entry> watch(std::string_view key, std::uint64_t known, clock::time_point until,
                                                 const std::stop_token& stop = {}) override;
  [[nodiscard]] std::string where() const override;
  /// Returns true if a server in this process serves the store: `own`, or another.
  [[nodiscard]] bool is_served_here() const override;

 private:
  struct connection;

  std::unique_ptr<store_server> own_;  // declared before the client: the server is destroyed after the client
  std::unique_ptr<connection> self_;
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
