#pragma once

#include <muster/data/cache/record_store.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include <muster/core/crc32c.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/text.hpp>
#include <muster/data/cache/locked_file.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {
inline constexpr std::uint64_t words_at = 4096;  // offset in the file, after the header
inline constexpr std::uint64_t cache_format = 3;
inline constexpr std::uint64_t header_magic = 0x314843434d55534dULL;
inline constexpr std::uint64_t word_mark = 0x9e3779b9;  // never 0 in the word of a record that is present

// Returns the largest n up to `most` for which fits(n) is true. If fits(n) is true, it must be true for all smaller
// numbers.
template <class Fits>
std::uint64_t most_that_fit(std::uint64_t most, const Fits& fits) {
  std::uint64_t least = 0;
  while (least < most) {
    const std::uint64_t middle = most - (most - least) / 2;
    fits(middle) ? least = middle : most = middle - 1;
  }
  return least;
}

inline void copy_some(void* destination, const void* source, std::size_t bytes) noexcept {
  if (bytes != 0) std::memcpy(destination, source, bytes);
}

inline std::int64_t seconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

inline bool is_at(int file, const std::string& path) noexcept {
  struct stat by_descriptor {};
  struct stat by_path {};
  return ::fstat(file, &by_descriptor) == 0 && ::stat(path.c_str(), &by_path) == 0 &&
         by_descriptor.st_ino == by_path.st_ino && by_descriptor.st_dev == by_path.st_dev;
}

// Returns true if the file was created by this class. A process that was killed before it wrote the header has left
// zeros.
inline bool is_cache(const std::filesystem::path& path) {
  std::uint64_t magic = 0;
  const muster::detail::descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  return file && ::pread(file.get(), &magic, sizeof magic, 0) >= 0 && (magic == header_magic || magic == 0);
}

[[noreturn]] inline void fail(int code, const std::string& operation) {
  throw std::system_error(code, std::generic_category(), operation);
}

struct record_store::header {
  std::uint64_t magic, version, key, size, record_count, record_bytes, label_bytes, bytes;
  std::int64_t created;  // creation time in seconds since 1970
  std::uint64_t check;
};

MUSTER_INLINE record_store::record_store(const cached_records& records, std::size_t budget)
    : records_(records),
      record_count_(most_that_fit(
          records.size, [&](std::uint64_t n) { return records.begin(n) + n * records.label_bytes <= budget; })),
      states_(record_count_),
      memory_(records.begin(record_count_) + record_count_ * records.label_bytes),
      record_bytes_(memory_.data()),
      label_bytes_(memory_.data() + records.begin(record_count_)) {}

MUSTER_INLINE record_store::record_store(const cached_records& records, const cache_options& options,
                                         std::uint64_t most)
    : records_(records),
      record_count_(
          most_that_fit(records.size, [&](std::uint64_t n) { return records_offset(n) + records.begin(n) <= most; })),
      states_(record_count_),
      file_bytes_(records_offset(record_count_) + records.begin(record_count_)) {
  if (record_count_ == 0) throw std::runtime_error("no record fits into cache_options::disk");
  const std::uint64_t key = digest().add(records.key).add(records.size).add(cache_format).value();
  path_ = options.folder + '/' + muster::detail::hex(key) + ".cache";
  std::filesystem::create_directories(options.folder);
  open_file(options);
}

MUSTER_INLINE record_store::~record_store() {
  if (mapped_ != nullptr) ::munmap(mapped_, file_bytes_);
}

MUSTER_INLINE std::uint64_t record_store::labels_offset(std::uint64_t record_count) const noexcept {
  return words_at + 8 * record_count;
}
MUSTER_INLINE std::uint64_t record_store::records_offset(std::uint64_t record_count) const noexcept {
  return muster::detail::round_up(labels_offset(record_count) + record_count * records_.label_bytes, buffer_alignment);
}

MUSTER_INLINE record_store::header record_store::header_of(std::int64_t created) const {
  header all{header_magic,          cache_format,         records_.key, records_.size, record_count_,
             records_.record_bytes, records_.label_bytes, file_bytes_,  created,       0};
  all.check = crc32c(std::as_bytes(std::span(&all, 1)).first(offsetof(header, check)));
  return all;
}

MUSTER_INLINE bool record_store::has_valid_header(seconds fresh_for) const {
  header found;
  struct stat status {};
  if (::pread(file_.get(), &found, sizeof found, 0) != static_cast<ssize_t>(sizeof found) ||
      ::fstat(file_.get(), &status) != 0) {
    return false;
  }
  if (static_cast<double>(seconds_since_1970() - found.created) > fresh_for.count()) return false;
  const header expected = header_of(found.created);
  return std::memcmp(&found, &expected, sizeof found) == 0 && static_cast<std::uint64_t>(status.st_size) == file_bytes_;
}

MUSTER_INLINE void record_store::open_file(const cache_options& options) {
  for (bool found = false; !found;) {
    file_ = muster::detail::descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    writable_ = static_cast<bool>(file_);
    if (!file_ && (errno == EACCES || errno == EROFS)) {  // a file that other processes have filled can still be read
      file_ = muster::detail::descriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    }
    if (!file_ || !lock_file(file_.get())) fail(errno, "open");
    struct stat status {};
    // Deleted while this process waited for the lock.
    if (!is_at(file_.get(), path_) || ::fstat(file_.get(), &status) != 0) continue;
    found = has_valid_header(options.fresh_for);
    if (!found && !writable_) fail(EACCES, "open");
    if (!found && status.st_size != 0) {  // has other sizes, is too old, or has no header
      ::unlink(path_.c_str());            // a process that still fills the file keeps it without a name
    } else if (!found) {
      start_file(options);
      found = true;
    }
  }
  ::futimens(file_.get(), nullptr);  // marks the file as used: the least recently used files are deleted first
  ::flock(file_.get(), LOCK_UN);
  void* const memory =
      ::mmap(nullptr, file_bytes_, writable_ ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file_.get(), 0);
  if (memory == MAP_FAILED) fail(errno, "mmap");
  mapped_ = static_cast<std::byte*>(memory);
  label_bytes_ = mapped_ + labels_offset(record_count_);
  record_bytes_ = mapped_ + records_offset(record_count_);
  file_ = {};  // the mapping remains
}

MUSTER_INLINE void record_store::start_file(const cache_options& options) {
  make_room(options);
  // Reserves the whole file now: writing to a hole on a full disk would terminate the process (SIGBUS).
  const int code = ::posix_fallocate(file_.get(), 0, static_cast<off_t>(file_bytes_));
  const header all = header_of(seconds_since_1970());
  if (code == 0 && write_at(file_.get(), std::as_bytes(std::span(&all, 1)), 0)) return;
  const int why = code != 0 ? code : errno;
  ::unlink(path_.c_str());
  fail(why, "reserving " + std::to_string(file_bytes_) + " bytes");
}

MUSTER_INLINE void record_store::make_room(const cache_options& options) const {
  struct file {
    std::filesystem::file_time_type used;
    std::uint64_t size;
    std::filesystem::path path;
  };
  std::vector<file> other_files;
  std::uint64_t sum = 0;
  std::error_code ignored;
  for (const auto& found : std::filesystem::directory_iterator(options.folder)) {
    if (!muster::detail::matches_name_pattern(found.path().filename().string(), "%.cache") || !is_cache(found.path()) ||
        found.path() == path_)
      continue;
    const auto size = found.file_size(ignored);
    if (ignored) continue;  // the file was deleted meanwhile
    other_files.push_back({found.last_write_time(ignored), size, found.path()});
    sum += size;
  }
  std::ranges::sort(other_files, {}, &file::used);
  for (const file& oldest : other_files) {
    if (file_bytes_ <= options.disk && sum <= options.disk - file_bytes_) break;
    std::filesystem::remove(oldest.path, ignored);  // a process that has the file open continues to use it
    sum -= oldest.size;
  }
}

MUSTER_INLINE std::atomic<std::uint64_t>& record_store::stored_word(sample_id id) const noexcept {
  static_assert(sizeof(std::atomic<std::uint64_t>) == 8 && std::atomic<std::uint64_t>::is_always_lock_free);
  return reinterpret_cast<std::atomic<std::uint64_t>*>(mapped_ + words_at)[id];
}

MUSTER_INLINE std::uint64_t record_store::expected_word(sample_id id) const noexcept {
  const std::span record(record_bytes_ + records_.begin(id), records_.length(id));
  const std::uint64_t check = crc32c({label_bytes_ + id * records_.label_bytes, records_.label_bytes}, crc32c(record));
  const std::uint64_t salt = mix(id + records_.key) & 0x7fffffff;
  return (((word_mark ^ salt) | 0x80000000) << 32) | check;
}

MUSTER_INLINE std::span<const std::byte> record_store::view(sample_id id, std::span<float> labels) noexcept {
  if (id >= record_count_) return {};
  auto state = states_[id].load(std::memory_order_acquire);
  if (state == absent && mapped_ != nullptr) {
    const std::uint64_t found = stored_word(id).load(std::memory_order_acquire);
    if (found != 0 && states_[id].compare_exchange_strong(state, busy)) {
      state = found == expected_word(id) ? present : absent;
      states_[id].store(state, std::memory_order_release);
    }
  }
  if (state != present) return {};
  copy_some(labels.data(), label_bytes_ + id * records_.label_bytes, labels.size_bytes());
  return {record_bytes_ + records_.begin(id), records_.length(id)};
}

MUSTER_INLINE bool record_store::put(sample_id id, std::span<const std::byte> record,
                                     std::span<const float> labels) noexcept {
  if (!writable_ || id >= record_count_) return false;
  auto state = absent;
  if (!states_[id].compare_exchange_strong(state, busy)) return false;
  copy_some(record_bytes_ + records_.begin(id), record.data(), record.size());
  copy_some(label_bytes_ + id * records_.label_bytes, labels.data(), labels.size_bytes());
  if (mapped_ != nullptr) stored_word(id).store(expected_word(id), std::memory_order_release);
  states_[id].store(present, std::memory_order_release);
  return true;
}

}}}}  // namespace muster::v0::data::detail
