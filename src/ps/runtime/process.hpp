// What a process of a job has, whether it works or serves: its view of the shard map in the store, and its link.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <muster/comm/bootstrap/store.hpp>
#include <muster/core/error.hpp>
#include <muster/ps/job.hpp>

#include "../../comm/bootstrap/stores/watched_record.hpp"
#include "../../elastic/member_links.hpp"
#include "../protocol/settings.hpp"
#include "../protocol/shard_map.hpp"
#include "link.hpp"

namespace muster { inline namespace v0 { namespace ps::detail {

/// One process' view of the map. `swap`, `take` and `take_failure` are its owner's thread's and do not block.
class map_keeper {
 public:
  /// Leaves `first` in the store under `key` unless a map is there, and begins with what is there. Throws
  /// timeout_error, and data_error for what is no map.
  map_keeper(std::shared_ptr<any_store> store, std::string key, const shard_map& first, clock::time_point until)
      : store_(std::move(store)),
        key_(std::move(key)),
        record_(store_, key_, {log_level::debug, "the shard map", "pushes and pulls go on, and no range moves"},
                leave(first, until)) {}

  /// A map that was not taken yet.
  [[nodiscard]] std::optional<shard_map> take() {
    const auto entry = record_.take();
    if (!entry) return std::nullopt;
    auto map = read(entry->value);
    version_ = entry->version;
    map_version_ = map.version;
    return map;
  }
  /// The map becomes `next` if it is of that version; then `take` gives what came of it, or `take_failure` says that
  /// nothing is known.
  void swap(std::uint64_t expected, const shard_map& next) {
    constexpr std::uint64_t nothing_there = 0;  // never so: another was faster, and `take` gives that map
    record_.swap(map_version_ == expected ? version_ : nothing_there, next.encode());
  }
  [[nodiscard]] bool take_failure() noexcept { return record_.take_failure(); }
  /// Blocks: writes what `change` makes of the newest map, if it makes anything, until it succeeds.
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
  [[nodiscard]] store_entry leave(const shard_map& first, clock::time_point until) {
    auto left = store_->compare_and_swap(key_, 0, first.encode(), until);
    if (left.swapped) left.now.value = first.encode();
    (void)read(left.now.value);  // throws for what is no map
    return std::move(left.now);
  }

  std::shared_ptr<any_store> store_;
  std::string key_;
  // Of the map that was taken last: the store's version, and its own.
  std::uint64_t version_ = 0;
  std::uint64_t map_version_ = 0;
  muster::detail::watched_record record_;
};

/// With what it begins.
struct seat {
  member self;
  const job_options& options;
  const protocol_settings& protocol;
  const table_layout& layout;
  transport& over;
  std::shared_ptr<any_store> store;
  std::string name;                               ///< of the map in the store
  const shard_map& first;                         ///< unless the store has one
  muster::detail::member_links* links = nullptr;  ///< of an elastic job: `over` is none of its connections
  const muster::detail::member_links::connected* linked = nullptr;  ///< the first of these
  std::string job{};                                                ///< a name that no other job has
};

/// How often both sides of the protocol are told the time.
inline constexpr int ticks_a_retry = 10;
/// Looks in vain for something to hear before the processor is given away.
inline constexpr int spins_before_pause = 2000;

class process {
 protected:
  explicit process(const seat& at)
      : options_(at.options),
        protocol_(at.protocol),
        layout_(at.layout),
        keeper_(at.store, at.name, at.first, deadline_after(at.options.timeout)),
        first_(keeper_.take().value_or(at.first)),
        links_(at.links) {
    if (links_ == nullptr)
      link_.move_to(at.over);
    else
      link_by(*at.linked, {});
    link_.introduce({.from = at.self, .map_version = first_.version});
  }
  ~process() = default;

#ifdef MUSTER_HAS_TCP
  /// Changes over to newer connections if there are any: true then. What was under way is lost.
  bool renew_link() {
    if (links_ == nullptr) return false;
    return links_->take([this](const auto& now, const auto& gone) { link_by(now, gone); });
  }
  void connect_again() { links_->connect_again(*end_); }
#else
  bool renew_link() { return false; }
  void connect_again() {}
#endif

  /// Hears of processes that are gone, in an elastic job from its membership.
  void find_lost(const std::function<void(node_id, bool may_return)>& tell) {
    const bool by_members = links_ != nullptr;
    link_.find_lost(by_members ? clock::duration::zero() : protocol_.silence,
                    [&](int rank, bool may_return, const char* why) {
                      if (!by_members) return tell(link_.places()[static_cast<std::size_t>(rank)], may_return);
                      end_->saw_end_of(rank, why);
                      connect_again();
                    });
  }

  void link_by(const muster::detail::member_links::connected& now, const std::vector<node_id>& gone) {
    link_.move_to(*now.over, now.orders);
    end_ = now.end;
    gone_.insert(gone_.end(), gone.begin(), gone.end());
  }

  const job_options& options_;
  protocol_settings protocol_;
  const table_layout& layout_;
  map_keeper keeper_;
  // That of the store: another process may have been faster, and may have seen others than this one.
  shard_map first_;
  frame_link link_;
  muster::detail::member_links* links_;              // of an elastic job
  std::shared_ptr<muster::detail::revocation> end_;  // of the generation that is linked
  std::vector<node_id> gone_;                        // members that have left or died: none comes back
};

}}}  // namespace muster::v0::ps::detail
