// Requests by rank and tag, in which transports match messages with receives.
#pragma once

#include <bit>
#include <cstdint>
#include <new>
#include <vector>

#include <muster/comm/request_queue.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Requests by a rank and their tag. Requests with one rank and one tag keep the order in which they were pushed. A
/// search does not depend on the number of other requests. A request is in one table at most, and keeps its rank and
/// tag there. The table is linked through the requests: it allocates memory only when it grows.
class request_table {
 public:
  /// `rank` is the member of the requests by which they are found: `peer`, which may be any_source, or `source`.
  explicit request_table(int request::*rank = &request::peer) : rank_(rank), queues_(16) {}

  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  void push(request& req) noexcept {
    if (size_ >= 2 * queues_.size()) grow();
    req.order = ++pushed_;
    queue_of(req.*rank_, req.tag).push(req);
    ++size_;
    if (req.*rank_ == any_source) ++any_;
  }
  [[nodiscard]] bool contains(const request& req) const noexcept { return queue_of(req.*rank_, req.tag).contains(req); }
  /// Removes a request; returns false when it is not in the table.
  bool remove(const request& req) noexcept {
    if (!queue_of(req.*rank_, req.tag).remove(req)) return false;
    --size_;
    if (req.*rank_ == any_source) --any_;
    return true;
  }
  /// Returns the first request with that rank and tag for which `fits` is true; null when there is none.
  template <class Fits>
  [[nodiscard]] request* find(int rank, std::uint32_t tag, Fits fits) const noexcept {
    if (size_ == 0) return nullptr;
    return queue_of(rank, tag).find_first(
        [&](const request& req) { return req.*rank_ == rank && req.tag == tag && fits(req); });
  }
  /// Returns the first receive for a message with that tag from that rank, or from any rank, for which `fits` is true;
  /// null when there is none.
  template <class Fits>
  [[nodiscard]] request* find_receive(int sender, std::uint32_t tag, Fits fits) const noexcept {
    request* const named = find(sender, tag, fits);
    request* const any = any_ == 0 ? nullptr : find(any_source, tag, fits);
    if (named == nullptr || any == nullptr) return named == nullptr ? any : named;
    return any->order < named->order ? any : named;
  }

 private:
  [[nodiscard]] std::size_t index_of(int rank, std::uint32_t tag) const noexcept {
    const std::uint64_t key = std::uint64_t{tag} << 32 | static_cast<std::uint32_t>(rank);
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> (64 - std::countr_zero(queues_.size())));
  }
  [[nodiscard]] request_queue& queue_of(int rank, std::uint32_t tag) noexcept { return queues_[index_of(rank, tag)]; }
  [[nodiscard]] const request_queue& queue_of(int rank, std::uint32_t tag) const noexcept {
    return queues_[index_of(rank, tag)];
  }
  // Requests of one key stay in one queue, in their order. Without memory the queues become longer.
  void grow() noexcept {
    std::vector<request_queue> former;
    try {
      former.resize(4 * queues_.size());
    } catch (const std::bad_alloc&) {
      return;
    }
    former.swap(queues_);
    for (request_queue& queue : former) {
      while (request* const req = queue.front()) {
        queue.remove(*req);
        queue_of(req->*rank_, req->tag).push(*req);
      }
    }
  }

  int request::*rank_;
  std::vector<request_queue> queues_;  // as many as a power of two; a queue holds the requests of several keys
  std::size_t size_ = 0;
  std::size_t any_ = 0;  // number of requests from any source
  std::uint64_t pushed_ = 0;
};

}}}  // namespace muster::v0::detail
