// A server in a job: the protocol's state machine, its values and its connections.
#pragma once

#include <atomic>
#include <optional>
#include <set>

#include "../protocol/server.hpp"
#include "process.hpp"
#include "tables.hpp"

namespace muster::inline v0::ps::detail {

class server_process final : process, public server_outlet {
 public:
  explicit server_process(const seat& at);
  server_process(const server_process&) = delete;
  server_process& operator=(const server_process&) = delete;
  ~server_process() override;

  /// Serves as long as the map names it, and stands by else; until the job is over.
  void serve();
  /// From any thread: it serves no more, and tells no other process.
  void stop() noexcept { stopped_ = true; }

 private:
  // Values go from where they lie, and from a copy when they are about to change.
  void send(const member& to, const message& what) override {
    const bool lends = what.what == message_kind::values && values_.reads_in_place(what.range, what);
    link_.send(to, what, lends);
  }
  [[nodiscard]] bool has_room(const member& to) const override { return link_.under_way(to.at) < frames_at_once; }
  void swap(std::uint64_t expected, const shard_map& next) override { keeper_.swap(expected, next); }
  void tick(clock::time_point now);
  void learn(const shard_map& map, clock::time_point now);
  void stand_by();
  void offer_itself(bool again);
  void end_if_deserted(clock::time_point now);
  [[nodiscard]] bool is_over() const;

  detail::tables values_;
  shard_map newest_;
  std::optional<server> core_;  // one that is fenced, where it stands by; always there
  bool serves_ = false;
  bool goes_ = false;  // the map wants it to, or to leave with nothing: then it is no failure to be fenced
  clock::time_point deserted_since_{};
  std::uint64_t offered_at_ = 0;  // the version of the map when it wanted to serve last
  std::atomic<bool> stopped_{false};
  node_id self_;
  std::set<node_id> left_;  // workers that are done, or dead
};

}  // namespace muster::inline v0::ps::detail
