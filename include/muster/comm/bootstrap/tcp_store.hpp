// A store that one process serves to the others over TCP.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <muster/comm/bootstrap/store.hpp>

namespace muster { inline namespace v0 {
/// A store cannot be served at an address because another socket listens there already.
class store_address_taken : public configuration_error {
 public:
  /// From the text of the error.
  using configuration_error::configuration_error;
};

/// Serves a store from a thread of its own, until it is destroyed. The table is in memory, at most 256 MiB, and also in
/// the folder if one is given: a server that is started on that folder later, also after a SIGKILL, continues with the
/// table, without the keys of clients. Each write is then flushed to the disk before it is answered.
///
/// Client and server authenticate each other by challenge and response with the token. A connection that fails to, is
/// silent for 5 s or sends a malformed frame is dropped and counted, and so is a client that does not read its answers.
/// No client waits for another. The keys of a client are removed with its connection.
class store_server {
 public:
  /// Listens at "10.0.0.1:29500", "[::1]:0" or ":29500" (all interfaces); port 0 takes a free one. Throws
  /// store_address_taken when another socket listens there, and configuration_error when the address cannot be used,
  /// the folder (which is made if it is missing) cannot be used, or another process has it open; data_error when what
  /// is in it cannot be read.
  store_server(std::string_view address, std::string_view token, const std::string& folder = "");
  store_server(const store_server&) = delete;
  store_server& operator=(const store_server&) = delete;
  /// Every connected client gets peer_failure.
  ~store_server();

  /// Writes the address and the token to a file for `tcp_store`, readable by this user alone (mode 0600); an existing
  /// file is replaced. The file is removed when the server is destroyed. Call at most once. Throws
  /// configuration_error when it cannot be written.
  void announce(const std::string& file);

  /// Where it listens, with the port it has: "10.0.0.1:41234".
  [[nodiscard]] std::string address() const;
  [[nodiscard]] std::uint16_t port() const noexcept;
  /// Whether a server of this process listens at that port. Thread safe.
  [[nodiscard]] static bool listens_here(std::uint16_t port);

  /// Connections so far.
  struct counts {
    std::uint64_t served = 0;     ///< authenticated
    std::uint64_t strangers = 0;  ///< dropped before they authenticated
    std::uint64_t offenders = 0;  ///< dropped later, for a malformed frame or for not reading their answers
    std::uint64_t present = 0;    ///< served and connected now
  };
  /// Thread safe.
  [[nodiscard]] counts met() const noexcept;
  /// Whether it has stopped serving, for lack of memory or of disk space. The log has the reason. Thread
  /// safe.
  [[nodiscard]] bool has_ended() const noexcept;

 private:
  struct implementation;
  std::unique_ptr<implementation> self_;
};

/// What a client does when its connection to the server breaks; see `tcp_store`.
enum class when_lost { fail, connect_again };

/// A client of a store_server: one connection that all threads share, and a thread that reads the answers.
///
/// When the connection breaks, or the server ends or is silent for 20 s, outstanding calls throw peer_failure, and the
/// keys of this client are removed. With `when_lost::fail` all later calls throw it too. With
/// `when_lost::connect_again` the next call connects again until its deadline, then throws timeout_error; if the server
/// that it reaches has another table than before, every call throws store_left_behind. A store that is opened like this
/// is cleared when all of its clients have ended. A client has ended when it closes the store, or when the server sees
/// the end of its process on the server's own host. A client that is disconnected, or has not connected since the
/// server was restarted, counts as ended after 10 s; time for which the server is stopped does not count. Opening waits
/// for that, up to half of its time.
class tcp_store final : public any_store {
 public:
  /// Connects to "host:port", to the first of several ("10.0.0.1:29500,[2001:db8::1]:29500") that answers, or by the
  /// file of "file:PATH", which `store_server::announce` wrote, with its token; the file is read for each attempt.
  /// Tries until the deadline, then throws timeout_error. Throws configuration_error when the host is unknown until
  /// then, or when the listener at an address does not have the token. `own` is a server that lives as long as the
  /// client.
  tcp_store(std::string_view where, std::string_view token, clock::time_point until,
            std::unique_ptr<store_server> own = nullptr, when_lost then = when_lost::fail);
  tcp_store(tcp_store&&) noexcept;
  tcp_store& operator=(tcp_store&&) = delete;
  /// Closes the connection.
  ~tcp_store() override;

  [[nodiscard]] store_entry get(std::string_view key, clock::time_point until) override;
  store_swap compare_and_swap(std::string_view key, std::uint64_t expected, std::optional<std::string_view> value,
                              clock::time_point until, store_life life = store_life::of_store) override;
  [[nodiscard]] std::optional<store_entry> watch(std::string_view key, std::uint64_t known, clock::time_point until,
                                                 const std::stop_token& stop = {}) override;
  [[nodiscard]] std::string where() const override;
  /// Whether a server of this process serves it: `own`, or another.
  [[nodiscard]] bool is_served_here() const override;

 private:
  struct connection;

  std::unique_ptr<store_server> own_;  // before the client: it ends after it
  std::unique_ptr<connection> self_;
};

}}  // namespace muster::v0
