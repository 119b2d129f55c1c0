// Bilinear resizing of rows that arrive one at a time. Private to muster's own sources.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// The inputs for the outputs along an axis: output k is a mix of inputs first[k] and first[k] + 1, with weight[k] /
/// 2048 for the second input.
struct resampled_axis {
  std::vector<std::uint32_t> first, weight;

  /// Maps the range [begin, begin + size) of `inputs` inputs to `outputs` outputs.
  resampled_axis(double begin, double size, std::uint32_t inputs, std::uint32_t outputs)
      : first(outputs), weight(outputs) {
    for (std::uint32_t k = 0; k < outputs; ++k) {
      const double at = std::clamp(begin + (k + 0.5) * size / outputs - 0.5, 0.0, static_cast<double>(inputs - 1));
      const auto fixed = static_cast<std::uint32_t>(at * 2048);
      first[k] = std::min(fixed / 2048, inputs >= 2 ? inputs - 2 : 0);
      weight[k] = inputs >= 2 ? fixed - first[k] * 2048 : 0;
    }
  }
};

/// Computes the rows of an output image from rows of input bytes. Input rows are passed in order, starting at
/// first_input_row().
template <std::size_t Channels>
class resampler {
 public:
  resampler(const resampled_axis& down, const resampled_axis& across, bool flip, std::uint8_t* output)
      : down_(down), across_(across), flip_(flip), output_(output) {
    for (auto& row : rows_) row.resize(across.first.size() * Channels);
  }

  [[nodiscard]] std::size_t first_input_row() const noexcept { return down_.first.front(); }
  /// Returns true if all output rows are complete.
  [[nodiscard]] bool done() const noexcept { return finished_rows_ == down_.first.size(); }

  /// Takes input row `row`. `values` begins with pixel `offset` of the row and has all pixels that the outputs use.
  void take(std::size_t row, const std::uint8_t* values, std::size_t offset) {
    std::swap(rows_[0], rows_[1]);
    std::uint32_t* const resized = rows_[1].data();
    const std::size_t width = across_.first.size();
    for (std::size_t x = 0; x < width; ++x) {
      const std::size_t column = flip_ ? width - 1 - x : x;
      const std::uint8_t* const pixel = values + (across_.first[column] - offset) * Channels;
      const std::uint32_t weight = across_.weight[column];
      for (std::size_t c = 0; c < Channels; ++c) {
        resized[x * Channels + c] = pixel[c] * (2048 - weight) + (weight != 0 ? pixel[Channels + c] * weight : 0);
      }
    }
    // An output row with weight 0 requires a single input row, and does not wait for the next input row.
    for (; !done() && (down_.first[finished_rows_] + 1 == row ||
                       (down_.weight[finished_rows_] == 0 && down_.first[finished_rows_] == row));
         ++finished_rows_) {
      const bool single = down_.first[finished_rows_] == row;
      blend((single ? rows_[1] : rows_[0]).data(), resized, single ? 0 : down_.weight[finished_rows_]);
    }
  }

 private:
  void blend(const std::uint32_t* above, const std::uint32_t* below, std::uint32_t weight) {
    const std::size_t count = across_.first.size() * Channels;
    for (std::size_t k = 0; k < count; ++k) {
      output_[k] = static_cast<std::uint8_t>((above[k] * (2048 - weight) + below[k] * weight + (1u << 21)) >> 22);
    }
    output_ += count;
  }

  const resampled_axis& down_;
  const resampled_axis& across_;
  bool flip_;
  std::uint8_t* output_;
  std::size_t finished_rows_ = 0;
  std::vector<std::uint32_t> rows_[2];
};

}}}}  // namespace muster::v0::data::detail

#include <muster/core/detail/exact_end.hpp>
