// The common part of worker and server processes: the view of the shard map in the store, and the link.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <muster/comm/bootstrap/store.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/ps/job.hpp>

#include <muster/comm/bootstrap/stores/watched_record.hpp>
#include <muster/elastic/member_links.hpp>
#include <muster/ps/protocol/protocol_settings.hpp>
#include <muster/ps/protocol/shard_map.hpp>
#include <muster/ps/runtime/ps_link.hpp>

namespace muster { inline namespace v0 { namespace ps::detail {

/// A process' view of the shard map in the store. The owner's thread calls `swap`, `take` and `take_failure`, which do
/// not block.
class map_keeper {
 public:
  /// Writes `initial_map` to the store under `key` unless the store has a map, and starts with the store's map. Throws
  /// timeout_error, and data_error if the stored value is no map.
  map_keeper(std::shared_ptr<any_store> store, std::string key, const shard_map& initial_map, clock::time_point until)
      : store_(std::move(store)),
        key_(std::move(key)),
        record_(store_, key_, {log_level::debug, "the shard map", "pushes and pulls go on, and no range moves"},
                create(initial_map, until)) {}

  /// Returns a map that was not returned before, or nullopt.
  [[nodiscard]] std::optional<shard_map> take() {
    const auto entry = record_.take();
    if (!entry) return std::nullopt;
    auto map = read(entry->value);
    version_ = entry->version;
    map_version_ = map.version;
    return map;
  }
  /// Replaces the store's map by `next` if the store's map has the version `expected`. Then `take` returns the
  /// resulting map, or `take_failure` returns true if the result is unknown.
  void swap(std::uint64_t expected, const shard_map& next) {
    constexpr std::uint64_t never_matches = 0;  // another process changed the map first, and `take` returns that map
    record_.swap(map_version_ == expected ? version_ : never_matches, next.encode());
  }
  [[nodiscard]] bool take_failure() noexcept { return record_.take_failure(); }
  /// Applies `change` to the newest map and writes the result, until the write succeeds or `change` returns nullopt.
  /// Blocks.
  template <class Change>
  void change(const Change& change, clock::time_point until) {
    for (;;) {
      const auto before = store_->get(key_, until);
      const std::optional<shard_map> next = change(read(before.value));
      if (!next || store_->compare_and_swap(key_, before.version, next->encode(), until).swapped) return;
    }
  }

 private:
  [[nodiscard]] shard_map read(const std::string& text) const {
    auto map = shard_map::decode(text);
    if (map) return std::move(*map);
    throw data_error({store_->where()}, "the value of '" + key_ +
                                            "' in the store is no shard map (another version of muster or another "
                                            "program wrote it); give each job its own store");
  }
  [[nodiscard]] store_entry create(const shard_map& initial_map, clock::time_point until) {
    auto swapped = store_->compare_and_swap(key_, 0, initial_map.encode(), until);
    if (swapped.swapped) swapped.now.value = initial_map.encode();
    (void)read(swapped.now.value);  // throws if the stored value is no map
    return std::move(swapped.now);
  }

  std::shared_ptr<any_store> store_;
  std::string key_;
  // Version in the store, and version of the map, for the last map that `take` returned.
  std::uint64_t version_ = 0;
  std::uint64_t map_version_ = 0;
  muster::detail::watched_record record_;
};

/// The parameters of a worker or server process.
struct process_setup {
  member self;
  const job_options& options;
  const protocol_settings& protocol;
  const table_layout& layout;
  transport& over;
  std::shared_ptr<any_store> store;
  std::string map_key;                                                     ///< key of the map in the store
  const shard_map& first;                                                  ///< used if the store has no map
  muster::detail::member_links* links = nullptr;                           ///< in an elastic job; `over` is then unused
  const muster::detail::member_links::generation_links* linked = nullptr;  ///< the first connections of an elastic job
  std::string job{};                                                       ///< unique name of the job
};

/// Number of ticks of the protocol in each `retry`, at most.
inline constexpr int ticks_a_retry = 10;
/// Number of unsuccessful polls before the process releases the processor.
inline constexpr int spins_before_pause = 2000;

class process {
 protected:
  explicit process(const process_setup& setup)
      : options_(setup.options),
        protocol_(setup.protocol),
        layout_(setup.layout),
        keeper_(setup.store, setup.map_key, setup.first, deadline_after(setup.options.timeout)),
        first_(keeper_.take().value_or(setup.first)),
        links_(setup.links) {
    if (links_ == nullptr)
      link_.move_to(setup.over);
    else
      link_to(*setup.linked, {});
    link_.set_identity({.sender = setup.self, .map_version = first_.version});
  }
  ~process() = default;

#ifdef MUSTER_HAS_TCP
  /// Switches to newer connections if there are any, and returns true then. Messages in flight are lost.
  bool renew_link() {
    if (links_ == nullptr) return false;
    return links_->take_new_links(
        [this](const auto& connected, const auto& lost_places) { link_to(connected, lost_places); });
  }
  void connect_again() { links_->connect_again(*end_); }
#else
  bool renew_link() { return false; }
  void connect_again() {}
#endif

  /// Returns the time of the next tick, after a turn of the loop that began at `turn_began`. A turn costs time for each
  /// process of the job, and longer where processes wait for a processor. Ticks take at most a tenth of the time, so
  /// that a job of many processes on few cores proceeds, but there are two ticks in every `retry`.
  [[nodiscard]] clock::time_point next_tick_after(clock::time_point turn_began) const noexcept {
    const auto now = clock::now();
    return now +
           std::clamp<clock::duration>(10 * (now - turn_began), protocol_.retry / ticks_a_retry, protocol_.retry / 2);
  }

  /// Calls `on_lost` for each process that has ended or whose connection broke. In an elastic job the membership is
  /// notified instead, and decides: `on_lost` is not called.
  void find_lost(const std::function<void(node_id, bool may_return)>& on_lost) {
    const bool by_members = links_ != nullptr;
    link_.find_lost(by_members ? clock::duration::zero() : protocol_.detection_silence,
                    [&](int rank, bool may_return, const char* reason) {
                      if (!by_members) return on_lost(link_.places()[static_cast<std::size_t>(rank)], may_return);
                      end_->on_peer_ended(rank, reason);
                      connect_again();
                    });
  }

  void link_to(const muster::detail::member_links::generation_links& connected,
               const std::vector<node_id>& lost_places) {
    link_.move_to(*connected.member_transport, connected.orders);
    end_ = connected.end;
    lost_places_.insert(lost_places_.end(), lost_places.begin(), lost_places.end());
  }

  const job_options& options_;
  protocol_settings protocol_;
  const table_layout& layout_;
  map_keeper keeper_;
  // The map in the store. Another process may have written a map first, with other servers and workers.
  shard_map first_;
  frame_link link_;
  muster::detail::member_links* links_;              // of an elastic job
  std::shared_ptr<muster::detail::revocation> end_;  // of the connected generation
  std::vector<node_id> lost_places_;                 // members that have left or died, and never return
};

}}}  // namespace muster::v0::ps::detail
