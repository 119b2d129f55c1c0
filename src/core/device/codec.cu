#include <muster/core/device/codec.hpp>

#include <bit>
#include <string>

#include <muster/core/codec/codec.hpp>
#include <muster/core/error.hpp>

#include "launch.hpp"

namespace muster::inline v0 {
namespace {

// ---- 16-bit floating point ----

template <class From, class To>
struct converted {
  const From* from;
  To* to;
  constexpr void operator()(std::size_t i) const { to[i] = To(static_cast<float>(from[i])); }
};

template <class From>
struct converted_and_added {
  const From* from;
  float weight;
  float* to;
  constexpr void operator()(std::size_t i) const { to[i] += weight * static_cast<float>(from[i]); }
};

template <class From, class To>
void convert_all(device_span<const From> from, device_span<To> to, device_stream_ref stream) {
  detail::require_same_size(from.size(), to.size());
  detail::for_each(stream, from.size(), converted<From, To>{from.data(), to.data()});
}

// ---- top-k ----

// As whole numbers magnitudes are in the order of the magnitudes, with NaN above all.
constexpr std::uint32_t magnitude(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu; }

/// What is known of the smallest magnitude that is sent: its digits so far, and how many of that magnitude are.
struct threshold {
  std::uint32_t prefix;
  std::uint32_t wanted;
};

/// Values before a place that are above the threshold, and that are at it.
struct tally {
  std::uint32_t above;
  std::uint32_t at;
};

constexpr std::uint32_t bits_a_digit = 11;  // of device_digits values
constexpr std::size_t tile = 32;            // values that one thread looks at: a line of 128 bytes
constexpr std::size_t branch = 128;         // tallies that one thread adds up
constexpr int most_levels = 6;

constexpr std::size_t parts(std::size_t size, std::size_t of) { return (size + of - 1) / of; }

/// Tallies in levels: by tile, by `branch` of these, and so on to a single one. Within its branch each is the sum of
/// those before it, so a tile's place is the sum of one of each level.
struct levels {
  tally* of[most_levels] = {};
  int count = 0;

  [[nodiscard]] constexpr tally before(std::size_t tile_number) const {
    tally sum{0, 0};
    std::size_t at = tile_number;
    for (int level = 0; level < count; ++level) {
      sum.above += of[level][at].above;
      sum.at += of[level][at].at;
      at /= branch;
    }
    return sum;
  }
};

struct digit_of {
  const float* values;
  const threshold* known;
  std::uint32_t shift;
  std::uint32_t width;
  bool first;
  constexpr std::uint32_t operator()(std::size_t i) const {
    const std::uint32_t bits = magnitude(values[i]);
    if (!first && bits >> (shift + width) != known->prefix) return detail::device_digits;  // counted nowhere
    return bits >> shift & ((std::uint32_t{1} << width) - 1);
  }
};

/// Finds the digit in which the wanted-th largest lies, and clears the counters.
struct next_digit {
  std::uint32_t* counts;
  threshold* known;
  std::uint32_t width;
  constexpr void operator()(std::size_t) const {
    std::uint32_t digit = (std::uint32_t{1} << width) - 1;
    while (digit > 0 && counts[digit] < known->wanted) known->wanted -= counts[digit--];
    known->prefix = known->prefix << width | digit;
    for (std::uint32_t i = 0; i < detail::device_digits; ++i) counts[i] = 0;
  }
};

struct begin_threshold {
  threshold* known;
  std::uint32_t* counts;
  std::uint32_t wanted;
  constexpr void operator()(std::size_t i) const {
    counts[i] = 0;
    if (i == 0) *known = {0, wanted};
  }
};

struct tally_tile {
  const float* values;
  std::size_t size;
  const threshold* known;
  tally* tallies;
  constexpr void operator()(std::size_t k) const {
    const std::size_t end = size < (k + 1) * tile ? size : (k + 1) * tile;
    tally mine{0, 0};
    for (std::size_t i = k * tile; i < end; ++i) {
      const std::uint32_t bits = magnitude(values[i]);
      mine.above += bits > known->prefix ? 1 : 0;
      mine.at += bits == known->prefix ? 1 : 0;
    }
    tallies[k] = mine;
  }
};

/// Turns the tallies of a branch into sums of those before each, and passes the sum of all on.
struct sum_branch {
  tally* tallies;
  std::size_t size;
  tally* next;  // null at the last level
  constexpr void operator()(std::size_t k) const {
    const std::size_t end = size < (k + 1) * branch ? size : (k + 1) * branch;
    tally sum{0, 0};
    for (std::size_t i = k * branch; i < end; ++i) {
      const tally here = tallies[i];
      tallies[i] = sum;
      sum.above += here.above;
      sum.at += here.at;
    }
    if (next != nullptr) next[k] = sum;
  }
};

struct write_tile {
  const float* values;
  std::size_t size;
  const threshold* known;
  levels tallies;
  std::uint32_t* indices;
  float* sent;
  constexpr void operator()(std::size_t k) const {
    const std::size_t end = size < (k + 1) * tile ? size : (k + 1) * tile;
    tally before = tallies.before(k);
    const std::uint32_t ties = known->wanted;  // of equal ones those that come first
    for (std::size_t i = k * tile; i < end; ++i) {
      const std::uint32_t bits = magnitude(values[i]);
      const bool above = bits > known->prefix;
      const bool at = bits == known->prefix;
      if (above || (at && before.at < ties)) {
        const std::uint32_t place = before.above + (before.at < ties ? before.at : ties);
        indices[place] = static_cast<std::uint32_t>(i);
        sent[place] = values[i];
      }
      before.above += above ? 1 : 0;
      before.at += at ? 1 : 0;
    }
  }
};

struct add_sent {
  const std::uint32_t* indices;
  const float* sent;
  float weight;
  float* sums;
  std::size_t size;
  constexpr void operator()(std::size_t k) const {
    if (indices[k] < size) sums[indices[k]] += weight * sent[k];
  }
};

struct zero_sent {
  const std::uint32_t* indices;
  float* values;
  std::size_t size;
  constexpr void operator()(std::size_t k) const {
    if (indices[k] < size) values[indices[k]] = 0.0f;
  }
};

// The scratch memory: the threshold, the counters, and the tallies level by level.
constexpr std::size_t words_of_threshold = sizeof(threshold) / sizeof(std::uint32_t);
constexpr std::size_t words_of_tally = sizeof(tally) / sizeof(std::uint32_t);

std::size_t scratch_words(std::size_t largest) {
  std::size_t words = words_of_threshold + detail::device_digits;
  for (std::size_t size = parts(largest, tile);; size = parts(size, branch)) {
    words += size * words_of_tally;
    if (size <= branch) return words;
  }
}

void require_bytes(std::size_t is, std::size_t must_be) {
  if (is == must_be) return;
  throw configuration_error("top-k on a device cannot use " + std::to_string(is) + " bytes (the encoded form has " +
                            std::to_string(must_be) + "); ask encoded_bytes");
}

}  // namespace

void convert(device_span<const float> from, device_span<float16> to, device_stream_ref stream) {
  convert_all(from, to, stream);
}
void convert(device_span<const float16> from, device_span<float> to, device_stream_ref stream) {
  convert_all(from, to, stream);
}
void convert(device_span<const float> from, device_span<bfloat16> to, device_stream_ref stream) {
  convert_all(from, to, stream);
}
void convert(device_span<const bfloat16> from, device_span<float> to, device_stream_ref stream) {
  convert_all(from, to, stream);
}
void convert_add(device_span<const float16> from, float weight, device_span<float> to, device_stream_ref stream) {
  detail::require_same_size(from.size(), to.size());
  detail::for_each(stream, from.size(), converted_and_added<float16>{from.data(), weight, to.data()});
}
void convert_add(device_span<const bfloat16> from, float weight, device_span<float> to, device_stream_ref stream) {
  detail::require_same_size(from.size(), to.size());
  detail::for_each(stream, from.size(), converted_and_added<bfloat16>{from.data(), weight, to.data()});
}

device_topk::device_topk(double share, std::size_t largest)
    : share_(share), largest_(largest), scratch_(scratch_words(largest)) {
  (void)elements_of_share(share, 1);
  if (largest >= std::size_t{1} << 32) {
    throw configuration_error("top-k cannot take " + std::to_string(largest) +
                              " values on a device (it counts in 32 bits); split them");
  }
}

std::size_t device_topk::encoded_bytes(std::size_t count) const {
  return elements_of_share(share_, count) * (sizeof(std::uint32_t) + sizeof(float));
}

void device_topk::encode(device_span<const float> values, device_span<std::byte> encoded, device_stream_ref stream) {
  const std::size_t size = values.size();
  require_bytes(encoded.size(), encoded_bytes(size));
  if (size > largest_) {
    throw configuration_error("top-k cannot encode " + std::to_string(size) + " values (it was made for " +
                              std::to_string(largest_) + "); make it for the largest span");
  }
  if (size == 0) return;
  const std::size_t chosen = elements_of_share(share_, size);
  auto* const known = reinterpret_cast<threshold*>(scratch_.span().data());
  auto* const counts = scratch_.span().data() + words_of_threshold;

  detail::for_each(stream, detail::device_digits, begin_threshold{known, counts, static_cast<std::uint32_t>(chosen)});
  for (std::uint32_t shift = 31; shift > 0;) {  // 11, 11 and 9 bits
    const std::uint32_t width = shift < bits_a_digit ? shift : bits_a_digit;
    const bool first = shift == 31;
    shift -= width;
    detail::count_digits(stream, size, digit_of{values.data(), known, shift, width, first}, counts);
    detail::for_each(stream, 1, next_digit{counts, known, width});
  }

  levels all;
  auto* tallies = reinterpret_cast<tally*>(counts + detail::device_digits);
  std::size_t here = parts(size, tile);
  detail::for_each(stream, here, tally_tile{values.data(), size, known, tallies});
  for (;;) {
    all.of[all.count++] = tallies;
    tally* const next = here <= branch ? nullptr : tallies + here;
    detail::for_each(stream, parts(here, branch), sum_branch{tallies, here, next});
    if (next == nullptr) break;
    tallies = next;
    here = parts(here, branch);
  }
  auto* const indices = reinterpret_cast<std::uint32_t*>(encoded.data());
  auto* const sent = reinterpret_cast<float*>(indices + chosen);
  detail::for_each(stream, parts(size, tile), write_tile{values.data(), size, known, all, indices, sent});
}

void device_topk::decode_add(device_span<const std::byte> encoded, float weight, device_span<float> sums,
                             device_stream_ref stream) const {
  require_bytes(encoded.size(), encoded_bytes(sums.size()));
  const std::size_t chosen = elements_of_share(share_, sums.size());
  const auto* const indices = reinterpret_cast<const std::uint32_t*>(encoded.data());
  const auto* const sent = reinterpret_cast<const float*>(indices + chosen);
  detail::for_each(stream, chosen, add_sent{indices, sent, weight, sums.data(), sums.size()});
}

void device_topk::clear_sent(device_span<const std::byte> encoded, device_span<float> values,
                             device_stream_ref stream) const {
  require_bytes(encoded.size(), encoded_bytes(values.size()));
  const auto* const indices = reinterpret_cast<const std::uint32_t*>(encoded.data());
  detail::for_each(stream, elements_of_share(share_, values.size()), zero_sent{indices, values.data(), values.size()});
}

}  // namespace muster::inline v0
