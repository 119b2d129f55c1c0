// Connects processes that join and leave a job at any time. The connections of the next generation are made beside
// those in use.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <muster/comm/bootstrap/store.hpp>
#include <muster/comm/context.hpp>
#include <muster/comm/transport.hpp>
#include <muster/core/clock.hpp>

#include <muster/comm/group/revocation.hpp>

namespace muster { inline namespace v0 { namespace detail {

class job_member;

/// A process's part in an elastic job that is not a sequence of steps. A thread stops each generation as soon as it
/// is over, connects the next one and stores its connections for the owner. The owner continues over the old
/// connections until it calls `take_new_links`. Thus no process waits for a busy process, and messages under way at the
/// change are lost.
class member_links {
 public:
  /// The connections of one generation, by rank.
  struct generation_links {
    std::shared_ptr<transport> member_transport;
    std::vector<std::uint32_t> orders;  ///< by rank: the number with which the member was announced
    std::shared_ptr<revocation> end;    ///< the revocation of the generation; broken connections are reported to it
  };

  /// Announces this process with the number `order`, which no other process has. The context must outlive it.
  member_links(const context& parent, const std::shared_ptr<any_store>& store, std::uint32_t order);
  /// Leaves the job.
  ~member_links();

  /// Changes the owner over to the connections `next`; the owner uses no other connections after the return. `gone`:
  /// the orders of members that have left or died since the last call; these members never return.
  using mover = std::function<void(const generation_links& next, const std::vector<std::uint32_t>& gone)>;
  /// Calls `move` and returns true if there are new connections; otherwise returns false, after reading one word.
  /// Throws departure when this process's part in the job is over, and the errors that prevented a connection.
  bool take_new_links(const mover& move);
  /// Waits for new connections, then calls `take_new_links`.
  void await_new_links(const mover& move);
  /// Reports a broken connection of `end`'s generation. If it is the present generation, its members connect again,
  /// without members that have gone.
  void connect_again(const revocation& end) noexcept { broken_generation_.store(&end, std::memory_order_release); }

 private:
  void run(const std::stop_token& stop);
  // Closes former connections whose time is over.
  void end_former();
  // Stops and connects one generation after another, until a stop request.
  void change(const std::stop_token& stop);

  const context& context_;
  std::unique_ptr<job_member> member_;
  std::atomic<bool> has_news_{false};                          // true if `ready_` or `failure_` is set
  std::atomic<const revocation*> broken_generation_{nullptr};  // identifies the generation of a broken connection
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<generation_links> ready_;  // guarded by mutex_
  std::vector<std::uint32_t> gone_;        // guarded by mutex_
  std::exception_ptr failure_;             // guarded by mutex_
  struct former {
    std::shared_ptr<transport> member_transport;
    clock::time_point until;
  };
  std::vector<former> former_;       // former connections, which may take a while to end; guarded by mutex_
  std::shared_ptr<transport> used_;  // the transport in use by the owner; guarded by mutex_
  std::jthread thread_;
};

}}}  // namespace muster::v0::detail
