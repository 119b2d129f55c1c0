#include "segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>

#include <muster/core/error.hpp>

#include "../../../core/round_up.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

constexpr std::size_t granule = 4096;                        // what allocations are rounded to: no two share a page
constexpr std::size_t growth = std::size_t{1} << 20;         // what the file grows by at least
constexpr std::size_t returned_from = std::size_t{1} << 20;  // free runs this long give their pages back

descriptor make_file() {
  descriptor file(::memfd_create("muster", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) {
    throw error(error_kind::other, std::string("cannot make a memory file (") + std::strerror(errno) +
                                       "); the shm transport needs memfd_create: use another transport");
  }
  // A peer that reads beyond the end would be killed; a file that cannot shrink has no such place.
  ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK);
  return file;
}

}  // namespace

mapping::mapping(descriptor file, std::size_t reserve) : file_(std::move(file)), reserve_(reserve) {
  void* const base = ::mmap(nullptr, reserve, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_.get(), 0);
  if (base == MAP_FAILED) {
    throw error(error_kind::other, "cannot reserve " + std::to_string(reserve >> 20) +
                                       " MiB of addresses for shared memory (" + std::strerror(errno) +
                                       "); raise the limit (ulimit -v) or use --transport tcp");
  }
  base_ = {static_cast<std::byte*>(base), {reserve}};
}

void mapping::unmapping::operator()(std::byte* base) const noexcept {
  if (bytes > 0) ::munmap(base, bytes);
}

mapping mapping::alias() const noexcept {
  mapping same;
  same.base_.reset(base_.get());
  same.reserve_ = reserve_;
  return same;
}

segment::segment(std::size_t reserve) : memory_(make_file(), reserve) {}

std::uint64_t segment::grow(std::size_t bytes) {
  const std::uint64_t at = size_;
  const std::size_t wanted = round_up(bytes, growth);
  if (wanted > memory_.reserve() - size_) throw std::bad_alloc();
  if (::ftruncate(memory_.file(), static_cast<off_t>(size_ + wanted)) != 0) {
    if (errno != EFBIG) throw std::bad_alloc();
    throw error(error_kind::other,
                "shared memory cannot have " + std::to_string((size_ + wanted) >> 20) +
                    " MiB (it is a file of the system's, and the limit of file sizes is less); raise "
                    "the limit (ulimit -f) or use --transport tcp");
  }
  size_ += wanted;
  if (wanted > bytes) free_[at + bytes] = wanted - bytes;
  return at;
}

void* segment::do_allocate(std::size_t bytes, std::size_t alignment) {
  if (alignment > granule || bytes > memory_.reserve()) throw std::bad_alloc();
  const std::size_t taken = round_up(std::max<std::size_t>(bytes, 1), granule);
  const std::lock_guard lock(mutex_);
  auto found = free_.begin();
  while (found != free_.end() && found->second < taken) ++found;
  std::uint64_t at = 0;
  if (found == free_.end()) {
    at = grow(taken);
  } else {
    at = found->first;
    const std::size_t left = found->second - taken;
    free_.erase(found);
    if (left > 0) free_[at + taken] = left;
  }
  // The pages come now, not one by one inside a collective; and memory that is not there is an exception here, not a
  // fatal signal there.
  if (::fallocate(memory_.file(), 0, static_cast<off_t>(at), static_cast<off_t>(taken)) != 0 &&
      (errno == ENOSPC || errno == ENOMEM)) {
    release(at, taken);
    throw std::bad_alloc();
  }
#ifdef MADV_POPULATE_WRITE
  (void)::madvise(memory_.at(at), taken, MADV_POPULATE_WRITE);  // since Linux 5.14; a hint
#endif
  return memory_.at(at);
}

void segment::detach(void* data, std::size_t bytes) noexcept {
  const std::uint64_t begin = offset_of(data) / granule * granule;
  const std::uint64_t end = round_up(offset_of(data) + bytes, granule);
  void* const fresh = ::mmap(nullptr, end - begin, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (fresh == MAP_FAILED) return;
  std::memcpy(fresh, memory_.at(begin), end - begin);
  if (::mremap(fresh, end - begin, end - begin, MREMAP_MAYMOVE | MREMAP_FIXED, memory_.at(begin)) == MAP_FAILED) {
    ::munmap(fresh, end - begin);
    return;
  }
  try {
    const std::lock_guard lock(mutex_);
    detached_.push_back({memory_.at(begin), memory_.at(end)});
    has_detached_.store(true, std::memory_order_relaxed);
  } catch (...) {  // then collectives on it go wrong for want of a few bytes; there are none after a failure
  }
}

void segment::attach_again() noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(detached_, [this](const range& one) {
    const auto bytes = static_cast<std::size_t>(one.end - one.begin);
    const auto at = static_cast<off_t>(offset_of(one.begin));
    for (std::size_t done = 0; done < bytes;) {
      const auto n = ::pwrite(memory_.file(), one.begin + done, bytes - done, at + static_cast<off_t>(done));
      if (n <= 0) return false;  // it stays private, which is slower and no less right
      done += static_cast<std::size_t>(n);
    }
    return ::mmap(memory_.at(offset_of(one.begin)), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                  memory_.file(), at) != MAP_FAILED;
  });
  has_detached_.store(!detached_.empty(), std::memory_order_relaxed);
}

bool segment::is_detached(const std::byte* data, std::size_t bytes) const noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& one : detached_) {
    if (data < one.end && one.begin < data + bytes) return true;
  }
  return false;
}

void segment::do_deallocate(void* memory, std::size_t bytes, std::size_t) {
  if (has_detached_.load(std::memory_order_relaxed) && is_detached(static_cast<std::byte*>(memory), bytes))
    return;  // it is no place for others any more
  const std::lock_guard lock(mutex_);
  release(offset_of(memory), round_up(std::max<std::size_t>(bytes, 1), granule));
}

// Under the lock.
void segment::release(std::uint64_t at, std::size_t size) noexcept {
  const auto next = free_.lower_bound(at);
  if (next != free_.end() && at + size == next->first) {
    size += next->second;
    free_.erase(next);
  }
  auto before = free_.lower_bound(at);
  if (before != free_.begin() && std::prev(before)->first + std::prev(before)->second == at) {
    --before;
    at = before->first;
    size += before->second;
    free_.erase(before);
  }
  try {
    free_[at] = size;
  } catch (const std::bad_alloc&) {  // then it is not used again: those that give back do so on their way out
  }
  if (size >= returned_from) {
    (void)::fallocate(memory_.file(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
                      static_cast<off_t>(size));
  }
}

}}}  // namespace muster::v0::detail
