#pragma once

#include <muster/data/bad_records.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include <muster/core/descriptor.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

inline std::string json_line(std::string_view source_name, const bad_record& bad) {
  nlohmann::ordered_json line = {{"source", source_name}, {"id", bad.id}, {"file", bad.location.file}};
  if (bad.location.line != 0) line["line"] = bad.location.line;
  if (bad.location.column != 0) line["column"] = bad.location.column;
  if (bad.location.offset) line["offset"] = *bad.location.offset;
  line["problem"] = bad.problem;
  return line.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

}  // namespace detail

struct bad_record_log::state {
  explicit state(bad_record_options chosen) : options(std::move(chosen)) {
    if (options.policy != bad_record_policy::quarantine) return;
    file = muster::detail::descriptor(::open(options.file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (!file) refuse();
  }

  [[noreturn]] void refuse() const {
    throw configuration_error("cannot write bad records to '" + options.file + "' (" + std::strerror(errno) +
                              "); choose a file in a folder that may be written");
  }

  // One write call for each line, so that lines of several processes that append to the same file do not mix.
  void write(const std::string& line) const {
    ssize_t written;
    do written = ::write(file.get(), line.data(), line.size());
    while (written < 0 && errno == EINTR);
    if (written != static_cast<ssize_t>(line.size())) {
      if (written >= 0) errno = ENOSPC;
      refuse();
    }
  }

  const bad_record_options options;
  muster::detail::descriptor file;
  std::mutex mutex;
  std::set<std::pair<std::string, sample_id>, std::less<>> noted;  // source and id; guarded by mutex
  std::map<std::string, std::uint64_t> by_file;                    // guarded by mutex
};

MUSTER_INLINE bad_record_log::bad_record_log(bad_record_options options)
    : state_(std::make_shared<state>(std::move(options))) {}

MUSTER_INLINE void bad_record_log::note(std::string_view source_name, std::span<const bad_record> found) {
  const std::lock_guard lock(state_->mutex);
  for (const bad_record& bad : found) {
    const bad_record_options& options = state_->options;
    if (options.policy == bad_record_policy::fail) throw data_error(bad.location, bad.problem);
    if (!state_->noted.emplace(source_name, bad.id).second) continue;
    ++state_->by_file[bad.location.file];
    if (options.policy == bad_record_policy::quarantine) state_->write(detail::json_line(source_name, bad));
    if (state_->noted.size() > options.limit) {
      throw data_error(bad.location, bad.problem + " (the run exceeds its limit of " + std::to_string(options.limit) +
                                         " bad records); repair the data or raise the limit");
    }
  }
}

MUSTER_INLINE std::uint64_t bad_record_log::count() const {
  const std::lock_guard lock(state_->mutex);
  return state_->noted.size();
}

MUSTER_INLINE std::map<std::string, std::uint64_t> bad_record_log::count_by_file() const {
  const std::lock_guard lock(state_->mutex);
  return state_->by_file;
}

}}}  // namespace muster::v0::data
