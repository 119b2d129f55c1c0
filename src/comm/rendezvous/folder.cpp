#include "folder.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>

namespace muster::inline v0::detail {
namespace {

constexpr off_t writing = 0;  // the bytes of `revision` that are locked
constexpr off_t presence = 1;
constexpr std::size_t revision_digits = 20;
constexpr std::string_view entry_mark = "muster-store-1";  // the first word of an entry's file

// Locks of the open file, not of the process: threads have their own, and no other descriptor's end drops them.
bool try_lock(int file, off_t byte, short type) {
  struct flock wanted {};
  wanted.l_type = type;
  wanted.l_whence = SEEK_SET;
  wanted.l_start = byte;
  wanted.l_len = 1;
  int code = 0;
  do {
    code = ::fcntl(file, F_OFD_SETLK, &wanted) == 0 ? 0 : errno;
  } while (code == EINTR);
  if (code != 0 && code != EAGAIN && code != EACCES) throw std::system_error(code, std::generic_category());
  return code == 0;
}

bool is_locked_by_another(int file, off_t byte) {
  struct flock found {};
  found.l_type = F_RDLCK;
  found.l_whence = SEEK_SET;
  found.l_start = byte;
  found.l_len = 1;
  return ::fcntl(file, F_OFD_GETLK, &found) == 0 && found.l_type != F_UNLCK;
}

descriptor open_file(const std::string& path, int flags) {
  for (;;) {
    descriptor file(::open(path.c_str(), flags | O_CLOEXEC, 0600));
    if (file || (errno != EINTR && errno != ESTALE)) return file;  // NFS: it was replaced as we looked
  }
}

std::optional<std::string> content_of(int file) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return std::nullopt;
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::pread(file, text.data() + size, text.size() - size, static_cast<off_t>(size));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  text.resize(size);
  return text;
}

bool write_whole(int file, std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t put = ::pwrite(file, text.data() + at, text.size() - at, static_cast<off_t>(at));
    if (put < 0 && errno != EINTR) return false;
    if (put > 0) at += static_cast<std::size_t>(put);
  }
  return true;
}

std::string hexadecimal(std::uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

// A file's name for any key: its letters as they are where that fits, else as many and a digest.
std::string name_of(std::string_view key) {
  std::string name = "k-";
  for (const char c : key) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
    char escaped[4];
    std::snprintf(escaped, sizeof escaped, "%%%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
    name += plain ? std::string(1, c) : std::string(escaped);
  }
  if (name.size() <= 200) return name;
  return name.substr(0, 160) + "~" + hexadecimal(digest().add(key).value()) +
         hexadecimal(digest().add(1).add(key).value());
}

std::string boot_id() {
  const descriptor file = open_file("/proc/sys/kernel/random/boot_id", O_RDONLY);
  char text[64] = {};
  const ssize_t got = file ? ::read(file.get(), text, sizeof text - 1) : 0;
  std::string id(text, static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id.empty() ? "unknown" : id;
}

std::uint64_t random_id() {
  std::uint64_t id = 0;
  while (id == 0) {
    if (::getrandom(&id, sizeof id, 0) != static_cast<ssize_t>(sizeof id)) id = 0;
  }
  return id;
}

double seconds_between(const timespec& early, const timespec& late) {
  return static_cast<double>(late.tv_sec - early.tv_sec) + 1e-9 * static_cast<double>(late.tv_nsec - early.tv_nsec);
}

template <class T>
bool read_number(std::string_view& text, T& value, int base = 10) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (code != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (!text.empty()) text.remove_prefix(1);  // the space or the end of line behind it
  return true;
}

// "muster-store-1 VERSION LEASE BYTES\n", the key's BYTES, the value.
struct parsed_entry {
  stored_entry stored;
  std::string_view key;
};
std::optional<parsed_entry> parse_entry(std::string_view text) {
  parsed_entry read;
  std::size_t key_size = 0;
  if (!text.starts_with(entry_mark) || text.size() <= entry_mark.size()) return std::nullopt;
  text.remove_prefix(entry_mark.size() + 1);
  if (!read_number(text, read.stored.entry.version) || !read_number(text, read.stored.lease, 16) ||
      !read_number(text, key_size) || key_size > text.size()) {
    return std::nullopt;
  }
  read.key = text.substr(0, key_size);
  read.stored.entry.value = text.substr(key_size);
  return read;
}

}  // namespace

void store_folder::fail(const std::string& what, int code) const {
  throw error(error_kind::other, "the store in '" + path_ + "' cannot be used any more (" + what + ": " +
                                     std::strerror(code) + "); see whether its file system is full or gone");
}

void store_folder::refuse(int code) const {
  throw configuration_error("the folder '" + path_ + "' cannot hold a store (" + std::strerror(code) +
                            "); choose one that every rank may write to: --rendezvous file:/folder");
}

store_folder::store_folder(std::string path, clock::time_point until) : path_(std::move(path)), boot_(boot_id()) {
  try {
    while (!open_revision(until)) {
    }
  } catch (const std::system_error& failed) {  // locks are not to be had here
    refuse(failed.code().value());
  }
}

// False when another removed the folder just then.
bool store_folder::open_revision(clock::time_point until) {
  if (::mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) refuse(errno);
  revision_ = open_file(path_ + "/revision", O_RDWR | O_CREAT);
  if (!revision_ && errno == ENOENT) return false;
  if (!revision_) refuse(errno);
  if (!lock_first_byte(until)) store_timed_out("open", {}, path_);
  struct stat ours {};
  struct stat there {};
  const bool still_there = ::fstat(revision_.get(), &ours) == 0 && ::stat((path_ + "/revision").c_str(), &there) == 0 &&
                           ours.st_ino == there.st_ino && ours.st_dev == there.st_dev;
  if (!still_there) return false;
  if (try_lock(revision_.get(), presence, F_WRLCK)) clear();  // nobody has it open: what lies here is of a dead job
  (void)try_lock(revision_.get(), presence, F_RDLCK);
  (void)try_lock(revision_.get(), writing, F_UNLCK);
  return true;
}

store_folder::~store_folder() {
  try {
    const auto right = lock(deadline_after(seconds(1)));
    if (!right || !try_lock(revision_.get(), presence, F_WRLCK)) return;
    clear();
    ::unlink((path_ + "/revision").c_str());
    ::rmdir(path_.c_str());
  } catch (...) {  // then the next that opens it clears it
  }
}

void store_folder::clear() const {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(path_.c_str()), &::closedir);
  while (const dirent* const found = listing ? ::readdir(listing.get()) : nullptr) {
    const std::string_view name(found->d_name);
    const bool ours = name.starts_with("k-") || name.starts_with("l-") || name == "new";
    if (ours) ::unlinkat(::dirfd(listing.get()), found->d_name, 0);
  }
}

bool store_folder::lock_first_byte(clock::time_point until) {
  auto nap = std::chrono::microseconds(20);
  while (!try_lock(revision_.get(), writing, F_WRLCK)) {
    if (clock::now() >= until) return false;
    std::this_thread::sleep_for(nap);
    nap = std::min(nap + nap / 2, std::chrono::microseconds(2000));
  }
  return true;
}

std::optional<store_folder::writer> store_folder::lock(clock::time_point until) {
  {
    std::unique_lock held(mutex_);
    if (!freed_.wait_until(held, until, [this] { return !locked_; })) return std::nullopt;
    locked_ = true;
  }
  try {
    if (lock_first_byte(until)) return writer(this);
  } catch (const std::system_error& failed) {
    unlock();
    fail("lock", failed.code().value());
  }
  unlock();
  return std::nullopt;
}

void store_folder::unlock() noexcept {
  {
    const std::lock_guard held(mutex_);
    locked_ = false;
  }
  freed_.notify_one();
}

store_folder::writer::~writer() {
  if (folder_ == nullptr) return;
  try {
    (void)try_lock(folder_->revision_.get(), writing, F_UNLCK);
  } catch (const std::system_error&) {  // the file system is gone, and its locks with it
  }
  folder_->unlock();
}

std::string store_folder::path_of(std::string_view key) const { return path_ + "/" + name_of(key); }
std::string store_folder::path_of_lease(std::uint64_t lease) const { return path_ + "/l-" + hexadecimal(lease); }

std::optional<stored_entry> store_folder::read(std::string_view key) const {
  const descriptor file = open_file(path_of(key), O_RDONLY);
  if (!file && errno == ENOENT) return std::nullopt;
  if (!file) fail("open", errno);
  const auto text = content_of(file.get());
  if (!text) fail("read", errno);
  auto parsed = parse_entry(*text);
  if (!parsed || parsed->key != key) {
    throw error(error_kind::other, "'" + path_of(key) + "' is no entry of a store (somebody else wrote it); remove it");
  }
  return std::move(parsed->stored);
}

std::uint64_t store_folder::write(writer&, std::string_view key, std::string_view value, std::uint64_t lease) {
  const auto before = content_of(revision_.get());
  if (!before) fail("read", errno);
  std::uint64_t version = 0;
  std::string_view digits(*before);
  (void)read_number(digits, version);  // an empty file: none yet
  ++version;
  std::string text = std::to_string(version);
  text.insert(0, revision_digits - text.size(), '0');
  // The version first: one that is never used hurts nobody, one that is used twice would.
  if (!write_whole(revision_.get(), text)) fail("write", errno);

  text = std::string(entry_mark) + " " + std::to_string(version) + " " + hexadecimal(lease) + " " +
         std::to_string(key.size()) + "\n";
  text.append(key).append(value);
  const std::string temporary = path_ + "/new";
  const descriptor file = open_file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
  if (!file || !write_whole(file.get(), text)) fail("write", errno);
  if (::rename(temporary.c_str(), path_of(key).c_str()) != 0) fail("rename", errno);
  return version;
}

void store_folder::remove(writer&, std::string_view key) {
  if (::unlink(path_of(key).c_str()) != 0 && errno != ENOENT) fail("remove", errno);
}

std::pair<std::uint64_t, descriptor> store_folder::grant(writer&, seconds ttl) {
  const std::uint64_t id = random_id();
  descriptor file = open_file(path_of_lease(id), O_RDWR | O_CREAT | O_EXCL);
  const std::string text = std::to_string(static_cast<std::uint64_t>(ttl.count() * 1e6)) + " " + boot_ + "\n";
  if (!file || !try_lock(file.get(), 0, F_WRLCK) || !write_whole(file.get(), text)) fail("lease", errno);
  return {id, std::move(file)};
}

store_folder::life store_folder::look_at(std::uint64_t lease) const {
  const descriptor file = open_file(path_of_lease(lease), O_RDONLY);
  if (!file && errno == ENOENT) return life::ended;
  if (!file) fail("open", errno);
  const auto text = content_of(file.get());
  std::uint64_t microseconds = 0;
  std::string_view rest = text ? std::string_view(*text) : std::string_view();
  if (!read_number(rest, microseconds)) return life::ended;  // removed as we looked
  while (rest.ends_with('\n')) rest.remove_suffix(1);
  if (rest == boot_ && boot_ != "unknown" && !is_locked_by_another(file.get(), 0)) return life::silent;
  // The time by the clock of the file system, which set that of the lease too.
  struct stat now {};
  struct stat last {};
  if (::futimens(revision_.get(), nullptr) != 0 || ::fstat(revision_.get(), &now) != 0) fail("touch", errno);
  if (::fstat(file.get(), &last) != 0) return life::ended;
  const double silence = seconds_between(last.st_mtim, now.st_mtim);
  return silence > 1e-6 * static_cast<double>(microseconds) ? life::silent : life::alive;
}

void store_folder::bury(writer&, std::uint64_t lease) {
  if (::unlink(path_of_lease(lease).c_str()) != 0 && errno != ENOENT) fail("remove", errno);
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(path_.c_str()), &::closedir);
  while (const dirent* const found = listing ? ::readdir(listing.get()) : nullptr) {
    const std::string name(found->d_name);
    if (!name.starts_with("k-")) continue;
    const descriptor file = open_file(path_ + "/" + name, O_RDONLY);
    const auto text = file ? content_of(file.get()) : std::nullopt;
    const auto parsed = text ? parse_entry(*text) : std::nullopt;
    if (parsed && parsed->stored.lease == lease) ::unlinkat(::dirfd(listing.get()), name.c_str(), 0);
  }
}

}  // namespace muster::inline v0::detail
