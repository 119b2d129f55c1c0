// The ranks of a process group, connected: muster's group for collectives and its port for messages.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <message_port.hpp>
#include <muster/comm/group.hpp>

namespace muster::torch_backend {

/// What `connect` needs besides the rank and the size.
struct connect_options {
  std::chrono::milliseconds timeout;
  std::string transport = "auto";  ///< "auto", "shm", "tcp" or "hierarchical"
};

/// The connected ranks of a process group. Works share it with the backend.
class connection {
 public:
  connection(muster::group&& collectives, muster::group&& messages);
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;
  /// Leaves the ranks. In a child of fork() it does nothing: they are the parent's.
  ~connection();

  /// Ends all outstanding and later calls, at this rank and at the ranks that wait for it.
  void abort(const std::string& reason);
  /// Throws the reason after `abort`, and configuration_error in a child of fork().
  void check() const;

  /// The number of forks between the start of the program and this process.
  static std::atomic<int> forks;

 private:
  struct parts;
  std::unique_ptr<parts> parts_;

 public:
  std::mutex& mutex;  ///< held by the thread that uses `ranks`
  muster::group& ranks;
  muster::detail::message_port& port;
  std::atomic<bool> is_aborted = false;

 private:
  int made_in_ = forks;
  mutable std::mutex reason_mutex_;
  std::string reason_;
};

/// Connects the ranks of a process group that share a store: through shared memory on one host, else through shared
/// memory within hosts and TCP between them. Collective.
[[nodiscard]] std::shared_ptr<connection> connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                  const connect_options& options);

/// A process that ranks can reconnect to without a store: what its handle for reconfigure() says.
class reconnectable {
 public:
  /// Serves a store at a free port of this host, for the ranks that connect when this process is their first.
  reconnectable();
  ~reconnectable();
  [[nodiscard]] const std::string& handle() const noexcept { return handle_; }
  /// Connects the processes of the handles, in this order. Collective.
  [[nodiscard]] std::shared_ptr<connection> connect(const std::vector<std::string>& handles, std::int64_t number,
                                                    const connect_options& options) const;

 private:
  struct implementation;
  std::unique_ptr<implementation> self_;
  std::string handle_;
};

}  // namespace muster::torch_backend
