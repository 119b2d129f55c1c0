#include <muster/elastic/record.hpp>

#include <algorithm>
#include <cstring>

#include <muster/core/error.hpp>

namespace muster::inline v0::elastic {
namespace {

constexpr std::uint64_t record_magic = 0x6d7573746572'0102;
constexpr std::uint64_t word_magic = 0x6d7573746572'0205;

class writer {
 public:
  void add(std::uint64_t number) { text_.append(reinterpret_cast<const char*>(&number), sizeof number); }
  void add(std::string_view text) {
    add(std::uint64_t{text.size()});
    text_.append(text);
  }
  void add(const std::vector<member_id>& ids) {
    add(std::uint64_t{ids.size()});
    for (const auto id : ids) add(id);
  }
  void add(const std::vector<member>& members) {
    add(std::uint64_t{members.size()});
    for (const auto& one : members) {
      for (const auto number : {one.id, one.host, one.order, one.step}) add(number);
      add(std::string_view(one.card));
      add(std::string_view(one.door));
    }
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

// Reads until something is missing, and then nothing but zeros.
class reader {
 public:
  explicit reader(std::string_view text) : rest_(text) {}

  std::uint64_t number() {
    std::uint64_t value = 0;
    if (rest_.size() < sizeof value) {
      good_ = false;
      rest_ = {};
      return 0;
    }
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value;
  }
  std::string text() {
    const auto length = number();
    if (length > rest_.size()) {
      good_ = false;
      return {};
    }
    std::string read(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return read;
  }
  std::vector<member_id> ids() {
    std::vector<member_id> read(count(sizeof(member_id)));
    for (auto& id : read) id = number();
    return read;
  }
  std::vector<member> members() {
    std::vector<member> read(count(6 * sizeof(std::uint64_t)));
    for (auto& one : read) {
      for (auto* field : {&one.id, &one.host, &one.order, &one.step}) *field = number();
      one.card = text();
      one.door = text();
    }
    return read;
  }
  [[nodiscard]] bool whole() const noexcept { return good_ && rest_.empty(); }

 private:
  std::size_t count(std::size_t least_bytes) {
    const auto n = number();
    if (n <= rest_.size() / least_bytes) return n;
    good_ = false;
    return 0;
  }

  std::string_view rest_;
  bool good_ = true;
};

}  // namespace

std::optional<int> generation_record::rank_of(member_id id) const noexcept {
  const auto at = std::find_if(members.begin(), members.end(), [&](const member& one) { return one.id == id; });
  if (at == members.end()) return std::nullopt;
  return static_cast<int>(at - members.begin());
}

bool generation_record::is_waiting(member_id id) const noexcept {
  return std::any_of(waiting.begin(), waiting.end(), [&](const member& one) { return one.id == id; });
}

std::string generation_record::encode() const {
  writer out;
  for (const auto number : {record_magic, generation, step, cursor}) out.add(number);
  out.add(members);
  out.add(holders);
  out.add(waiting);
  out.add(std::string_view(why));
  return out.take();
}

generation_record generation_record::decode(std::string_view text) {
  reader in(text);
  generation_record read;
  const bool known = in.number() == record_magic;
  read.generation = in.number();
  read.step = in.number();
  read.cursor = in.number();
  read.members = in.members();
  read.holders = in.ids();
  read.waiting = in.members();
  read.why = in.text();
  if (known && in.whole()) return read;
  throw error(error_kind::other,
              "the membership in the store cannot be read (it is of another version of muster, or of another program); "
              "give each job a store of its own");
}

std::string word::encode() const {
  writer out;
  for (const auto field : {word_magic, from, number, generation}) out.add(field);
  for (const bool flag : {stopped, leaving, blank}) out.add(std::uint64_t{flag});
  for (const auto field : {step, cursor, halt, usual_work, least_work}) out.add(field);
  out.add(dead);
  out.add(suspects);
  out.add(std::string_view(door));
  return out.take();
}

std::optional<word> word::decode(std::string_view text) {
  reader in(text);
  word read;
  const bool known = in.number() == word_magic;
  for (auto* field : {&read.from, &read.number, &read.generation}) *field = in.number();
  read.stopped = in.number() != 0;
  read.leaving = in.number() != 0;
  read.blank = in.number() != 0;
  for (auto* field : {&read.step, &read.cursor, &read.halt, &read.usual_work, &read.least_work}) *field = in.number();
  read.dead = in.ids();
  read.suspects = in.ids();
  read.door = in.text();
  if (!known || !in.whole()) return std::nullopt;
  return read;
}

}  // namespace muster::inline v0::elastic
