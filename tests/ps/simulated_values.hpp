// What is simulated of a parameter server: worlds, and servers whose values are which pushes they have had, so that
// nothing that is lost or comes twice stays unseen.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "ps/protocol/order.hpp"
#include "ps/protocol/server.hpp"

namespace simulation {

namespace ps = muster::ps;

/// What may happen in a run, each a probability or a bound.
struct world {
  int servers = 3;
  int workers = 3;
  std::size_t ranges = 6;
  std::uint32_t replicas = 1;
  ps::consistency how;
  int steps = 12;
  int faults = 4;
  bool server_crashes = true;
  bool worker_crashes = true;
  bool pauses = true;
  bool partitions = true;
  bool lies = true;     ///< suspicions of those that live
  bool leases = false;  ///< workers train what servers hand out, and some join; `ranges` is the range of the order
  double loss = 0.03;
  double duplicates = 0.05;
};

/// A property does not hold; the text says which.
struct violation : std::logic_error {
  using std::logic_error::logic_error;
};

struct outcome {
  std::uint64_t pushes = 0;
  std::uint64_t pulls = 0;
  std::uint64_t versions = 0;  ///< of the map
  std::uint64_t turns = 0;     ///< until workers that were whole went on, most of all
  std::uint64_t unhealed = 0;  ///< runs in which the servers that were whole lost a range
  bool excused = false;        ///< more servers failed than there were copies, and something was lost
};

/// Which push it is: a worker, its incarnation, its sequence for that range.
using push_id = std::tuple<ps::member, std::uint64_t>;

/// The pushes a server has had, in their order. Bulk-synchronous ones are seen from when their clock was folded.
class ledgers final : public ps::range_storage {
 public:
  struct row {
    ps::member from;
    std::uint64_t sequence;
    std::uint64_t clock;
    std::uint64_t place;
    friend bool operator==(const row&, const row&) = default;
  };
  struct ledger {
    std::vector<row> rows;
    std::vector<row> folded;
    std::uint64_t open = 0;  ///< bulk: the clock whose pushes are kept to be summed
    friend bool operator==(const ledger&, const ledger&) = default;
  };

  ledgers(std::size_t ranges, bool bulk, bool leases)
      : all_(ranges), bulk_(bulk), order_(bulk), order_at_(static_cast<ps::range_id>(leases ? ranges - 1 : ranges)) {}

  std::string problem_with(ps::range_id range, const ps::message& asked) const override {
    if (range == order_at_) return ps::epoch_order::problem_with(asked);
    const bool fits = asked.what != ps::message_kind::push || asked.payload.size() == sizeof(std::uint64_t);
    return fits ? "" : "a push is one number";
  }
  void apply(ps::range_id range, const ps::log_entry& entry) override {
    if (range == order_at_) return order_.apply(entry);
    ledger& to = all_[range];
    if (entry.what == ps::log_entry::kind::fold) {
      for (const auto& one : to.rows) {
        if (one.clock == entry.push.clock) to.folded.push_back(one);
      }
      to.open = entry.push.clock + 1;
      return;
    }
    std::uint64_t sequence = 0;
    std::memcpy(&sequence, entry.push.payload.data(), sizeof sequence);
    if (sequence != entry.push.number) throw violation("a push has the values of another");
    if (bulk_ && entry.what == ps::log_entry::kind::push && entry.push.clock != to.open)
      throw violation("the pushes of a second clock are kept");
    std::uint64_t before = 0;
    for (const auto& one : to.rows) {
      if (one.from == entry.from) before = one.sequence;
    }
    if (sequence <= before) throw violation("a push is applied twice");
    if (sequence != before + 1 && entry.push.place == 0) throw violation("a push is applied before an earlier one");
    if (has_place(range, entry.push.place)) throw violation("a part of a batch is applied twice");
    to.rows.push_back({entry.from, sequence, entry.push.clock, entry.push.place});
    if (entry.what == ps::log_entry::kind::late) to.folded.push_back(to.rows.back());
  }
  std::vector<ps::member> holders(ps::range_id range) const override {
    return range == order_at_ ? order_.holders() : std::vector<ps::member>();
  }
  std::span<const std::byte> read(ps::range_id range, const ps::message& pull) override {
    if (range == order_at_) {
      told_ = order_.answer({pull.offset, pull.count}, pull.place);
      return std::as_bytes(std::span(&told_, 1));
    }
    return std::as_bytes(std::span(seen(range)));
  }
  void save(ps::range_id range, muster::detail::wire_writer& to) const override {
    if (range == order_at_) return order_.save(to);
    to.add(all_[range].open);
    for (const auto* rows : {&all_[range].rows, &all_[range].folded}) {
      to.add(std::uint64_t{rows->size()});
      for (const auto& one : *rows) to.add(one);
    }
  }
  bool load(ps::range_id range, std::span<const std::byte> saved) override {
    muster::detail::wire_reader in(saved);
    if (range == order_at_) return order_.load(in);
    ledger read;
    read.open = in.number();
    for (auto* rows : {&read.rows, &read.folded}) {
      rows->resize(in.count(sizeof(row)));
      for (auto& one : *rows) one = in.number<row>();
    }
    all_[range] = std::move(read);
    return in.whole();
  }
  void reset(ps::range_id range) override {
    all_[range] = {};
    if (range == order_at_) order_ = ps::epoch_order(bulk_);
  }

  [[nodiscard]] bool has_place(ps::range_id range, std::uint64_t place) const {
    return place != 0 && std::any_of(all_[range].rows.begin(), all_[range].rows.end(),
                                     [&](const row& one) { return one.place == place; });
  }
  [[nodiscard]] const ps::epoch_order& order() const { return order_; }

  [[nodiscard]] const std::vector<row>& seen(ps::range_id range) const {
    return bulk_ ? all_[range].folded : all_[range].rows;
  }
  [[nodiscard]] const ledger& of(ps::range_id range) const { return all_[range]; }
  [[nodiscard]] std::uint64_t last(ps::range_id range, const ps::member& from) const {
    std::uint64_t last = 0;
    for (const auto& one : all_[range].rows) {
      if (one.from == from) last = one.sequence;
    }
    return last;
  }

 private:
  std::vector<ledger> all_;
  bool bulk_;
  ps::epoch_order order_;
  ps::range_id order_at_;
  ps::lease told_;
};

}  // namespace simulation
