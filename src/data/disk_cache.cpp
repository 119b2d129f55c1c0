#include "disk_cache.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <muster/core/crc32c.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/log.hpp>

namespace muster::inline v0::detail {
namespace {

constexpr std::uint64_t file_page = 4096;
constexpr std::uint64_t format = 1;
constexpr std::uint64_t header_magic = 0x314843434d55534dULL;
constexpr std::uint64_t footer_magic = 0x46554c4c4d55534dULL;
constexpr std::uint64_t word_mark = 0x9e3779b9;  // never 0 in a word that says "here"

struct header_fields {
  std::uint64_t magic, version, key, size, kept, record_bytes, label_width, bytes;
  std::int64_t made;  // seconds since 1970
  std::uint64_t check;
};
struct footer_fields {
  std::uint64_t magic, count, words, check;
};

template <class Fields>
std::uint64_t check_of(const Fields& fields) {
  return crc32c(std::as_bytes(std::span(&fields, 1)).first(offsetof(Fields, check)));
}

constexpr std::uint64_t up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

std::int64_t seconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool write_at(int file, std::span<const std::byte> bytes, std::uint64_t at) noexcept {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    at += static_cast<std::uint64_t>(written);
  }
  return true;
}

template <class Fields>
bool read_at(int file, Fields& fields, std::uint64_t at) noexcept {
  return ::pread(file, &fields, sizeof fields, static_cast<off_t>(at)) == static_cast<ssize_t>(sizeof fields);
}

/// Keeps a file to one process for a moment; the kernel lets go of it when that dies.
class file_lock {
 public:
  explicit file_lock(int file) : file_(file) {
    while (::flock(file_, LOCK_EX) != 0) {
      if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "flock");
    }
  }
  ~file_lock() { ::flock(file_, LOCK_UN); }
  file_lock(const file_lock&) = delete;
  file_lock& operator=(const file_lock&) = delete;

 private:
  int file_;
};

bool is_at(int file, const std::string& path) noexcept {
  struct stat here {};
  struct stat there {};
  return ::fstat(file, &here) == 0 && ::stat(path.c_str(), &there) == 0 && here.st_ino == there.st_ino &&
         here.st_dev == there.st_dev;
}

[[noreturn]] void fail(int code, const char* what) { throw std::system_error(code, std::generic_category(), what); }

}  // namespace

disk_cache::disk_cache(const cache_options& options, const cache_identity& identity, const cached_places& places)
    : options_(options), identity_(identity), places_(places) {
  const auto lay_out = [&](std::uint64_t kept) {
    shape all;
    all.kept = kept;
    all.words = file_page;
    all.records = up(all.words + 8 * kept, file_page);
    all.footer = all.records + places.begin(kept);
    all.size = all.footer + sizeof(footer_fields);
    return all;
  };
  shape_ = lay_out(places.size());
  if (shape_.size > options.disk) {
    const std::uint64_t around = shape_.records + file_page;
    shape_ = lay_out(options.disk > around ? places.fitting(options.disk - around) : 0);
  }
}

std::unique_ptr<disk_cache> disk_cache::open(const cache_options& options, const cache_identity& identity,
                                             const cached_places& places) {
  std::unique_ptr<disk_cache> opened(new disk_cache(options, identity, places));
  try {
    if (opened->shape_.kept == 0) throw std::runtime_error("no record fits into cache_options::disk");
    std::filesystem::create_directories(options.folder);
    if (!opened->open_finished()) opened->open_unfinished();
    return opened;
  } catch (const std::exception& error) {
    muster::log(log_level::warning, "the records of " + identity.name + " are not kept in '" + options.folder + "' (" +
                                        error.what() + "); they are made anew each time");
    return nullptr;
  }
}

disk_cache::~disk_cache() {
  if (!finished_ && writable_) finish();
  if (mapped_ != nullptr) ::munmap(const_cast<std::byte*>(mapped_), shape_.size);
  if (file_ >= 0) ::close(file_);
}

std::string disk_cache::path(const char* suffix) const {
  char name[40];
  const std::uint64_t key = digest().add(identity_.key).add(identity_.size).add(format).value();
  std::snprintf(name, sizeof name, "%016llx%s", static_cast<unsigned long long>(key), suffix);
  return options_.folder + "/" + name;
}

std::vector<std::byte> disk_cache::header(std::int64_t made) const {
  header_fields fields{header_magic,
                       format,
                       identity_.key,
                       identity_.size,
                       shape_.kept,
                       identity_.record_bytes,
                       identity_.label_width,
                       shape_.size,
                       made,
                       0};
  fields.check = check_of(fields);
  const auto bytes = std::as_bytes(std::span(&fields, 1));
  return {bytes.begin(), bytes.end()};
}

bool disk_cache::has_header(int file) const {
  header_fields fields;
  struct stat status {};
  if (!read_at(file, fields, 0) || ::fstat(file, &status) != 0) return false;
  if (static_cast<double>(seconds_since_1970() - fields.made) > options_.fresh_for.count()) return false;
  const auto expected = header(fields.made);
  return std::memcmp(&fields, expected.data(), sizeof fields) == 0 &&
         static_cast<std::uint64_t>(status.st_size) == shape_.size;
}

bool disk_cache::is_finished(int file) const {
  footer_fields footer;
  if (!has_header(file) || !read_at(file, footer, shape_.footer)) return false;
  if (footer.magic != footer_magic || footer.count != shape_.kept || footer.check != check_of(footer)) return false;
  std::vector<std::byte> words(8 * shape_.kept);
  const ssize_t got = ::pread(file, words.data(), words.size(), static_cast<off_t>(shape_.words));
  return got == static_cast<ssize_t>(words.size()) && crc32c(words) == footer.words;
}

void disk_cache::map(int file) {
  void* const memory = ::mmap(nullptr, shape_.size, PROT_READ, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) fail(errno, "mmap");
  mapped_ = static_cast<const std::byte*>(memory);
  checked_ = std::vector<std::atomic<bool>>(shape_.kept);
}

bool disk_cache::open_finished() {
  const std::string name = path(".cache");
  file_ = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) return false;
  if (!is_finished(file_)) {  // too old, or damaged
    ::unlink(name.c_str());
    ::close(std::exchange(file_, -1));
    return false;
  }
  ::futimens(file_, nullptr);  // it was used: what has not been for long goes first
  map(file_);
  finished_ = true;
  return true;
}

void disk_cache::open_unfinished() {
  const std::string name = path(".part");
  for (;;) {
    file_ = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file_ < 0) fail(errno, "open");
    const file_lock lock(file_);
    if (!is_at(file_, name)) {  // finished or thrown away while we waited
      ::close(std::exchange(file_, -1));
      if (open_finished()) return;
      continue;
    }
    if (!has_header(file_)) {
      struct stat status {};
      if (::fstat(file_, &status) == 0 && status.st_size != 0) {  // of another shape, too old, or never begun
        ::unlink(name.c_str());                                   // whoever still fills it keeps it to himself
        ::close(std::exchange(file_, -1));
        continue;
      }
      start_file(file_);
    }
    ::futimens(file_, nullptr);
    map(file_);
    break;
  }
  until_look_ = static_cast<std::int64_t>(count_missing() / 16);
  writable_ = true;
}

void disk_cache::start_file(int file) {
  make_room();
  // All of it now: a hole that cannot be filled later would end the process (SIGBUS).
  const int code = ::posix_fallocate(file, 0, static_cast<off_t>(shape_.size));
  const auto fields = header(seconds_since_1970());
  if (code == 0 && write_at(file, fields, 0)) return;
  const int why = code != 0 ? code : errno;
  ::unlink(path(".part").c_str());
  fail(why, ("reserving " + std::to_string(shape_.size) + " bytes").c_str());
}

void disk_cache::make_room() {
  struct file {
    std::filesystem::file_time_type used;
    std::uint64_t size;
    std::filesystem::path path;
  };
  std::vector<file> others;
  std::uint64_t sum = 0;
  std::error_code ignored;
  for (const auto& found : std::filesystem::directory_iterator(options_.folder)) {
    const auto extension = found.path().extension();
    if ((extension != ".cache" && extension != ".part") || found.path() == path(".part")) continue;
    const auto size = found.file_size(ignored);
    if (ignored) continue;  // it went away
    others.push_back({found.last_write_time(ignored), size, found.path()});
    sum += size;
  }
  std::sort(others.begin(), others.end(), [](const file& a, const file& b) { return a.used < b.used; });
  for (const file& oldest : others) {
    if (shape_.size <= options_.disk && sum <= options_.disk - shape_.size) break;
    std::filesystem::remove(oldest.path, ignored);  // who has it open goes on with it
    sum -= oldest.size;
  }
}

const std::atomic<std::uint64_t>& disk_cache::word(sample_id id) const noexcept {
  // Written by write() and read here: a word that is half there is one of no record, and taken for none.
  static_assert(sizeof(std::atomic<std::uint64_t>) == 8 && std::atomic<std::uint64_t>::is_always_lock_free);
  return reinterpret_cast<const std::atomic<std::uint64_t>*>(mapped_ + shape_.words)[id];
}

std::uint64_t disk_cache::word_of(sample_id id, std::span<const std::byte> record,
                                  std::span<const std::byte> labels) const noexcept {
  const std::uint64_t check = crc32c(labels, crc32c(record));
  const std::uint64_t salt = mix(id + identity_.key) & 0x7fffffff;
  return (((word_mark ^ salt) | 0x80000000) << 32) | check;
}

std::span<const std::byte> disk_cache::view(sample_id id, std::span<float> labels) const noexcept {
  if (id >= shape_.kept) return {};
  const std::uint64_t found = word(id).load(std::memory_order_acquire);
  if (found == 0) return {};
  const std::span record(mapped_ + shape_.records + places_.begin(id), places_.length(id));
  const std::span kept_labels(record.data() + places_.label_offset(id), places_.label_bytes());
  if (!checked_[id].load(std::memory_order_relaxed)) {
    if (found != word_of(id, record, kept_labels)) return {};
    checked_[id].store(true, std::memory_order_relaxed);
  }
  if (!labels.empty()) std::memcpy(labels.data(), kept_labels.data(), labels.size_bytes());
  return record;
}

bool disk_cache::put(sample_id id, std::span<const std::byte> record, std::span<const float> labels) noexcept {
  if (!writable_.load(std::memory_order_relaxed) || id >= shape_.kept) return false;
  const std::uint64_t at = shape_.records + places_.begin(id);
  const auto label_bytes = std::as_bytes(labels);
  const std::uint64_t value = word_of(id, record, label_bytes);
  // Behind each other: a word is never there without its record, unless the machine itself stops.
  if (write_at(file_, record, at) && write_at(file_, label_bytes, at + places_.label_offset(id)) &&
      write_at(file_, std::as_bytes(std::span(&value, 1)), shape_.words + 8 * id)) {
    checked_[id].store(true, std::memory_order_relaxed);
    if (until_look_.fetch_sub(1, std::memory_order_relaxed) <= 1) finish();
    return true;
  }
  if (writable_.exchange(false)) {
    muster::log(log_level::warning, "no more records of " + identity_.name + " are kept in '" + options_.folder +
                                        "' (" + std::strerror(errno) + "); they are made anew each time");
  }
  return false;
}

std::uint64_t disk_cache::count_missing() const noexcept {
  std::uint64_t missing = 0;
  for (sample_id id = 0; id < shape_.kept; ++id) missing += word(id).load(std::memory_order_relaxed) == 0 ? 1 : 0;
  return missing;
}

void disk_cache::finish() noexcept {
  const std::unique_lock one_thread(finishing_, std::try_to_lock);
  if (!one_thread || finished_) return;
  if (const std::uint64_t missing = count_missing(); missing != 0) {
    until_look_.store(static_cast<std::int64_t>(missing / 16), std::memory_order_relaxed);
    return;
  }
  try {
    const file_lock lock(file_);
    const std::string part = path(".part");
    if (is_at(file_, part)) {
      // Words that a crash of the machine left behind their records: those were never asked for in this process.
      for (sample_id id = 0; id < shape_.kept; ++id) {
        if (view(id, {}).data() != nullptr) continue;
        constexpr std::uint64_t none = 0;
        if (!write_at(file_, std::as_bytes(std::span(&none, 1)), shape_.words + 8 * id)) fail(errno, "write");
        return;
      }
      footer_fields footer{footer_magic, shape_.kept, 0, 0};
      footer.words = crc32c({mapped_ + shape_.words, 8 * shape_.kept});
      footer.check = check_of(footer);
      if (::fdatasync(file_) != 0 || !write_at(file_, std::as_bytes(std::span(&footer, 1)), shape_.footer) ||
          ::fsync(file_) != 0 || ::rename(part.c_str(), path(".cache").c_str()) != 0) {
        fail(errno, "finishing");
      }
      if (const int folder = ::open(options_.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); folder >= 0) {
        ::fsync(folder);
        ::close(folder);
      }
    }
    finished_ = true;
    writable_ = false;
  } catch (const std::exception& error) {
    writable_ = false;
    muster::log(log_level::warning, "the cache of " + identity_.name + " in '" + options_.folder +
                                        "' could not be finished (" + error.what() + "); later runs make it anew");
  }
}

}  // namespace muster::inline v0::detail
