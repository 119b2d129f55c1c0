// Which of this rank's connections is the slowest, as the traffic of the last steps shows it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include <muster/comm/transport.hpp>

namespace muster::inline v0::detail {

/// Looks once a step, and says once every some steps. Used by the thread that is the rank.
class link_watch {
 public:
  /// Of a rank, the best that was seen of its connection.
  struct seen_link {
    int peer = -1;
    link_quality quality;
  };

  /// A new group, and how many steps each judgement is of.
  void begin(int size, std::size_t steps) {
    steps_ = steps;
    seen_ = 0;
    turn_ = 0;
    links_.assign(static_cast<std::size_t>(size), {});
  }
  /// After a step. Of the last of so many, the slowest connection of those over which much went; another peer or none
  /// where nothing did.
  template <class Transport>
  std::optional<seen_link> look(Transport& over) {
    // A system call each, so a step of a large job has some of them.
    const std::size_t looks = std::min(links_.size(), most_looks);
    for (std::size_t k = 0; k < looks; ++k, ++turn_) {
      const auto peer = turn_ % links_.size();
      auto& link = links_[peer];
      const link_quality now = over.quality(static_cast<int>(peer));
      if (!link.known) link.before = now.sent;
      link.known = true;
      link.best.bandwidth = std::max(link.best.bandwidth, now.bandwidth);
      link.best.latency = now.latency;
      link.best.sent = now.sent - std::min(now.sent, link.before);
    }
    if (++seen_ < steps_) return std::nullopt;
    seen_ = 0;
    std::uint64_t most = 0;
    for (const auto& link : links_) most = std::max(most, link.best.sent);
    seen_link slowest;
    for (std::size_t peer = 0; peer < links_.size(); ++peer) {
      const auto& best = links_[peer].best;
      const bool counts = best.sent >= of_no_matter && best.sent >= most / 4 && best.bandwidth > 0;
      if (counts && (slowest.peer < 0 || best.bandwidth < slowest.quality.bandwidth))
        slowest = {static_cast<int>(peer), best};
    }
    for (auto& link : links_) link = {};
    return slowest;
  }

 private:
  static constexpr std::size_t most_looks = 64;
  /// Bytes in the steps of a judgement: with fewer the connection waits for the rank, whatever it could do.
  static constexpr std::uint64_t of_no_matter = std::uint64_t{1} << 20;
  struct watched {
    bool known = false;
    std::uint64_t before = 0;
    link_quality best;
  };
  std::vector<watched> links_;
  std::size_t steps_ = 1;
  std::size_t seen_ = 0;
  std::size_t turn_ = 0;
};

}  // namespace muster::inline v0::detail
