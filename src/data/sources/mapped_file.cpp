#include <muster/data/sources/mapped_file.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>

#include <muster/core/error.hpp>

#include "../../core/descriptor.hpp"

namespace muster::inline v0 {
namespace {

constinit std::atomic<detail::text_decoder> gzip_decoder{nullptr};
constinit std::atomic<detail::text_decoder> zstd_decoder{nullptr};

[[noreturn]] void refuse(const std::string& path, const std::string& problem, int code, const std::string& suggestion) {
  throw data_error({path}, problem + " (" + std::generic_category().message(code) + "); " + suggestion);
}

std::vector<char> read_to_end(int file, const std::string& path) {
  std::vector<char> bytes;
  std::size_t size = 0;
  for (;;) {
    bytes.resize(size + std::max<std::size_t>(size, std::size_t{1} << 16));
    const ssize_t got = ::read(file, bytes.data() + size, bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(path, "cannot be read", errno, "check the file and the disk");
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace

detail::text_decoder detail::set_gzip_decoder(text_decoder decoder) noexcept { return gzip_decoder.exchange(decoder); }

detail::text_decoder detail::set_zstd_decoder(text_decoder decoder) noexcept { return zstd_decoder.exchange(decoder); }

mapped_file::mapped_file(const std::string& path, compressed_files how) {
  const detail::descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) {
    refuse(path, "cannot be opened", errno, "check the path and its permissions");
  }
  if (S_ISDIR(status.st_mode)) {
    throw data_error({path}, "is a directory (a file is needed); name one of the files in it");
  }
  if (!S_ISREG(status.st_mode)) {
    read_ = read_to_end(file.get(), path);
  } else if (status.st_size > 0) {
    const auto size = static_cast<std::size_t>(status.st_size);
    void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (memory == MAP_FAILED) refuse(path, "cannot be mapped into memory", errno, "check the file and free memory");
    mapped_ = {static_cast<const char*>(memory), unmap{size}};
  }
  if (text().empty()) throw data_error({path}, "is empty (it has no bytes); check how it was made");
  if (how == compressed_files::as_they_are) return;
  const bool gzip = text().starts_with("\x1f\x8b");
  if (!gzip && !text().starts_with("\x28\xb5\x2f\xfd")) return;

  const detail::text_decoder decode = gzip ? gzip_decoder : zstd_decoder;
  if (decode == nullptr) {
    const std::string part = gzip ? "zlib" : "zstd";
    throw data_error({path}, "is compressed with " + std::string(gzip ? "gzip" : "Zstandard") +
                                 " (this program was built without muster's " + part +
                                 " component); link muster::" + part + " or decompress the file");
  }
  read_ = decode(text(), path);
  mapped_.reset();
  if (read_.empty()) throw data_error({path}, "is empty once decompressed (it has no bytes); check how it was made");
}

void mapped_file::unmap::operator()(const char* memory) const noexcept {
  ::munmap(const_cast<char*>(memory), size);  // munmap takes what mmap gave, which was not const
}

}  // namespace muster::inline v0
