#include "disk_cache.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include <muster/core/crc32c.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/log.hpp>
#include "../../core/round_up.hpp"
#include "locked_file.hpp"

namespace muster::inline v0::detail {
namespace {

constexpr std::uint64_t file_page = 4096;
constexpr std::uint64_t words = file_page;  // where they begin, behind the header
constexpr std::uint64_t format = 2;
constexpr std::uint64_t header_magic = 0x314843434d55534dULL;
constexpr std::uint64_t word_mark = 0x9e3779b9;  // never 0 in a word that says "here"

std::int64_t seconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool is_at(int file, const std::string& path) noexcept {
  struct stat here {};
  struct stat there {};
  return ::fstat(file, &here) == 0 && ::stat(path.c_str(), &there) == 0 && here.st_ino == there.st_ino &&
         here.st_dev == there.st_dev;
}

[[noreturn]] void fail(int code, const std::string& what) {
  throw std::system_error(code, std::generic_category(), what);
}

}  // namespace

struct disk_cache::header {
  std::uint64_t magic, version, key, size, kept, record_bytes, label_width, bytes;
  std::int64_t made;  // seconds since 1970
  std::uint64_t check;
};

disk_cache::disk_cache(const cache_options& options, const cache_identity& identity, const cached_places& places)
    : options_(options), identity_(identity), places_(places) {
  char name[40];
  const std::uint64_t key = digest().add(identity.key).add(identity.size).add(format).value();
  std::snprintf(name, sizeof name, "/%016llx.cache", static_cast<unsigned long long>(key));
  path_ = options.folder + name;
  const auto lay_out = [&](std::uint64_t kept) {
    shape all;
    all.kept = kept;
    all.records = round_up(words + 8 * kept, file_page);
    all.size = all.records + places.begin(kept);
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
    opened->open_file();
    return opened;
  } catch (const std::exception& error) {
    muster::log(log_level::warning, "the records of " + identity.name + " are not kept in '" + options.folder + "' (" +
                                        error.what() + "); they are made anew each time");
    return nullptr;
  }
}

disk_cache::~disk_cache() {
  if (mapped_ != nullptr) ::munmap(const_cast<std::byte*>(mapped_), shape_.size);
}

disk_cache::header disk_cache::header_of(std::int64_t made) const {
  header all{header_magic,
             format,
             identity_.key,
             identity_.size,
             shape_.kept,
             identity_.record_bytes,
             identity_.label_width,
             shape_.size,
             made,
             0};
  all.check = crc32c(std::as_bytes(std::span(&all, 1)).first(offsetof(header, check)));
  return all;
}

bool disk_cache::has_header() const {
  header found;
  struct stat status {};
  if (::pread(file_.get(), &found, sizeof found, 0) != static_cast<ssize_t>(sizeof found) ||
      ::fstat(file_.get(), &status) != 0) {
    return false;
  }
  if (static_cast<double>(seconds_since_1970() - found.made) > options_.fresh_for.count()) return false;
  const header expected = header_of(found.made);
  return std::memcmp(&found, &expected, sizeof found) == 0 && static_cast<std::uint64_t>(status.st_size) == shape_.size;
}

void disk_cache::open_file() {
  for (bool found = false; !found;) {
    file_ = descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    writable_ = static_cast<bool>(file_);
    if (!file_ && (errno == EACCES || errno == EROFS)) {  // one that others have filled can be read all the same
      file_ = descriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    }
    if (!file_ || !lock_file(file_.get())) fail(errno, "open");
    struct stat status {};
    if (!is_at(file_.get(), path_) || ::fstat(file_.get(), &status) != 0) continue;  // thrown away while we waited
    found = has_header();
    if (!found && !writable_) fail(EACCES, "open");
    if (!found && status.st_size != 0) {  // of another shape, too old, or never begun
      ::unlink(path_.c_str());            // a process that still fills it keeps it to itself
    } else if (!found) {
      start_file();
      found = true;
    }
  }
  ::futimens(file_.get(), nullptr);  // it was used: what has not been for long goes first
  ::flock(file_.get(), LOCK_UN);
  void* const memory = ::mmap(nullptr, shape_.size, PROT_READ, MAP_SHARED, file_.get(), 0);
  if (memory == MAP_FAILED) fail(errno, "mmap");
  mapped_ = static_cast<const std::byte*>(memory);
  checked_ = std::vector<std::atomic<bool>>(shape_.kept);
}

void disk_cache::start_file() {
  make_room();
  // All of it now: a hole that cannot be filled later would end the process (SIGBUS).
  const int code = ::posix_fallocate(file_.get(), 0, static_cast<off_t>(shape_.size));
  const header all = header_of(seconds_since_1970());
  if (code == 0 && write_at(file_.get(), std::as_bytes(std::span(&all, 1)), 0)) return;
  const int why = code != 0 ? code : errno;
  ::unlink(path_.c_str());
  fail(why, "reserving " + std::to_string(shape_.size) + " bytes");
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
    if (found.path().extension() != ".cache" || found.path() == path_) continue;
    const auto size = found.file_size(ignored);
    if (ignored) continue;  // it went away
    others.push_back({found.last_write_time(ignored), size, found.path()});
    sum += size;
  }
  std::sort(others.begin(), others.end(), [](const file& a, const file& b) { return a.used < b.used; });
  for (const file& oldest : others) {
    if (shape_.size <= options_.disk && sum <= options_.disk - shape_.size) break;
    std::filesystem::remove(oldest.path, ignored);  // a process that has it open goes on with it
    sum -= oldest.size;
  }
}

const std::atomic<std::uint64_t>& disk_cache::word(sample_id id) const noexcept {
  // Written by write_at() and read here: a word that is half there is one of no record, and taken for none.
  static_assert(sizeof(std::atomic<std::uint64_t>) == 8 && std::atomic<std::uint64_t>::is_always_lock_free);
  return reinterpret_cast<const std::atomic<std::uint64_t>*>(mapped_ + words)[id];
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
  if (write_at(file_.get(), record, at) && write_at(file_.get(), label_bytes, at + places_.label_offset(id)) &&
      write_at(file_.get(), std::as_bytes(std::span(&value, 1)), words + 8 * id)) {
    checked_[id].store(true, std::memory_order_relaxed);
    return true;
  }
  if (writable_.exchange(false)) {
    muster::log(log_level::warning, "no more records of " + identity_.name + " are kept in '" + options_.folder +
                                        "' (" + std::strerror(errno) + "); they are made anew each time");
  }
  return false;
}

}  // namespace muster::inline v0::detail
