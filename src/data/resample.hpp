// Bilinear resizing of rows that arrive one at a time. Private to muster's own sources.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace muster { inline namespace v0 { namespace detail {

/// The inputs for the outputs along an axis: output k is a mix of inputs first[k] and first[k] + 1, with weight[k] /
/// 2048 for the second input.
struct resampled_axis {
  std::vector<std::uint32_t> first, weight;

  /// Maps the range [begin, begin + size) of `from` inputs to `to` outputs.
  resampled_axis(double begin, double size, std::uint32_t from, std::uint32_t to) : first(to), weight(to) {
    for (std::uint32_t k = 0; k < to; ++k) {
      const double at = std::clamp(begin + (k + 0.5) * size / to - 0.5, 0.0, static_cast<double>(from - 1));
      const auto fixed = static_cast<std::uint32_t>(at * 2048);
      first[k] = std::min(fixed / 2048, from >= 2 ? from - 2 : 0);
      weight[k] = from >= 2 ? fixed - first[k] * 2048 : 0;
    }
  }
};

/// Computes the rows of an output image from rows of input bytes. Input rows are passed in order, starting at
/// first_row().
template <std::size_t Channels>
class resampler {
 public:
  resampler(const resampled_axis& down, const resampled_axis& across, bool flip, std::uint8_t* to)
      : down_(down), across_(across), flip_(flip), to_(to) {
    for (auto& row : rows_) row.resize(across.first.size() * Channels);
  }

  [[nodiscard]] std::size_t first_row() const noexcept { return down_.first.front(); }
  /// Returns true if all output rows are complete.
  [[nodiscard]] bool done() const noexcept { return made_ == down_.first.size(); }

  /// Takes input row `row`. `values` has the row's pixels from number `offset` on, and one more pixel after the last.
  void take(std::size_t row, const std::uint8_t* values, std::size_t offset) {
    std::swap(rows_[0], rows_[1]);
    std::uint32_t* const to = rows_[1].data();
    const std::size_t width = across_.first.size();
    for (std::size_t x = 0; x < width; ++x) {
      const std::size_t from = flip_ ? width - 1 - x : x;
      const std::uint8_t* const pixel = values + (across_.first[from] - offset) * Channels;
      const std::uint32_t weight = across_.weight[from];
      for (std::size_t c = 0; c < Channels; ++c) {
        to[x * Channels + c] = pixel[c] * (2048 - weight) + (weight != 0 ? pixel[Channels + c] * weight : 0);
      }
    }
    // An output row with weight 0 requires a single input row, and does not wait for the next input row.
    for (; !done() && (down_.first[made_] + 1 == row || (down_.weight[made_] == 0 && down_.first[made_] == row));
         ++made_) {
      const bool single = down_.first[made_] == row;
      blend((single ? rows_[1] : rows_[0]).data(), to, single ? 0 : down_.weight[made_]);
    }
  }

 private:
  void blend(const std::uint32_t* above, const std::uint32_t* below, std::uint32_t weight) {
    const std::size_t count = across_.first.size() * Channels;
    for (std::size_t k = 0; k < count; ++k) {
      to_[k] = static_cast<std::uint8_t>((above[k] * (2048 - weight) + below[k] * weight + (1u << 21)) >> 22);
    }
    to_ += count;
  }

  const resampled_axis& down_;
  const resampled_axis& across_;
  bool flip_;
  std::uint8_t* to_;
  std::size_t made_ = 0;
  std::vector<std::uint32_t> rows_[2];
};

}}}  // namespace muster::v0::detail
