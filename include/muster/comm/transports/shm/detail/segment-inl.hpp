#pragma once

#include <muster/comm/transports/shm/segment.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/round_up.hpp>

namespace muster { inline namespace v0 { namespace detail {
// unit of allocations: no two allocations share a page
inline constexpr std::size_t allocation_unit = 4096;
inline constexpr std::size_t growth_unit = std::size_t{1} << 20;  // the file grows in such units
// free ranges from this size on return their pages to the system
inline constexpr std::size_t punch_threshold = std::size_t{1} << 20;

inline descriptor make_file() {
  descriptor file(::memfd_create("muster", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) {
    throw error(error_kind::other, std::string("cannot create a memory file (") + std::strerror(errno) +
                                       "); the shm transport needs memfd_create; use another transport");
  }
  // The system would kill a peer that reads beyond the end. A file that cannot shrink has no addresses beyond its end
  // that were once valid.
  ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK);
  return file;
}

MUSTER_INLINE mapping::mapping(descriptor file, std::size_t reserve) : file_(std::move(file)), reserve_(reserve) {
  void* const base = ::mmap(nullptr, reserve, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_.get(), 0);
  if (base == MAP_FAILED) {
    throw error(error_kind::other, "cannot reserve " + std::to_string(reserve >> 20) +
                                       " MiB of addresses for shared memory (" + std::strerror(errno) +
                                       "); raise the limit (ulimit -v) or use --transport tcp");
  }
  base_ = {static_cast<std::byte*>(base), {reserve}};
}

MUSTER_INLINE void mapping::unmapping::operator()(std::byte* base) const noexcept {
  if (bytes > 0) ::munmap(base, bytes);
}

MUSTER_INLINE mapping mapping::alias() const noexcept {
  mapping copy;
  copy.base_.reset(base_.get());
  copy.reserve_ = reserve_;
  return copy;
}

MUSTER_INLINE segment::segment(std::size_t reserve) : memory_(make_file(), reserve) {}

MUSTER_INLINE std::uint64_t segment::grow(std::size_t bytes) {
  const std::uint64_t offset = size_;
  const std::size_t added = round_up(bytes, growth_unit);
  if (added > memory_.reserve() - size_) throw std::bad_alloc();
  if (::ftruncate(memory_.file(), static_cast<off_t>(size_ + added)) != 0) {
    if (errno != EFBIG) throw std::bad_alloc();
    throw error(error_kind::other, "shared memory cannot have " + std::to_string((size_ + added) >> 20) +
                                       " MiB (shared memory is a file, and the limit of file sizes is lower); raise "
                                       "the limit (ulimit -f) or use --transport tcp");
  }
  size_ += added;
  if (added > bytes) free_[offset + bytes] = added - bytes;
  return offset;
}

MUSTER_INLINE void* segment::do_allocate(std::size_t bytes, std::size_t alignment) {
  if (alignment > allocation_unit || bytes > memory_.reserve()) throw std::bad_alloc();
  const std::size_t size = round_up(std::max<std::size_t>(bytes, 1), allocation_unit);
  const std::lock_guard lock(mutex_);
  auto found = free_.begin();
  while (found != free_.end() && found->second < size) ++found;
  std::uint64_t offset = 0;
  if (found == free_.end()) {
    offset = grow(size);
  } else {
    offset = found->first;
    const std::size_t rest = found->second - size;
    free_.erase(found);
    if (rest > 0) free_[offset + size] = rest;
  }
  // Allocates the pages now, rather than singly inside a collective. Missing memory is then an exception here, and not
  // a fatal signal later.
  if (::fallocate(memory_.file(), 0, static_cast<off_t>(offset), static_cast<off_t>(size)) != 0 &&
      (errno == ENOSPC || errno == ENOMEM)) {
    release(offset, size);
    throw std::bad_alloc();
  }
#ifdef MADV_POPULATE_WRITE
  (void)::madvise(memory_.at(offset), size, MADV_POPULATE_WRITE);  // a hint, since Linux 5.14
#endif
  return memory_.at(offset);
}

MUSTER_INLINE void segment::detach(void* address, std::size_t bytes) noexcept {
  const std::uint64_t begin = offset_of(address) / allocation_unit * allocation_unit;
  const std::uint64_t end = round_up(offset_of(address) + bytes, allocation_unit);
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
    // without memory for the entry, later collectives on this range are wrong; after a failure there are none
  } catch (...) {
  }
}

MUSTER_INLINE void segment::attach_again() noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(detached_, [this](const range& entry) {
    const auto bytes = static_cast<std::size_t>(entry.end - entry.begin);
    const auto offset = static_cast<off_t>(offset_of(entry.begin));
    for (std::size_t done = 0; done < bytes;) {
      const auto n = ::pwrite(memory_.file(), entry.begin + done, bytes - done, offset + static_cast<off_t>(done));
      if (n <= 0) return false;  // the range stays private, which is slower and still correct
      done += static_cast<std::size_t>(n);
    }
    return ::mmap(memory_.at(offset_of(entry.begin)), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                  memory_.file(), offset) != MAP_FAILED;
  });
  std::erase_if(retired_, [this](const range& area) {
    const auto bytes = static_cast<std::size_t>(area.end - area.begin);
    const auto offset = offset_of(area.begin);
    if (::mmap(memory_.at(offset), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory_.file(),
               static_cast<off_t>(offset)) == MAP_FAILED)
      return false;
    release(offset, bytes);
    return true;
  });
  has_detached_.store(!detached_.empty(), std::memory_order_relaxed);
}

MUSTER_INLINE bool segment::is_detached(const std::byte* address, std::size_t bytes) const noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& entry : detached_) {
    if (address < entry.end && entry.begin < address + bytes) return true;
  }
  return false;
}

MUSTER_INLINE void segment::do_deallocate(void* memory, std::size_t bytes, std::size_t) {
  const std::size_t size = round_up(std::max<std::size_t>(bytes, 1), allocation_unit);
  const bool was_detached =
      has_detached_.load(std::memory_order_relaxed) && is_detached(static_cast<std::byte*>(memory), bytes);
  const std::lock_guard lock(mutex_);
  const auto* const begin = static_cast<std::byte*>(memory);
  was_detached ? discard_pages({begin, begin + size}) : release(offset_of(memory), size);
}

// Returns the pages of a deallocated range to the system, and keeps the range until `attach_again`, because peers may
// still write there. Called with mutex_ held.
MUSTER_INLINE void segment::discard_pages(const range& area) noexcept {
  const auto bytes = static_cast<std::size_t>(area.end - area.begin);
  const auto offset = offset_of(area.begin);
  try {
    retired_.push_back(area);
  } catch (const std::bad_alloc&) {  // the range is then not reused
  }
  std::erase_if(detached_, [&](const range& entry) { return entry.begin >= area.begin && entry.end <= area.end; });
  (void)::madvise(memory_.at(offset), bytes, MADV_DONTNEED);
  (void)::fallocate(memory_.file(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                    static_cast<off_t>(bytes));
}

// Adds a range to the free list. Called with mutex_ held.
MUSTER_INLINE void segment::release(std::uint64_t offset, std::size_t size) noexcept {
  const auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + size == next->first) {
    size += next->second;
    free_.erase(next);
  }
  auto before = free_.lower_bound(offset);
  if (before != free_.begin() && std::prev(before)->first + std::prev(before)->second == offset) {
    --before;
    offset = before->first;
    size += before->second;
    free_.erase(before);
  }
  try {
    free_[offset] = size;
  } catch (const std::bad_alloc&) {  // the range is then not reused; callers that release memory cannot handle an error
  }
  if (size >= punch_threshold) {
    (void)::fallocate(memory_.file(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                      static_cast<off_t>(size));
  }
}

}}}  // namespace muster::v0::detail
