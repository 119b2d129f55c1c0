#pragma once

#include <muster/data/records/manifest.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <locale>
#include <optional>
#include <sstream>
#include <utility>

#include <muster/core/atomic_file.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/text.hpp>
#include <muster/data/cache/locked_file.hpp>
#include <muster/data/records/manifest_file.hpp>

// A line is "CRC FILE RECORDS BYTES DIGEST MORE", and the first line is "CRC muster-records VERSION": words separated
// by single blanks. CRC is the CRC32C of the text after the blank that follows CRC. CRC and DIGEST are hexadecimal.
// MORE is the number of lines that follow in the same group.

namespace muster { inline namespace v0 { namespace data {
namespace detail {

inline constexpr std::string_view heading = "muster-records 1";

inline std::string with_crc(const std::string& line) {
  return muster::detail::hex(crc32c(std::as_bytes(std::span(line))), 8) + ' ' + line + '\n';
}

inline bool is_valid_file_name(std::string_view name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string_view::npos;
}

// Returns the contents of a file, or nothing if the file cannot be read. The file is not mapped, because a writer may
// truncate incomplete lines of a killed writer.
inline std::optional<std::string> text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  return file ? std::optional(std::move(text)) : std::nullopt;
}

}  // namespace detail

MUSTER_INLINE std::string detail::path_of_manifest(const std::string& folder) {
  return (std::filesystem::path(folder) / std::string(manifest_name)).string();
}

MUSTER_INLINE detail::manifest_content detail::read_contents(const std::string& folder, bool required) {
  const std::string path = path_of_manifest(folder);
  const auto text = detail::text_of(path);
  if (!text && required) throw data_error({path}, "cannot be read (is this a folder of records?); check the path");
  return contents_of(text.value_or(""), path);
}

MUSTER_INLINE detail::manifest_content detail::contents_of(std::string_view text, const std::string& path) {
  manifest_content content;
  std::size_t complete_entries = 0;
  std::uint64_t line_number = 0;
  std::size_t position = 0;
  const auto fail = [&](const std::string& problem) {
    throw data_error({path, line_number, 1}, problem + "; restore the manifest from a copy");
  };
  for (std::uint64_t more = 0;;) {
    const auto newline = text.find('\n', position);
    if (newline == std::string_view::npos) break;
    const std::string written(text.substr(position, newline - position));
    position = newline + 1;
    ++line_number;
    constexpr std::size_t crc_and_blank = 9;
    const std::string line = written.substr(std::min(crc_and_blank, written.size()));
    if (detail::with_crc(line) != written + '\n')
      fail("the line does not match its checksum (the manifest was damaged)");
    if (line_number == 1) {
      if (line != detail::heading) {
        throw data_error({path, 1, 1}, "has the heading '" + line + "' (this program supports '" +
                                           std::string(detail::heading) +
                                           "'); use the version of muster that wrote it");
      }
      content.bytes = position;
      continue;
    }
    if (line.starts_with('.') && content.entries.size() == complete_entries) {
      for (const auto& [prefix, value] : {std::pair(std::string_view(statistics_note), &content.statistics),
                                          std::pair(std::string_view(schema_note), &content.schema),
                                          std::pair(std::string_view(division_note), &content.division)}) {
        if (line.starts_with(prefix)) *value = line.substr(prefix.size());
      }
      content.bytes = position;
      continue;
    }
    manifest_entry entry;
    const std::uint64_t expected = more != 0 ? more - 1 : 0;
    std::istringstream words(line);
    words.imbue(std::locale::classic());
    words >> entry.file >> entry.records >> entry.bytes >> std::hex >> entry.digest >> std::dec >> more;
    const bool read = words && words.eof();
    if (!read || !detail::is_valid_file_name(entry.file)) fail("the line is not a manifest entry");
    if (content.entries.size() != complete_entries && more != expected)
      fail("the line does not follow the previous line");
    content.entries.push_back(std::move(entry));
    if (more != 0) continue;
    complete_entries = content.entries.size();
    content.bytes = position;
  }
  content.entries.resize(complete_entries);
  return content;
}

MUSTER_INLINE detail::manifest_file::manifest_file(std::string path, bool wait) : path_(std::move(path)) {
  file_ = muster::detail::descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (file_ && !wait && ::flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw configuration_error("another process does the same work ('" + path_ + "' is locked); wait for it");
  }
  require(file_ && (!wait || lock_file(file_.get())));
  const auto text = detail::text_of(path_);
  require(text.has_value());
  manifest_content content = contents_of(*text, path_);
  entries_ = std::move(content.entries);
  complete_bytes_ = content.bytes;
}

MUSTER_INLINE void detail::manifest_file::require(bool done) const {
  if (done) return;
  throw configuration_error("cannot write '" + path_ + "' (" + std::strerror(errno) +
                            "); choose a folder that may be written");
}

MUSTER_INLINE void detail::manifest_file::append(std::span<const manifest_entry> entries) {
  std::string added;
  for (std::size_t k = 0; k < entries.size(); ++k) {
    const manifest_entry& entry = entries[k];
    if (!detail::is_valid_file_name(entry.file) || entry.file.find_first_of(" \n") != std::string::npos) {
      throw configuration_error("'" + entry.file +
                                "' cannot be a file of a manifest (its name begins with a dot, or has a blank or a "
                                "slash); choose another name");
    }
    added += detail::with_crc(entry.file + ' ' + std::to_string(entry.records) + ' ' + std::to_string(entry.bytes) +
                              ' ' + muster::detail::hex(entry.digest) + ' ' + std::to_string(entries.size() - k - 1));
  }
  write(added);
  entries_.insert(entries_.end(), entries.begin(), entries.end());
}

MUSTER_INLINE void detail::manifest_file::note(const std::string& text) { write(detail::with_crc(text)); }

MUSTER_INLINE void detail::manifest_file::write(const std::string& lines) {
  const std::string added = (complete_bytes_ == 0 ? detail::with_crc(std::string(detail::heading)) : "") + lines;
  require(::ftruncate(file_.get(), static_cast<off_t>(complete_bytes_)) == 0 &&
          write_at(file_.get(), std::as_bytes(std::span(added)), complete_bytes_) && ::fsync(file_.get()) == 0);
  if (complete_bytes_ == 0) muster::detail::flush_folder(path_);
  complete_bytes_ += added.size();
}

}}}  // namespace muster::v0::data
