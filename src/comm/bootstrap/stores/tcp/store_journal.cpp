#include "store_journal.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>

#include <muster/core/atomic_file.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>

#include "../../../../core/wire.hpp"

namespace muster::inline v0::detail {
namespace {

constexpr std::string_view magic = "muster-store 1\n";

// Its length, its checksum, and what it says.
std::string encode(std::string_view key, std::uint64_t version, std::optional<std::string_view> value) {
  wire_writer body;
  body.add(version);
  body.add(static_cast<std::uint8_t>(value ? 1 : 0));
  body.add_text(key);
  body.add_text(value.value_or(""));
  const std::string text = body.take();
  wire_writer whole;
  whole.add(std::uint64_t{text.size()});
  whole.add(crc32c(std::as_bytes(std::span(text))));
  return whole.take() + text;
}

// Up to the first record that is not whole.
void replay(std::string_view text, store_table& into) {
  wire_reader records(text);
  while (records.good()) {
    const auto length = records.number();
    const auto checksum = records.number<std::uint32_t>();
    const auto body = records.bytes(length);
    if (!records.good() || crc32c(body) != checksum) return;
    wire_reader record(body);
    const auto version = record.number();
    const bool there = record.number<std::uint8_t>() != 0;
    const auto key = record.text();
    const auto value = record.text();
    if (!record.whole()) return;
    into.restore(key, version, there ? std::optional(value) : std::nullopt);
  }
}

}  // namespace

store_journal::store_journal(const std::string& folder, store_table& into) : path_(folder + "/store") {
  const auto refuse = [&](const std::string& why) {
    throw configuration_error("the store cannot be kept in '" + folder + "' (" + why + "); choose another folder");
  };
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) refuse(std::strerror(errno));
  // The folder is locked, not the file, which is replaced below.
  lock_ = descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock_) refuse(std::strerror(errno));
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) refuse("another process has it open");
  std::ifstream old(path_, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(old), {}};
  if (!text.empty()) {
    if (!text.starts_with(magic)) refuse("its file 'store' is not a journal of this version of muster");
    replay(std::string_view(text).substr(magic.size()), into);
  }
  // Written anew, without what has been overwritten since and without a record that was cut off.
  atomic_file anew(path_);
  anew.write(magic);
  into.for_each_kept([&](std::string_view key, std::uint64_t version, std::optional<std::string_view> value) {
    anew.write(encode(key, version, value));
  });
  anew.commit();
  file_ = descriptor(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!file_) refuse(std::strerror(errno));
}

void store_journal::record(std::string_view key, std::uint64_t version, std::optional<std::string_view> value) {
  const auto text = encode(key, version, value);
  for (std::string_view left = text; !left.empty();) {
    const auto written = ::write(file_.get(), left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail();
    left.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::fdatasync(file_.get()) != 0) fail();
}

void store_journal::fail() const {
  throw error(error_kind::other, "the store cannot be kept in '" + path_ + "' (" + std::strerror(errno) +
                                     "); free disk space and restart the store");
}

}  // namespace muster::inline v0::detail
