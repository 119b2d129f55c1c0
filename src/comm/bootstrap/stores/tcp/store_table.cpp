#include "store_table.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>

#include <muster/core/atomic_file.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>

#include "../../../../core/checked_file.hpp"
#include "../../../../core/wire.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

constexpr std::string_view journal_magic = "muster-store 1\n";
constexpr std::string_view journal_name = "muster-store ";  // of every version
// Versions of one start of a server. The next start counts from the next multiple: whatever the end of the file has
// lost, no version is used twice.
constexpr std::uint64_t versions_of_a_start = std::uint64_t{1} << 32;

constexpr std::size_t head_bytes = 12;
// A record: its length, its checksum, and what it says.
std::string encode(std::string_view key, std::uint64_t version, std::optional<std::string_view> value) {
  wire_writer body;
  body.add(version, std::uint8_t{value.has_value()});
  body.add_text(key);
  body.add_text(value.value_or(""));
  const std::string text = body.take();
  wire_writer whole;
  whole.add(std::uint64_t{text.size()}, crc32c(std::as_bytes(std::span(text))));
  return whole.take() + text;
}

struct journal_record {
  std::size_t bytes = 0;
  std::uint64_t version = 0;
  std::string_view key;
  std::optional<std::string_view> value;
};

// The record at the beginning of the text; nothing where none is whole and right.
std::optional<journal_record> first_record(std::string_view text) {
  wire_reader in(text);
  const auto length = in.number();
  const auto checksum = in.number<std::uint32_t>();
  if (!in.good() || length > store_frame_limit) return std::nullopt;
  const auto body = in.bytes(length);
  if (!in.good() || crc32c(body) != checksum) return std::nullopt;
  wire_reader record(body);
  journal_record found{.bytes = head_bytes + body.size(), .version = record.number(), .key = {}, .value = {}};
  const bool there = record.number<std::uint8_t>() != 0;
  found.key = record.text();
  const auto value = record.text();
  if (there) found.value = value;
  return record.whole() ? std::optional(found) : std::nullopt;
}

// Whether the text, which begins with no record that is right, is the beginning of one that was not written to its end.
// No client was told of that one. Where it is damaged instead its whole length is there, or records are behind it.
bool is_cut_off(std::string_view text) {
  if (text.size() < head_bytes || text.find_first_not_of('\0') == std::string_view::npos) return true;
  wire_reader head(text);
  const auto length = head.number();
  if (length <= text.size() - head_bytes || head.number<std::uint32_t>() == crc32c(head.rest())) return false;
  for (std::size_t at = 1; at + head_bytes <= text.size(); ++at) {
    if (first_record(text.substr(at))) return false;
  }
  return true;
}

}  // namespace

// ---- on disk ----

store_table::store_table(answer tell, const std::string& folder, alone is_alone, identity draw)
    : tell_(std::move(tell)), is_alone_(std::move(is_alone)), draw_(std::move(draw)) {
  if (!folder.empty()) open_journal(folder);
}

void store_table::open_journal(const std::string& folder) {
  const auto refuse = [&](const std::string& why) {
    throw configuration_error("the store cannot be kept in '" + folder + "' (" + why + "); choose another folder");
  };
  path_ = folder + "/store";
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) refuse(std::strerror(errno));
  // The folder is locked, not the file, which is replaced below.
  lock_ = descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock_) refuse(std::strerror(errno));
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) refuse("another process has it open");
  if (std::error_code unseen; std::filesystem::exists(path_, unseen) || unseen) {
    const auto bytes = read_whole_file(path_, [] {});
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (!text.starts_with(journal_name)) refuse("its file 'store' is no journal of a store");
    if (!text.starts_with(journal_magic)) {
      refuse("its file 'store' is a journal '" +
             std::string(text.substr(0, std::min(text.find('\n'), journal_name.size() + 20))) +
             "', and this muster reads '" + std::string(journal_magic.substr(0, journal_magic.size() - 1)) + "'");
    }
    if (const auto damage = replay(text.substr(journal_magic.size()))) {
      throw data_error(
          {.file = path_, .offset = journal_magic.size() + *damage},
          "this journal of a store is damaged (the checksum of a record is wrong, and what was written "
          "after it would be lost); restore it from a copy, or start the store, and the job, on an empty folder");
    }
    if (version_ > 0) version_ = (version_ / versions_of_a_start + 1) * versions_of_a_start;
  }
  // Written anew, without what has been overwritten since and without a record that was cut off.
  atomic_file anew(path_);
  anew.write(journal_magic);
  anew.write(encode("", version_, std::nullopt));  // first: it has no key, and no version up to it is used again
  for (const auto& [key, its] : items_) anew.write(encode(key, its.version, its.value));
  anew.commit();
  file_ = descriptor(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!file_) refuse(std::strerror(errno));
}

// Returns where the journal is damaged; its last record may have been cut off.
std::optional<std::size_t> store_table::replay(std::string_view text) {
  const std::size_t whole = text.size();
  while (const auto next = first_record(text)) {
    put(next->key, next->version, next->value);
    text.remove_prefix(next->bytes);
  }
  return is_cut_off(text) ? std::nullopt : std::optional(whole - text.size());
}

void store_table::record(std::string_view key, std::optional<std::string_view> value) {
  if (!file_) return;
  const auto fail = [&] {
    throw error(error_kind::other, "the store cannot be kept in '" + path_ + "' (" + std::strerror(errno) +
                                       "); free disk space and restart the store");
  };
  const auto text = encode(key, version_, value);
  for (std::string_view left = text; !left.empty();) {
    const auto written = ::write(file_.get(), left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail();
    left.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::fdatasync(file_.get()) != 0) fail();
}

void store_table::put(std::string_view key, std::uint64_t version, std::optional<std::string_view> value) {
  if (const auto found = items_.find(key); found != items_.end()) remove(found);
  if (value) {
    bytes_ += key.size() + value->size();
    items_.emplace(key, item{std::string(*value), version, 0});
  }
  version_ = std::max(version_, version);
}

// ---- requests ----

bool store_table::handle(client from, const store_request& asked) {
  switch (asked.what) {
    case store_call::get:
      tell_entry(from, asked.id, asked.key);
      return true;
    case store_call::open:
      open(from, asked.id);
      return true;
    case store_call::swap:
      swap(from, asked);
      return true;
    case store_call::watch:
      return watch(from, asked);
    case store_call::leave:
      return true;
    case store_call::cancel:
      std::erase_if(watches_, [&](const waiting& one) { return one.watcher == from && one.id == asked.id; });
      return true;
  }
  return false;
}

void store_table::tell_entry(client to, std::uint64_t id, std::string_view key, store_status status) {
  const auto found = items_.find(key);
  if (found == items_.end()) return tell_(to, {.id = id, .status = status});
  tell_(to, {.id = id, .status = status, .number = found->second.version, .value = found->second.value});
}

void store_table::open(client from, std::uint64_t id) {
  if (is_alone_(from)) {
    for (auto at = items_.begin(); at != items_.end();) {
      record(at->first, std::nullopt);
      remove(at++);
    }
  }
  if (!items_.contains(store_identity_key)) {
    put(store_identity_key, version_ + 1, draw_());
    record(store_identity_key, items_.find(store_identity_key)->second.value);
    wake(store_identity_key);
  }
  tell_entry(from, id, store_identity_key);
}

void store_table::swap(client from, const store_request& asked) {
  const auto found = items_.find(asked.key);
  const bool there = found != items_.end();
  if (asked.number != (there ? found->second.version : 0))
    return tell_entry(from, asked.id, asked.key, store_status::refused);
  if (!asked.value) {
    if (there) {
      record(asked.key, std::nullopt);
      remove(found);
    }
    return tell_(from, {.id = asked.id});
  }
  const std::size_t before = there ? found->first.size() + found->second.value.size() : 0;
  const std::size_t after = bytes_ - before + asked.key.size() + asked.value->size();
  if (after > most_bytes && after > bytes_) return tell_(from, {.id = asked.id, .status = store_status::full});
  bytes_ = after;
  const bool goes = asked.life == store_life::of_client;
  items_[std::string(asked.key)] = {std::string(*asked.value), ++version_, goes ? from : 0};
  record(asked.key, goes ? std::nullopt : asked.value);
  tell_(from, {.id = asked.id, .number = version_});
  wake(asked.key);
}

bool store_table::watch(client from, const store_request& asked) {
  const auto of_client = [&](const waiting& one) { return one.watcher == from; };
  const auto same = [&](const waiting& one) { return one.watcher == from && one.id == asked.id; };
  if (std::ranges::any_of(watches_, same)) return false;
  const auto found = items_.find(asked.key);
  if (asked.number != (found != items_.end() ? found->second.version : 0)) {
    tell_entry(from, asked.id, asked.key);
  } else if (std::ranges::count_if(watches_, of_client) >= most_of_a_client) {
    tell_(from, {.id = asked.id, .status = store_status::full});
  } else {
    watches_.push_back({from, asked.id, std::string(asked.key)});
  }
  return true;
}

void store_table::remove(std::map<std::string, item, std::less<>>::iterator where) {
  bytes_ -= where->first.size() + where->second.value.size();
  const auto gone = items_.extract(where);
  wake(gone.key());
}

void store_table::wake(std::string_view key) {
  for (const auto& one : watches_) {
    if (one.key == key) tell_entry(one.watcher, one.id, key);
  }
  std::erase_if(watches_, [&](const waiting& one) { return one.key == key; });
}

void store_table::leave(client gone) {
  std::erase_if(watches_, [&](const waiting& one) { return one.watcher == gone; });
  for (auto at = items_.begin(); at != items_.end();) {
    const auto one = at++;
    if (one->second.owner == gone) remove(one);
  }
}

}}}  // namespace muster::v0::detail
