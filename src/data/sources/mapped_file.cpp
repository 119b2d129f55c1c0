#include <muster/data/sources/mapped_file.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <system_error>

#include <muster/core/atomic_file.hpp>
#include <muster/core/error.hpp>

#include "../../core/descriptor.hpp"
#include "../cache/content_digest.hpp"
#include "../cache/locked_file.hpp"
#include "../file_state.hpp"
#include "../records/remote_folder.hpp"

namespace muster { inline namespace v0 {
namespace {

constinit std::atomic<detail::text_decoder> gzip_decoder{nullptr};
constinit std::atomic<detail::text_decoder> zstd_decoder{nullptr};

[[noreturn]] void refuse(const std::string& path, const std::string& problem, int code, const std::string& suggestion) {
  throw data_error({path}, problem + " (" + std::generic_category().message(code) + "); " + suggestion);
}

// What a decoder or a pipe gives: in memory, or, once it is more than that should hold, in a file without a name.
class decoded_text {
 public:
  std::vector<char> memory;
  detail::descriptor file;
  std::size_t size = 0;

  void add(std::span<const char> piece) {
    // At once: what is not used of it takes no memory, and growing would leave some to the allocator.
    if (size == 0) memory.reserve(detail::most_text_in_memory);
    if (!file && size + piece.size() > detail::most_text_in_memory) {
      const std::string folder = temporary_folder();
      file = detail::descriptor(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
      if (!file) {  // a file system that cannot: one with a name, for a moment
        std::string name = folder + "/muster-text-XXXXXX";
        file = detail::descriptor(::mkostemp(name.data(), O_CLOEXEC));
        if (file) ::unlink(name.c_str());
      }
      write(memory, 0);
      memory = std::vector<char>();  // ={} would keep what it has
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

void read_to_end(int file, const std::string& path, decoded_text& to) {
  std::vector<char> piece(detail::decoded_piece_bytes);
  for (;;) {
    const ssize_t got = ::read(file, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(path, "cannot be read", errno, "check the file and the disk");
    if (got == 0) return;
    to.add(std::span(piece).first(static_cast<std::size_t>(got)));
  }
}

// Begins with a frame, or with one to be skipped, as pzstd writes.
bool is_zstd(std::string_view text) {
  return text.starts_with("\x28\xb5\x2f\xfd") ||
         (text.substr(0, 4).find("\x2a\x4d\x18") == 1 && (text.front() & 0xf0) == 0x50);
}

}  // namespace

detail::text_decoder detail::set_gzip_decoder(text_decoder decoder) noexcept { return gzip_decoder.exchange(decoder); }

detail::text_decoder detail::set_zstd_decoder(text_decoder decoder) noexcept { return zstd_decoder.exchange(decoder); }

void mapped_file::open(const std::string& path) {
  const detail::descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) {
    refuse(path, "cannot be opened", errno, "check the path and its permissions");
  }
  if (S_ISDIR(status.st_mode)) {
    throw data_error({path}, "is a directory (a file is needed); name one of the files in it");
  }
  if (!S_ISREG(status.st_mode)) {
    decoded_text piped;
    read_to_end(file.get(), path, piped);
    if (piped.file) map(piped.file.get(), piped.size, path);
    read_ = std::move(piped.memory);
    state_ = detail::digest_block(bytes());
  } else if (status.st_size > 0) {
    may_change_ = true;
    state_ = detail::state_of(status);
    detail::wait_for_next_tick(status.st_ctim);
    map(file.get(), static_cast<std::size_t>(status.st_size), path);
  }
  if (text().empty()) throw data_error({path}, "is empty (it has no bytes); check how it was made");
}

void mapped_file::fetch(const std::string& path, const http_options& http) {
  constexpr std::uint64_t waited_for_at_once = std::uint64_t{8} << 20;
  const auto slash = path.rfind('/');
  if (slash < path.find("//") + 2 || slash + 1 == path.size())
    throw configuration_error(path +
                              " cannot be read (it names no file); write such as https://server/folder/table.csv");
  const auto folder = detail::open_remote_folder(path.substr(0, slash), http);
  const detail::remote_file file = folder->find(path.substr(slash + 1));
  state_ = file.version;
  const detail::remote_part all{file.number, 0, file.size};
  folder->expect({&all, 1});
  for (std::uint64_t at = 0; at < file.size; at += waited_for_at_once) {
    detail::remote_folder::bytes none;  // all of it lies on the disk
    const std::byte* const here = folder->view({file.number, at, std::min(waited_for_at_once, file.size - at)}, none);
    if (at == 0) mapped_ = {reinterpret_cast<const char*>(here), unmap{file.size, folder}};
    forget();
  }
}

mapped_file::mapped_file(const std::string& path, compressed_files how, const http_options& http) : path_(path) {
  detail::is_remote(path) ? fetch(path, http) : open(path);
  if (how == compressed_files::as_they_are) return;
  const bool gzip = text().starts_with("\x1f\x8b");
  if (!gzip && !is_zstd(text())) return;

  const detail::text_decoder decode = gzip ? gzip_decoder : zstd_decoder;
  if (decode == nullptr) {
    const std::string part = gzip ? "zlib" : "zstd";
    throw data_error({path}, "is compressed with " + std::string(gzip ? "gzip" : "Zstandard") +
                                 " (this program was built without muster's " + part +
                                 " component); link muster::" + part + " or decompress the file");
  }
  decoded_text plain;
  constexpr std::size_t decoded_between = std::size_t{16} << 20;  // seldom against what forgetting takes
  std::size_t told = 0;
  decode(text(), path, [&](std::span<const char> piece) {
    plain.add(piece);
    if (plain.size - told < decoded_between) return;
    told = plain.size;
    forget();
  });
  if (plain.size == 0) throw data_error({path}, "is empty once decompressed (it has no bytes); check how it was made");
  mapped_.reset();
  read_ = std::move(plain.memory);
  if (plain.file) map(plain.file.get(), plain.size, path);
}

void mapped_file::map(int file, std::size_t size, const std::string& path) {
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  if (memory == MAP_FAILED) refuse(path, "cannot be mapped into memory", errno, "check the file and free memory");
  mapped_ = {static_cast<const char*>(memory), unmap{size, nullptr}};
}

std::optional<std::uint64_t> mapped_file::host_state_now() const {
  return may_change_ ? detail::state_of(path_) : state_;
}

void mapped_file::forget() const noexcept {
  if (!mapped_) return;
  // In a cache the text begins within a page.
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t before = reinterpret_cast<std::uintptr_t>(mapped_.get()) % page;
  (void)::madvise(const_cast<char*>(mapped_.get()) - before, before + text().size(),
                  MADV_DONTNEED);  // which changes nothing of its bytes
}

void mapped_file::unmap::operator()(const char* memory) const noexcept {
  if (!owner) ::munmap(const_cast<char*>(memory), size);  // munmap takes what mmap gave, which was not const
}

}}  // namespace muster::v0
