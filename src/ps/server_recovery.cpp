// Ranges that are saved, so that another server can take them over when all that held them are gone: it begins with
// what was saved last, and workers say again what they hold since.
#include <muster/ps/server.hpp>

#include <algorithm>

#include "bytes.hpp"

namespace muster::inline v0::ps {
namespace {

// Each is a copy of a range until it is saved.
constexpr int saves_at_once = 8;

}  // namespace

server::seen server::seen_by(const held_range& range, const member& who) {
  if (who.at >= range.workers.size() || range.workers[who.at].incarnation != who.incarnation) return {};
  return range.workers[who.at];
}

// A worker tells what it was told to count, and what it knows to be saved: it gets to know where it is wrong.
void server::hear_holds(const member& from, const message& said, held_range& range) {
  const auto its = seen_by(range, from);
  if (range.recovers && said.epoch() >= range.born) {  // by an older map it may have been told more since
    auto& claim = range.claims[from];
    claim = std::max(claim, said.number);
    look_whether_recovered(said.range, range);
  }
  if (its.applied < said.number) {
    out_.send(from,
              {.what = message_kind::resend, .range = said.range, .number = its.applied + 1, .clock = range.epoch});
    return;
  }
  out_.send(from, {.what = message_kind::ack,
                   .flags = answers_holds,
                   .range = said.range,
                   .number = its.committed,
                   .version = range.applied,
                   .clock = range.epoch});
  if (its.safe() > said.version) {
    out_.send(from, {.what = message_kind::saved, .range = said.range, .number = its.safe(), .clock = range.epoch});
  }
  if ((said.flags & wants_saved) != 0 && range.applied > range.saved) range.wanted = true;
}

void server::save_due(clock::time_point now) {
  int under_way =
      static_cast<int>(std::count_if(ranges_.begin(), ranges_.end(), [](const auto& one) { return one.saving; }));
  for (range_id id = 0; id < ranges_.size() && under_way < saves_at_once; ++id) {
    auto& range = ranges_[id];
    if (!range.serves() || range.saving || range.applied == range.saved) continue;
    if (!range.wanted && now - range.saved_at < settings_.save_every) continue;
    range.saving = true;
    range.saving_epoch = range.epoch;
    range.saving_index = range.applied;
    range.wanted = false;
    range.saved_at = now;
    ++under_way;
    for (auto& its : range.workers) its.marked = its.applied;
    detail::byte_writer index;  // an epoch's log goes on from there
    index.add(range.applied);
    out_.save(id, range.epoch, range.applied, index.take() + state_of(id, range));
  }
}

void server::saved(range_id id, std::uint64_t epoch, std::uint64_t index, bool done) {
  auto& range = ranges_[id];
  if (!range.saving || range.saving_epoch != epoch || range.saving_index != index) return;  // of an earlier life
  range.saving = false;
  if (!done) {
    range.wanted = true;
    return;
  }
  range.saved = index;
  for (place at = 0; at < range.workers.size(); ++at) {
    auto& its = range.workers[at];
    if (its.marked <= its.covered) continue;
    its.covered = its.marked;
    if (!clocks_.has({at, its.incarnation})) continue;
    out_.send({at, its.incarnation},
              {.what = message_kind::saved, .range = id, .number = its.safe(), .clock = range.epoch});
  }
}

bool server::loaded(range_id id, std::span<const std::byte> state, clock::time_point now) {
  auto& range = ranges_[id];
  if (fenced_ || !range.is_head() || range.has_state) return true;
  if (state.empty()) {
    values_.reset(id);
    range.has_state = true;  // as it was in the beginning
  } else {
    detail::byte_reader in(state);
    const auto index = in.number<std::uint64_t>();
    if (!in.good() || !take_state(id, range, in.rest(), index)) return false;
  }
  range.saved = range.applied;
  range.saved_at = now;
  for (auto& its : range.workers) its.committed = its.covered = its.applied;
  // Where nobody waits for anybody nobody waits for this either.
  range.recovers = settings_.how.what != consistency::kind::asynchronous;
  look_whether_recovered(id, range);
  settle(id, range);
  if (range.behind != nobody) offer(id, range, now);
  return true;
}

// While it recovers: it has what every live worker pushed in the clock that is open.
bool server::has_open_clock(const held_range& range) const {
  return std::all_of(map_.workers.begin(), map_.workers.end(), [&](const member& who) {
    const auto claim = range.claims.find(who);
    if (farewells_.contains(who)) return true;
    const auto its = seen_by(range, who);
    return claim != range.claims.end() && (its.committed >= claim->second || its.early > range.folded);
  });
}

// All of its chain has what every live worker knows to count.
void server::look_whether_recovered(range_id, held_range& range) {
  if (!range.recovers) return;
  const bool whole = std::all_of(map_.workers.begin(), map_.workers.end(), [&](const member& who) {
    const auto claim = range.claims.find(who);
    return farewells_.contains(who) || (claim != range.claims.end() && seen_by(range, who).committed >= claim->second);
  });
  if (!whole) return;
  range.recovers = false;
  range.claims.clear();
}

}  // namespace muster::inline v0::ps
