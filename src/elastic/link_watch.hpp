// What the traffic of the last steps shows of this rank's connections, and which is the slowest.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <muster/comm/transport.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Looks once a step, and says once every some steps. Used by the thread that is the rank.
class link_watch {
 public:
  /// Of a rank, the best that was seen of its connection, but for one fifth of the steps.
  struct seen_link {
    int peer = -1;
    link_quality quality;
  };
  /// Of the last steps: the slowest connection of those over which much went, with another peer than -1 where there is
  /// one, what the best of those carries in its worst fifth of the steps, and all over which anything went.
  struct judgement {
    seen_link slowest;
    double usual = 0;
    std::vector<seen_link> all;
  };

  /// A new group, and of how many steps each judgement is.
  void begin(int size, std::size_t steps) {
    steps_ = std::max<std::size_t>(steps / pieces, 1);
    seen_ = 0;
    turn_ = 0;
    links_.assign(static_cast<std::size_t>(size), {});
  }
  /// After a step; a judgement at each fifth of the steps that it is of. What the system measures of one step is mostly
  /// chance where cores are shared: a connection is slow if it was in all steps of four fifths.
  template <class Transport>
  std::optional<judgement> look(Transport& over) {
    // A system call each, so a step of a large job has some of them.
    const std::size_t looks = std::min(links_.size(), most_looks);
    const std::size_t piece = seen_ / steps_ % pieces;
    for (std::size_t k = 0; k < looks; ++k, ++turn_) {
      const auto peer = turn_ % links_.size();
      auto& link = links_[peer];
      const link_quality now = over.quality(static_cast<int>(peer));
      if (!link.known) link.sent.fill(now.sent);
      link.known = true;
      link.rates[piece] = std::max(link.rates[piece], now.bandwidth);
      link.last = now;
    }
    if (++seen_ % steps_ != 0) return std::nullopt;
    const std::size_t oldest = (piece + 1) % pieces;
    auto made = seen_ >= pieces * steps_ ? std::optional(judge(oldest)) : std::nullopt;
    for (auto& link : links_) {
      link.rates[oldest] = 0;
      link.sent[oldest] = link.last.sent;
    }
    return made;
  }

 private:
  static constexpr std::size_t pieces = 5;
  static constexpr std::size_t most_looks = 64;
  /// Bytes in the steps of a judgement: with fewer the connection waits for the rank, whatever it could do.
  static constexpr std::uint64_t of_no_matter = std::uint64_t{1} << 20;
  struct watched {
    bool known = false;
    std::array<double, pieces> rates{};        // the best of each fifth
    std::array<std::uint64_t, pieces> sent{};  // before it
    link_quality last;
  };

  [[nodiscard]] judgement judge(std::size_t oldest) const {
    judgement made;
    std::uint64_t most = 0;
    for (std::size_t peer = 0; peer < links_.size(); ++peer) {
      const auto& link = links_[peer];
      auto rates = link.rates;
      std::ranges::sort(rates, std::greater());
      const link_quality best{.sent = link.last.sent - std::min(link.last.sent, link.sent[oldest]),
                              .bandwidth = rates[1],
                              .latency = link.last.latency};
      most = std::max(most, best.sent);
      if (best.sent > 0 && best.bandwidth > 0) made.all.push_back({static_cast<int>(peer), best});
    }
    for (const auto& one : made.all) {
      const bool counts = one.quality.sent >= of_no_matter && one.quality.sent >= most / 4;
      if (!counts) continue;
      if (made.slowest.peer < 0 || one.quality.bandwidth < made.slowest.quality.bandwidth) made.slowest = one;
      made.usual = std::max(made.usual, std::ranges::min(links_[static_cast<std::size_t>(one.peer)].rates));
    }
    return made;
  }

  std::vector<watched> links_;
  std::size_t steps_ = 1;  // of a fifth
  std::size_t seen_ = 0;
  std::size_t turn_ = 0;
};

}}}  // namespace muster::v0::detail
