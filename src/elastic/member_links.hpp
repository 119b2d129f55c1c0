// Connections among processes that come and go, whatever these are doing: those of the next generation are made beside
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

#include "../comm/group/revocation.hpp"

namespace muster { inline namespace v0 { namespace detail {

class job_member;

/// One process' part in an elastic job that is no sequence of steps. A thread stops each generation as soon as it is
/// over, connects the next one and leaves that for its owner, which goes on over the old connections until it looks. So
/// no process waits for another one that is busy, and what was under way when it changes over is lost.
class member_links {
 public:
  /// Those of a generation, by rank.
  struct connected {
    std::shared_ptr<transport> over;
    std::vector<std::uint32_t> orders;  ///< what members were announced with
    std::shared_ptr<revocation> end;    ///< of the generation; is told of connections that broke
  };

  /// Announces this process with that number, which no other has. The context outlives it.
  member_links(const context& of, const std::shared_ptr<any_store>& store, std::uint32_t order);
  /// Leaves the job.
  ~member_links();

  /// Calls move(connected, gone) if there are connections that it was not called with: the owner goes over to these and
  /// uses no others when it returns. `gone`: members that have left or died since the last call; they never come back.
  /// Throws departure when this process' part in the job is over, and what made it impossible to connect. Without news
  /// it reads one word.
  using mover = std::function<void(const connected& now, const std::vector<std::uint32_t>& gone)>;
  bool take(const mover& move);
  /// The same, and waits for the first.
  void await(const mover& move);
  /// A connection of that generation broke: if it is the present one its members connect again, without those that are
  /// gone.
  void connect_again(const revocation& end) noexcept { broken_.store(&end, std::memory_order_release); }

 private:
  void run(const std::stop_token& stop);
  void end_former();
  void change(const std::stop_token& stop);

  const context& context_;
  std::unique_ptr<job_member> member_;
  std::atomic<bool> news_{false};
  std::atomic<const revocation*> broken_{nullptr};
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::optional<connected> ready_;
  std::vector<std::uint32_t> gone_;
  std::exception_ptr failure_;
  struct former {
    std::shared_ptr<transport> over;
    clock::time_point until;
  };
  std::vector<former> former_;       // they may take a while to end
  std::shared_ptr<transport> used_;  // by the owner
  std::jthread thread_;
};

}}}  // namespace muster::v0::detail
