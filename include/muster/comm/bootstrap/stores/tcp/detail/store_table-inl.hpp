#pragma once

#include <muster/comm/bootstrap/stores/tcp/store_table.hpp>

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
#include <muster/core/checked_file.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/wire.hpp>

namespace muster { inline namespace v0 { namespace detail {
inline constexpr std::string_view journal_magic = "muster-store 1\n";
inline constexpr std::string_view journal_name = "muster-store ";  // of every version of the format
// The number of versions that one start of a server may use. The next start continues at the next multiple. No version
// is therefore used twice, whatever the end of the file has lost.
inline constexpr std::uint64_t versions_of_a_start = std::uint64_t{1} << 32;

inline constexpr std::size_t record_head_bytes = 12;
// Encodes a record: its length, its checksum, and its body.
inline std::string encode(std::string_view key, std::uint64_t version, std::optional<std::string_view> value) {
  wire_writer body;
  body.add(version, std::uint8_t{value.has_value()});
  body.add_text(key);
  body.add_text(value.value_or(""));
  const std::string text = body.take();
  wire_writer frame;
  frame.add(std::uint64_t{text.size()}, crc32c(std::as_bytes(std::span(text))));
  return frame.take() + text;
}

struct journal_record {
  std::size_t bytes = 0;
  std::uint64_t version = 0;
  std::string_view key;
  std::optional<std::string_view> value;
};

// Returns the record at the beginning of the text; nothing if it is incomplete or damaged.
inline std::optional<journal_record> first_record(std::string_view text) {
  wire_reader reader(text);
  const auto length = reader.number();
  const auto checksum = reader.number<std::uint32_t>();
  if (!reader.good() || length > store_frame_limit) return std::nullopt;
  const auto body = reader.bytes(length);
  if (!reader.good() || crc32c(body) != checksum) return std::nullopt;
  wire_reader record(body);
  journal_record found{.bytes = record_head_bytes + body.size(), .version = record.number(), .key = {}, .value = {}};
  const bool has_value = record.number<std::uint8_t>() != 0;
  found.key = record.text();
  const auto value = record.text();
  if (has_value) found.value = value;
  return record.is_complete() ? std::optional(found) : std::nullopt;
}

// Returns true if the text, which does not begin with a valid record, is the beginning of a record that was not written
// completely. No client was notified of such a record. In a damaged file the record has its full length, or further
// records follow.
inline bool is_cut_off(std::string_view text) {
  if (text.size() < record_head_bytes || text.find_first_not_of('\0') == std::string_view::npos) return true;
  wire_reader head(text);
  const auto length = head.number();
  if (length <= text.size() - record_head_bytes || head.number<std::uint32_t>() == crc32c(head.rest())) return false;
  for (std::size_t at = 1; at + record_head_bytes <= text.size(); ++at) {
    if (first_record(text.substr(at))) return false;
  }
  return true;
}

// ---- the journal on disk ----

MUSTER_INLINE store_table::store_table(reply_handler reply, const std::string& journal_folder, is_only_client is_alone,
                                       identity draw)
    : reply_(std::move(reply)), is_only_client_(std::move(is_alone)), draw_(std::move(draw)) {
  if (!journal_folder.empty()) open_journal(journal_folder);
}

MUSTER_INLINE void store_table::open_journal(const std::string& folder) {
  const auto refuse = [&](const std::string& reason) {
    throw configuration_error("the store cannot be kept in '" + folder + "' (" + reason + "); choose another folder");
  };
  path_ = folder + "/store";
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) refuse(std::strerror(errno));
  // Locks the folder, not the file, which is replaced below.
  lock_ = descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock_) refuse(std::strerror(errno));
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) refuse("another process has it open");
  if (std::error_code unseen; std::filesystem::exists(path_, unseen) || unseen) {
    const auto bytes = read_whole_file(path_, [] {});
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (!text.starts_with(journal_name)) refuse("its file 'store' is not the journal of a store");
    if (!text.starts_with(journal_magic)) {
      refuse("its file 'store' is a journal '" +
             std::string(text.substr(0, std::min(text.find('\n'), journal_name.size() + 20))) +
             "', and this muster reads '" + std::string(journal_magic.substr(0, journal_magic.size() - 1)) + "'");
    }
    if (const auto damage = replay(text.substr(journal_magic.size()))) {
      throw data_error({.file = path_, .offset = journal_magic.size() + *damage},
                       "this journal of a store is damaged (the checksum of a record is wrong, and later records "
                       "would be lost); restore it from a copy, or start the store, and the job, on an empty folder");
    }
    if (version_ > 0) version_ = (version_ / versions_of_a_start + 1) * versions_of_a_start;
  }
  // Writes the file again, without overwritten values and without an incomplete last record.
  atomic_file anew(path_);
  anew.write(journal_magic);
  anew.write(encode("", version_, std::nullopt));  // first: it has no key, and reserves all versions up to this one
  for (const auto& [key, stored] : items_) anew.write(encode(key, stored.version, stored.value));
  anew.commit();
  file_ = descriptor(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!file_) refuse(std::strerror(errno));
}

// Replays the journal. Returns the offset of a damaged record; nothing if there is none, or only the last record is
// incomplete.
MUSTER_INLINE std::optional<std::size_t> store_table::replay(std::string_view text) {
  const std::size_t total = text.size();
  while (const auto next = first_record(text)) {
    put(next->key, next->version, next->value);
    text.remove_prefix(next->bytes);
  }
  return is_cut_off(text) ? std::nullopt : std::optional(total - text.size());
}

MUSTER_INLINE void store_table::record(std::string_view key, std::optional<std::string_view> value) {
  if (!file_) return;
  const auto fail = [&] {
    throw error(error_kind::other, "the store cannot be kept in '" + path_ + "' (" + std::strerror(errno) +
                                       "); free disk space and restart the store");
  };
  const auto text = encode(key, version_, value);
  for (std::string_view remaining = text; !remaining.empty();) {
    const auto written = ::write(file_.get(), remaining.data(), remaining.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail();
    remaining.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::fdatasync(file_.get()) != 0) fail();
}

MUSTER_INLINE void store_table::put(std::string_view key, std::uint64_t version,
                                    std::optional<std::string_view> value) {
  if (const auto found = items_.find(key); found != items_.end()) remove(found);
  if (value) {
    bytes_ += key.size() + value->size();
    items_.emplace(key, stored_value{std::string(*value), version, 0});
  }
  version_ = std::max(version_, version);
}

// ---- requests ----

MUSTER_INLINE bool store_table::handle(client sender, const store_request& request) {
  switch (request.call) {
    case store_call::get:
      reply_entry(sender, request.id, request.key);
      return true;
    case store_call::open:
      open(sender, request.id);
      return true;
    case store_call::swap:
      swap(sender, request);
      return true;
    case store_call::watch:
      return watch(sender, request);
    case store_call::leave:
      return true;
    case store_call::cancel:
      std::erase_if(watches_, [&](const waiting& entry) { return entry.watcher == sender && entry.id == request.id; });
      return true;
  }
  return false;
}

MUSTER_INLINE void store_table::reply_entry(client receiver, std::uint64_t request_id, std::string_view key,
                                            store_status status) {
  const auto found = items_.find(key);
  if (found == items_.end()) return reply_(receiver, {.id = request_id, .status = status});
  reply_(receiver,
         {.id = request_id, .status = status, .version = found->second.version, .value = found->second.value});
}

MUSTER_INLINE void store_table::open(client sender, std::uint64_t request_id) {
  if (is_only_client_(sender)) {
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
  reply_entry(sender, request_id, store_identity_key);
}

MUSTER_INLINE void store_table::swap(client sender, const store_request& request) {
  const auto found = items_.find(request.key);
  const bool exists = found != items_.end();
  if (request.version != (exists ? found->second.version : 0))
    return reply_entry(sender, request.id, request.key, store_status::refused);
  if (!request.value) {
    if (exists) {
      record(request.key, std::nullopt);
      remove(found);
    }
    return reply_(sender, {.id = request.id});
  }
  const std::size_t before = exists ? found->first.size() + found->second.value.size() : 0;
  const std::size_t after = bytes_ - before + request.key.size() + request.value->size();
  if (after > most_bytes && after > bytes_) return reply_(sender, {.id = request.id, .status = store_status::full});
  bytes_ = after;
  const bool ends_with_client = request.life == store_life::of_client;
  items_[std::string(request.key)] = {std::string(*request.value), ++version_, ends_with_client ? sender : 0};
  record(request.key, ends_with_client ? std::nullopt : request.value);
  reply_(sender, {.id = request.id, .version = version_});
  wake(request.key);
}

MUSTER_INLINE bool store_table::watch(client sender, const store_request& request) {
  const auto of_client = [&](const waiting& entry) { return entry.watcher == sender; };
  const auto is_same = [&](const waiting& entry) { return entry.watcher == sender && entry.id == request.id; };
  if (std::ranges::any_of(watches_, is_same)) return false;
  const auto found = items_.find(request.key);
  if (request.version != (found != items_.end() ? found->second.version : 0)) {
    reply_entry(sender, request.id, request.key);
  } else if (std::ranges::count_if(watches_, of_client) >= most_of_a_client) {
    reply_(sender, {.id = request.id, .status = store_status::full});
  } else {
    watches_.push_back({sender, request.id, std::string(request.key)});
  }
  return true;
}

MUSTER_INLINE void store_table::remove(std::map<std::string, stored_value, std::less<>>::iterator item) {
  bytes_ -= item->first.size() + item->second.value.size();
  const auto removed = items_.extract(item);
  wake(removed.key());
}

MUSTER_INLINE void store_table::wake(std::string_view key) {
  for (const auto& entry : watches_) {
    if (entry.key == key) reply_entry(entry.watcher, entry.id, key);
  }
  std::erase_if(watches_, [&](const waiting& entry) { return entry.key == key; });
}

MUSTER_INLINE void store_table::leave(client former) {
  std::erase_if(watches_, [&](const waiting& entry) { return entry.watcher == former; });
  for (auto at = items_.begin(); at != items_.end();) {
    const auto entry = at++;
    if (entry->second.owner == former) remove(entry);
  }
}

}}}  // namespace muster::v0::detail
