#include "replica_table.hpp"

#include <set>

namespace muster::inline v0::detail {

std::string replica_table::change::encode() const {
  std::string to;
  put(to, static_cast<std::uint8_t>(what));
  put(to, whose);
  put(to, done);
  put_text(to, request);
  return to;
}

std::optional<replica_table::change> replica_table::change::decode(std::string_view text) {
  wire_reader from(text);
  change read;
  const auto what = from.number<std::uint8_t>();
  if (what < static_cast<std::uint8_t>(kind::ask) || what > static_cast<std::uint8_t>(kind::leave)) return std::nullopt;
  read.what = static_cast<kind>(what);
  read.whose = from.number();
  read.done = from.number();
  read.request = from.text();
  if (!from.whole()) return std::nullopt;
  return read;
}

replica_table::replica_table(store_table::answer tell)
    : tell_(std::move(tell)), table_([this](client to, const store_reply& said) {
        if (asked_ != 0 && to == asking_ && said.id == asked_)
          told_[to][said.id] = {said.status, said.number, std::string(said.value)};
        tell_(to, said);
      }) {}

void replica_table::apply(const change& made, clock::time_point now) {
  if (made.what == change::kind::leave) {
    told_.erase(made.whose);
    return table_.leave(made.whose);
  }
  if (made.what == change::kind::forget) {
    told_.erase(made.whose);
    return table_.forget(made.whose);
  }
  const auto asked = parse_request(made.request);
  if (!asked) return;
  if (const auto its = told_.find(made.whose); its != told_.end()) {
    its->second.erase(its->second.begin(), its->second.lower_bound(made.done));
    const auto before = its->second.find(asked->id);
    if (before != its->second.end()) {
      const auto& same = before->second;
      return tell_(made.whose, {.id = asked->id, .status = same.status, .number = same.number, .value = same.value});
    }
  }
  // One that watches already watches anew: the answer may have got lost.
  if (asked->what == store_call::watch)
    (void)table_.handle(made.whose, {.what = store_call::cancel, .id = asked->id}, now);
  if (asked->what == store_call::swap || asked->what == store_call::lease) {
    asking_ = made.whose;
    asked_ = asked->id;
  }
  (void)table_.handle(made.whose, *asked, now);
  asked_ = 0;
}

std::vector<replica_table::client> replica_table::clients() const {
  const auto known = table_.clients();
  std::set<client> all(known.begin(), known.end());
  for (const auto& [who, its] : told_) all.insert(who);
  return {all.begin(), all.end()};
}

std::string replica_table::save() const {
  std::string to;
  table_.save(to);
  put(to, std::uint64_t{told_.size()});
  for (const auto& [who, its] : told_) {
    put(to, who);
    put(to, std::uint64_t{its.size()});
    for (const auto& [id, answer] : its) {
      put(to, id);
      put(to, static_cast<std::uint8_t>(answer.status));
      put(to, answer.number);
      put_text(to, answer.value);
    }
  }
  return to;
}

bool replica_table::load(std::string_view text, clock::time_point now) {
  wire_reader from(text);
  told_.clear();
  if (!table_.load(from, now)) return false;
  for (auto left = from.count(2 * sizeof(std::uint64_t)); left > 0; --left) {
    auto& its = told_[from.number()];
    for (auto answers = from.count(3 * sizeof(std::uint64_t)); answers > 0; --answers) {
      auto& one = its[from.number()];
      const auto status = from.number<std::uint8_t>();
      if (status > static_cast<std::uint8_t>(store_status::full)) return false;
      one.status = static_cast<store_status>(status);
      one.number = from.number();
      one.value = from.text();
    }
  }
  return from.whole();
}

}  // namespace muster::inline v0::detail
