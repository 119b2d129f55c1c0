// The parts of a simulated parameter server: worlds, and servers whose values are the pushes that they have applied, so
// that lost and duplicated pushes are detected.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <muster/ps/protocol/order.hpp>
#include <muster/ps/protocol/server_protocol.hpp>

namespace simulation {

namespace ps = muster::ps;

/// The possible events in a run. Each member is a probability or a bound.
struct world {
  int servers = 3;
  int workers = 3;
  std::size_t ranges = 6;
  std::uint32_t replicas = 1;
  ps::consistency model;
  int steps = 12;
  int faults = 4;
  bool server_crashes = true;
  bool worker_crashes = true;
  bool pauses = true;
  bool partitions = true;
  bool lies = true;  ///< suspicions of live processes
  /// Servers lease the workers' batches, and some workers join; the order's range is number `ranges`.
  bool leases = false;
  double loss = 0.03;
  double duplicates = 0.05;
};

/// The failure of an invariant, which the text names.
struct violation : std::logic_error {
  using std::logic_error::logic_error;
};

struct outcome {
  std::uint64_t pushes = 0;
  std::uint64_t pulls = 0;
  std::uint64_t versions = 0;  ///< versions of the map
  std::uint64_t turns = 0;     ///< maximum number of turns until the healthy workers continued
  std::uint64_t unhealed = 0;  ///< number of runs in which the healthy servers lost a range
  bool excused = false;        ///< more servers failed than there were copies, and a range was lost
};

/// The identity of a push: a worker with its incarnation, and the push's sequence for the range.
using push_id = std::tuple<ps::member, std::uint64_t>;

/// The pushes that a server has applied, in their order. Bulk-synchronous pushes become visible when their clock is
/// folded.
class ledgers final : public ps::range_storage {
 public:
  struct row {
    ps::member worker;
    std::uint64_t sequence;
    std::uint64_t clock;
    std::uint64_t place;
    friend bool operator==(const row&, const row&) = default;
  };
  struct ledger {
    std::vector<row> rows;
    std::vector<row> folded;
    std::uint64_t open = 0;  ///< bulk: the clock whose pushes are being summed
    friend bool operator==(const ledger&, const ledger&) = default;
  };

  ledgers(std::size_t ranges, bool bulk, bool leases)
      : all_(ranges), bulk_(bulk), order_(bulk), order_at_(static_cast<ps::range_id>(leases ? ranges - 1 : ranges)) {}

  std::string problem_with(ps::range_id range, const ps::message& request) const override {
    if (range == order_at_) return ps::epoch_order::problem_with(request);
    const bool fits = request.kind != ps::message_kind::push || request.payload.size() == sizeof(std::uint64_t);
    return fits ? "" : "a push is one number";
  }
  void apply(ps::range_id range, const ps::log_entry& entry) override {
    if (range == order_at_) return order_.apply(entry);
    ledger& target = all_[range];
    if (entry.type == ps::log_entry::kind::fold) {
      for (const auto& applied : target.rows) {
        if (applied.clock == entry.push.clock) target.folded.push_back(applied);
      }
      target.open = entry.push.clock + 1;
      return;
    }
    std::uint64_t sequence = 0;
    std::memcpy(&sequence, entry.push.payload.data(), sizeof sequence);
    if (sequence != entry.push.number) throw violation("a push has the values of another");
    if (bulk_ && entry.type == ps::log_entry::kind::push && entry.push.clock != target.open)
      throw violation("the pushes of a second clock are kept");
    std::uint64_t before = 0;
    for (const auto& applied : target.rows) {
      if (applied.worker == entry.sender) before = applied.sequence;
    }
    if (sequence <= before) throw violation("a push is applied twice");
    if (sequence != before + 1 && entry.push.place == 0) throw violation("a push is applied before an earlier one");
    if (has_place(range, entry.push.place)) throw violation("a part of a batch is applied twice");
    target.rows.push_back({entry.sender, sequence, entry.push.clock, entry.push.place});
    if (entry.type == ps::log_entry::kind::late) target.folded.push_back(target.rows.back());
  }
  std::vector<ps::member> workers_with_parts(ps::range_id range) const override {
    return range == order_at_ ? order_.workers_with_parts() : std::vector<ps::member>();
  }
  std::span<const std::byte> read(ps::range_id range, const ps::message& pull) override {
    if (range == order_at_) {
      reply_ = order_.answer({pull.offset, pull.count}, pull.place);
      return std::as_bytes(std::span(&reply_, 1));
    }
    return std::as_bytes(std::span(visible(range)));
  }
  void save(ps::range_id range, muster::detail::wire_writer& out) const override {
    if (range == order_at_) return order_.save(out);
    out.add(all_[range].open);
    for (const auto* rows : {&all_[range].rows, &all_[range].folded}) {
      out.add(std::uint64_t{rows->size()});
      for (const auto& applied : *rows) out.add(applied);
    }
  }
  bool load(ps::range_id range, std::span<const std::byte> saved) override {
    muster::detail::wire_reader in(saved);
    if (range == order_at_) return order_.load(in);
    ledger read;
    read.open = in.number();
    for (auto* rows : {&read.rows, &read.folded}) {
      rows->resize(in.count(sizeof(row)));
      for (auto& restored : *rows) restored = in.number<row>();
    }
    all_[range] = std::move(read);
    return in.is_complete();
  }
  void reset(ps::range_id range) override {
    all_[range] = {};
    if (range == order_at_) order_ = ps::epoch_order(bulk_);
  }

  [[nodiscard]] bool has_place(ps::range_id range, std::uint64_t place) const {
    return place != 0 && std::any_of(all_[range].rows.begin(), all_[range].rows.end(),
                                     [&](const row& applied) { return applied.place == place; });
  }
  [[nodiscard]] const ps::epoch_order& order() const { return order_; }

  [[nodiscard]] const std::vector<row>& visible(ps::range_id range) const {
    return bulk_ ? all_[range].folded : all_[range].rows;
  }
  [[nodiscard]] const ledger& ledger_of(ps::range_id range) const { return all_[range]; }
  [[nodiscard]] std::uint64_t last(ps::range_id range, const ps::member& worker) const {
    std::uint64_t last = 0;
    for (const auto& applied : all_[range].rows) {
      if (applied.worker == worker) last = applied.sequence;
    }
    return last;
  }

 private:
  std::vector<ledger> all_;
  bool bulk_;
  ps::epoch_order order_;
  ps::range_id order_at_;
  ps::lease reply_;
};

}  // namespace simulation
