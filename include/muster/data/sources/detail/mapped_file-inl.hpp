#pragma once

#include <muster/data/sources/mapped_file.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <system_error>

#include <muster/core/atomic_file.hpp>
#include <muster/core/descriptor.hpp>
#include <muster/core/error.hpp>
#include <muster/core/file_state.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/plugin.hpp>
#include <muster/core/spec.hpp>
#include <muster/data/cache/content_digest.hpp>
#include <muster/data/cache/locked_file.hpp>
#include <muster/data/records/remote_folder.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

inline constinit std::atomic<detail::text_decoder> gzip_decoder{nullptr};
inline constinit std::atomic<detail::text_decoder> zstd_decoder{nullptr};

[[noreturn]] inline void refuse(const std::string& path, const std::string& problem, int code,
                                const std::string& suggestion) {
  throw data_error({path}, problem + " (" + std::generic_category().message(code) + "); " + suggestion);
}

// The output of a decoder or a pipe. The bytes are in memory, or in a file without a name once they exceed the limit of
// memory.
class decoded_text {
 public:
  std::vector<char> memory;
  muster::detail::descriptor file;
  std::size_t size = 0;

  void add(std::span<const char> piece) {
    // Reserves all memory at once. Unused pages take no memory, and growth would leave freed blocks in the allocator.
    if (size == 0) memory.reserve(detail::most_text_in_memory);
    if (!file && size + piece.size() > detail::most_text_in_memory) {
      const std::string folder = temporary_folder();
      file = muster::detail::descriptor(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
      if (!file) {  // the file system does not support O_TMPFILE: creates a named file and removes the name
        std::string name = folder + "/muster-text-XXXXXX";
        file = muster::detail::descriptor(::mkostemp(name.data(), O_CLOEXEC));
        if (file) ::unlink(name.c_str());
      }
      write(memory, 0);
      memory = std::vector<char>();  // ={} would keep the capacity
    }
    file ? write(piece, size) : static_cast<void>(memory.insert(memory.end(), piece.begin(), piece.end()));
    size += piece.size();
  }

 private:
  void write(std::span<const char> piece, std::size_t at) const {
    if (file && detail::write_at(file.get(), std::as_bytes(piece), at)) return;
    throw configuration_error("cannot write text to '" + temporary_folder() + "' (" +
                              std::generic_category().message(errno) + "); set TMPDIR to a folder with more room");
  }
};

inline void read_to_end(int file, const std::string& path, decoded_text& output) {
  std::vector<char> piece(detail::decoded_piece_bytes);
  for (;;) {
    const ssize_t count = ::read(file, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse(path, "cannot be read", errno, "check the file and the disk");
    if (count == 0) return;
    output.add(std::span(piece).first(static_cast<std::size_t>(count)));
  }
}

inline constexpr std::string_view gzip_mark = "\x1f\x8b";

// Returns true if the text begins with a frame, or with a skippable frame as pzstd writes it.
inline bool is_zstd(std::string_view text) {
  return text.starts_with("\x28\xb5\x2f\xfd") ||
         (text.substr(0, 4).find("\x2a\x4d\x18") == 1 && (text.front() & 0xf0) == 0x50);
}

}  // namespace detail

MUSTER_INLINE detail::text_decoder detail::set_gzip_decoder(text_decoder decoder) noexcept {
  return gzip_decoder.exchange(decoder);
}

MUSTER_INLINE detail::text_decoder detail::set_zstd_decoder(text_decoder decoder) noexcept {
  return zstd_decoder.exchange(decoder);
}

MUSTER_INLINE void mapped_file::open(const std::string& path) {
  const muster::detail::descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) {
    detail::refuse(path, "cannot be opened", errno, "check the path and its permissions");
  }
  if (S_ISDIR(status.st_mode)) {
    throw data_error({path}, "is a directory (a file is required); name a file in it");
  }
  if (!S_ISREG(status.st_mode)) {
    detail::decoded_text piped;
    detail::read_to_end(file.get(), path, piped);
    if (piped.file) map(piped.file.get(), piped.size, path);
    read_ = std::move(piped.memory);
    state_ = detail::digest_block(bytes());
  } else if (status.st_size > 0) {
    may_change_ = true;
    state_ = muster::detail::state_of(status);
    muster::detail::wait_for_next_tick(status.st_ctim);
    map(file.get(), static_cast<std::size_t>(status.st_size), path);
  }
  if (text().empty()) throw data_error({path}, "is empty (it has no bytes); check how it was made");
}

MUSTER_INLINE void mapped_file::fetch(const std::string& path, const http_options& http) {
  constexpr std::uint64_t part_bytes = std::uint64_t{8} << 20;
  const auto query = std::min(path.find('?'), path.size());  // start of the query, which is sent with each request
  const std::string file_address = path.substr(0, query);
  const auto slash = file_address.rfind('/');
  if (slash < path.find("//") + 2 || slash + 1 == file_address.size())
    throw configuration_error(
        path + " cannot be read (it has no file name); write an address such as https://server/folder/table.csv");
  const auto folder = detail::open_remote_folder(path.substr(0, slash) + path.substr(query), http);
  const detail::remote_file file = folder->find(file_address.substr(slash + 1));
  state_ = file.version;
  const detail::remote_part whole_file{file.number, 0, file.size};
  folder->expect({&whole_file, 1});
  for (std::uint64_t at = 0; at < file.size; at += part_bytes) {
    detail::remote_folder::bytes buffer;  // stays empty, because the whole file is on the disk
    const std::byte* const mapping = folder->view({file.number, at, std::min(part_bytes, file.size - at)}, buffer);
    if (at == 0) mapped_ = {reinterpret_cast<const char*>(mapping), unmap{file.size, folder}};
    forget();
  }
}

MUSTER_INLINE mapped_file::mapped_file(const std::string& path, compressed_files compressed, const http_options& http)
    : path_(path) {
  muster::detail::is_remote(path) ? fetch(path, http) : open(path);
  if (compressed == compressed_files::decoded && (text().starts_with(detail::gzip_mark) || detail::is_zstd(text())))
    decode(text(), path, std::numeric_limits<std::uint64_t>::max());
}

MUSTER_INLINE mapped_file::mapped_file(const mapped_file& original, std::string_view part, const std::string& name,
                                       std::uint64_t size)
    : path_(original.path_), may_change_(original.may_change_), state_(original.state_) {
  decode(part, name, size);
  if (text().size() == size) return;
  throw data_error({name}, "has " + std::to_string(text().size()) + " bytes once decompressed (" +
                               std::to_string(size) + " are expected); copy or download it again");
}

MUSTER_INLINE void mapped_file::decode(std::string_view compressed, const std::string& path, std::uint64_t most) {
  const bool gzip = compressed.starts_with(detail::gzip_mark);
  const detail::text_decoder decoder = gzip ? detail::gzip_decoder : detail::zstd_decoder;
  if (decoder == nullptr) {
    const std::string part = gzip ? "zlib" : "zstd";
    throw data_error({path}, "is compressed with " + std::string(gzip ? "gzip" : "Zstandard") + " (" +
                                 muster::detail::linked_without(part) + "); link muster::" + part +
                                 " or decompress the file");
  }
  detail::decoded_text plain;
  constexpr std::size_t forget_interval = std::size_t{16} << 20;  // bytes between calls of forget(), for low cost
  std::size_t forgotten_size = 0;
  decoder(compressed, path, [&](std::span<const char> piece) {
    if (piece.size() > most - plain.size)
      throw data_error({path},
                       "has more than " + std::to_string(most) +
                           " bytes once decompressed (it was damaged, or made to fill the disk); copy or download "
                           "it again");
    plain.add(piece);
    if (plain.size - forgotten_size < forget_interval) return;
    forgotten_size = plain.size;
    forget();
  });
  if (plain.size == 0) throw data_error({path}, "is empty once decompressed (it has no bytes); check how it was made");
  mapped_.reset();
  read_ = std::move(plain.memory);
  if (plain.file) map(plain.file.get(), plain.size, path);
}

MUSTER_INLINE void mapped_file::map(int file, std::size_t size, const std::string& path) {
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  if (memory == MAP_FAILED)
    detail::refuse(path, "cannot be mapped into memory", errno, "check the file and free memory");
  mapped_ = {static_cast<const char*>(memory), unmap{size, nullptr}};
}

MUSTER_INLINE std::optional<std::uint64_t> mapped_file::host_state_now() const {
  return may_change_ ? muster::detail::state_of(path_) : state_;
}

MUSTER_INLINE void mapped_file::forget() const noexcept {
  if (!mapped_) return;
  // A text in a cache file does not begin at the beginning of a page.
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t before = reinterpret_cast<std::uintptr_t>(mapped_.get()) % page;
  (void)::madvise(const_cast<char*>(mapped_.get()) - before, before + text().size(),
                  MADV_DONTNEED);  // the bytes do not change
}

MUSTER_INLINE void mapped_file::unmap::operator()(const char* memory) const noexcept {
  if (!owner) ::munmap(const_cast<char*>(memory), size);  // munmap requires the non-const pointer that mmap returned
}

}}}  // namespace muster::v0::data
