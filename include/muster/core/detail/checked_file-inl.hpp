#pragma once

#include <muster/core/checked_file.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/wire.hpp>

namespace muster { inline namespace v0 { namespace detail {

MUSTER_INLINE void checked_file::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto next = bytes.first(std::min(bytes.size(), file_piece - unflushed_));
    file_.write(next);
    crc_ = crc32c(next, crc_);
    bytes = bytes.subspan(next.size());
    unflushed_ += next.size();
    if (unflushed_ < file_piece) continue;
    file_.flush_to_disk();
    on_piece_();
    unflushed_ = 0;
  }
}

MUSTER_INLINE void checked_file::commit() {
  wire_writer end;
  end.add(crc_);
  file_.write(end.take());
  file_.commit();
}

MUSTER_INLINE void require_readable(bool is_readable, const std::string& path) {
  if (is_readable) return;
  throw data_error({.file = path},
                   std::string("cannot be read (") + std::strerror(errno) + "); check the file and its folder");
}

MUSTER_INLINE std::vector<std::byte> read_whole_file(const std::string& path, const std::function<void()>& on_piece) {
  std::ifstream file(path, std::ios::binary);
  std::error_code size_error;
  const auto size = std::filesystem::file_size(path, size_error);
  require_readable(file && !size_error, path);
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  for (std::size_t at = 0; at < bytes.size(); at += file_piece) {
    file.read(reinterpret_cast<char*>(bytes.data() + at),
              static_cast<std::streamsize>(std::min(file_piece, bytes.size() - at)));
    require_readable(file.good(), path);
    on_piece();
  }
  return bytes;
}

}}}  // namespace muster::v0::detail
