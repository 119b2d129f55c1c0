#pragma once

#include <muster/data/remote_files.hpp>

#include <algorithm>
#include <fstream>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/data/records/remote_folder.hpp>

namespace muster { inline namespace v0 { namespace data {

MUSTER_INLINE remote_files::remote_files(const std::string& address, const http_options& options)
    : folder_(detail::open_remote_folder(address, options)) {
  if (!folder_)
    throw configuration_error("'" + address + "' is no address of a server; write such as https://server/folder");
}

MUSTER_INLINE std::vector<std::string> remote_files::list(const std::string& folder) const {
  return folder_->list(folder);
}

MUSTER_INLINE std::string remote_files::version(const std::string& name) const { return folder_->version(name); }

MUSTER_INLINE void remote_files::copy(const std::string& name, const std::string& path) const {
  constexpr std::uint64_t piece = std::uint64_t{1} << 20;
  const auto found = folder_->find(name);
  std::ofstream copied(path, std::ios::binary);
  for (std::uint64_t at = 0; at < found.size && copied; at += piece) {
    const std::uint64_t size = std::min(piece, found.size - at);
    detail::remote_folder::bytes owner;
    const std::byte* const bytes = folder_->view({found.number, at, size}, owner);
    copied.write(reinterpret_cast<const char*>(bytes), static_cast<std::streamsize>(size));
  }
  copied.close();
  if (!copied) throw configuration_error("cannot write '" + path + "' (no space, or no right); make room");
}

}}}  // namespace muster::v0::data
