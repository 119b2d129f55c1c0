// Ranks as threads in one process, which needs no launcher.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <muster/comm/request_table.hpp>
#include <muster/comm/transport.hpp>
#include <muster/core/function.hpp>

namespace muster { inline namespace v0 {

class group;
struct group_settings;

/// The shared state of the ranks of a local group; owned by their transports together.
class thread_hub {
 public:
  /// Makes the shared state of `rank_count` ranks. `name` is the name that the transports report: "threads", or "self"
  /// for a hub with one rank.
  explicit thread_hub(int rank_count, std::string_view name = "threads");
  thread_hub(const thread_hub&) = delete;
  thread_hub& operator=(const thread_hub&) = delete;
  ~thread_hub();

  [[nodiscard]] int size() const noexcept { return static_cast<int>(boxes_.size()); }

 private:
  friend class thread_transport;

  // Defined in the source file: <condition_variable>, <deque> and <mutex> are long.
  struct mailbox;        // messages to a rank
  struct subgroup_hubs;  // the hubs of the subgroups

  // Returns the hub of the subgroup `group_id`; makes the hub if there is none.
  std::shared_ptr<thread_hub> subgroup_hub(std::uint64_t group_id, int rank_count);

  std::string_view name_;
  std::vector<std::unique_ptr<mailbox>> boxes_;
  std::unique_ptr<subgroup_hubs> children_;
};

/// A rank of a local group. Used by the thread that is that rank; the peers' threads access it through the hub only.
class thread_transport final : public transport {
 public:
  /// Makes the transport of a rank of the group; the hub is shared with the transports of the other ranks.
  thread_transport(std::shared_ptr<thread_hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return hub_->size(); }
  [[nodiscard]] transport_abilities abilities() const override;
  [[nodiscard]] bool oversubscribed() const override;
  void send(request& req) override;
  void receive(request& req) override;
  bool test(request& req) override;
  void cancel(request& req) noexcept override;
  bool replace_buffer(request& req, std::byte* replacement) noexcept override;
  void notify(int peer, const control_message& message) override;
  bool poll(control_message& message) override;
  void pause(clock::time_point deadline) override;
  [[nodiscard]] std::unique_ptr<transport> subgroup(const subgroup_call& call) override;

 private:
  using mailbox = thread_hub::mailbox;

  mailbox& box(int rank) { return *hub_->boxes_[static_cast<std::size_t>(rank)]; }
  static void wake(mailbox& box);
  // Matches the messages in the mailbox with the posted receives.
  void match();
  // A message and the receive that takes it.
  struct matched {
    request* sent = nullptr;
    request* received = nullptr;
  };
  // Returns a pair that was not matched yet; no pair when there is none. Finishes receives that only look for a
  // message. Called with the mailbox's mutex held.
  matched next_match(mailbox& mine);
  static void finish_receive(request& received, const request& sent);

  std::shared_ptr<thread_hub> hub_;
  int rank_;
  std::uint64_t events_at_last_match_ = 0;  // the mailbox's event count at the last search
  std::uint64_t events_at_last_test_ =
      0;                                // the event count at the last `test`: a pause ends when there are more events
  detail::request_queue new_receives_;  // receives that were not compared with the mailbox's messages
  detail::request_table posted_;        // receives without a message
};

/// Makes a group with a single rank: the transport of a program that no launcher started.
[[nodiscard]] inline std::unique_ptr<thread_transport> make_self_transport() {
  return std::make_unique<thread_transport>(std::make_shared<thread_hub>(1, "self"), 0);
}

namespace detail {

/// Runs `body` once on each of `rank_count` threads, the ranks in a world over the transport threads. When all have
/// ended, throws the exception of the lowest rank that failed by its own cause.
void run_as_threads(int rank_count, const group_settings& settings, const function<void(group&)>& body);

}  // namespace detail

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
