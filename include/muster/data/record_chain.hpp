// A source and the steps behind it, as one thing that makes records: the typed part of a pipeline.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/core/buffer.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/random.hpp>
#include <muster/data/record_source.hpp>
#include <muster/data/record_transform.hpp>

namespace muster::inline v0::detail {

/// What one thread keeps between pieces of batches, so that it allocates nothing: a level for each step of a chain.
class chain_scratch {
 public:
  struct level {
    buffer<std::byte> bytes;
    buffer<std::byte> aligned;
    std::vector<std::span<const std::byte>> views;
    std::vector<std::uint64_t> sizes;
    std::vector<sample_id> ids;
    std::vector<std::size_t> places;
    std::vector<float> labels;

    /// `size` bytes, at least one, so that no view of them is null.
    [[nodiscard]] std::span<std::byte> room(std::size_t size) {
      if (bytes.size() < std::max<std::size_t>(size, 1)) bytes = buffer<std::byte>(std::max<std::size_t>(size, 1));
      return bytes.span().first(size);
    }
  };

  [[nodiscard]] level& operator[](std::size_t depth) {
    if (levels_.size() <= depth) levels_.resize(depth + 1);
    return levels_[depth];
  }
  /// Before the first use: references to levels stay good.
  void reserve(std::size_t depth) { levels_.resize(std::max(levels_.size(), depth)); }

 private:
  std::vector<level> levels_;
};

/// The piece of a batch that is asked for. What is bad is appended to `bad`, and null there.
struct chain_request {
  std::span<const sample_id> ids;
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  std::span<float> labels;                 ///< to fill; empty: none
  std::vector<bad_record>* bad = nullptr;  ///< null: a bad record is a data_error

  [[nodiscard]] bool is_bad(sample_id id) const noexcept {
    return bad != nullptr &&
           std::any_of(bad->begin(), bad->end(), [&](const bad_record& record) { return record.id == id; });
  }
  /// Labels of so many ids from the `first` on.
  [[nodiscard]] std::span<float> labels_of(std::size_t first, std::size_t count) const noexcept {
    const std::size_t width = ids.empty() ? 0 : labels.size() / ids.size();
    return labels.subspan(first * width, count * width);
  }
};

/// What every step of a chain can do. `depth` counts the steps behind it.
template <class T>
concept record_chain = requires(const T& chain, const chain_request& request, std::span<std::byte> bytes,
                                std::span<std::span<const std::byte>> views, std::span<std::uint64_t> sizes,
                                chain_scratch& scratch) {
  { T::depth } -> std::convertible_to<std::size_t>;
  { T::randoms } -> std::convertible_to<std::size_t>;  // steps that are left to chance: another record in another epoch
  { chain.schema() } -> std::convertible_to<const record_schema&>;
  { chain.version() } -> std::convertible_to<std::uint64_t>;  // of what is done to the source's records; 0: unknown
  chain.sizes(request.ids, sizes);
  chain.read(request, bytes, scratch);   // one behind another; bad ones take room too
  chain.views(request, views, scratch);  // where they lie; null for bad ones; good until the scratch is used again
  chain.source();
};

/// Asks the processor for a record that comes next: in shuffled order it cannot foresee which.
inline void fetch_ahead(std::span<const std::byte> record) noexcept {
  constexpr std::size_t line = 64;
  constexpr std::size_t most = 64 * line;  // the rest is foreseen
  for (std::size_t at = 0; at < std::min(record.size(), most); at += line) __builtin_prefetch(record.data() + at, 0, 2);
}

/// The start of a chain.
template <record_source Source>
class source_step {
 public:
  static constexpr std::size_t depth = 0;
  static constexpr std::size_t randoms = 0;

  // Of nothing that converts to a source: any_record_source would otherwise ask whether this step is one.
  template <std::same_as<Source> Given>
  explicit source_step(Given source) : source_(std::move(source)) {}

  [[nodiscard]] const Source& source() const noexcept { return source_; }
  void replace(Source source) { source_ = std::move(source); }
  [[nodiscard]] const record_schema& schema() const { return source_.schema(); }
  [[nodiscard]] std::uint64_t version() const noexcept { return 1; }
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const { source_.sizes(ids, out); }

  void read(const chain_request& request, std::span<std::byte> bytes, chain_scratch& scratch) const {
    const std::size_t record = schema().record_bytes();
    if (!mapped() || record == 0) return source_.read(request.ids, {bytes, record, request.labels}, request.bad);
    // Where records lie is known before they are copied: the next one is on its way meanwhile.
    auto& mine = scratch[depth];
    mine.views.resize(request.ids.size());
    views_of_memory(request, mine.views);
    for (std::size_t k = 0; k < request.ids.size(); ++k) {
      if (k + 1 < request.ids.size()) fetch_ahead(mine.views[k + 1]);
      if (mine.views[k].data() != nullptr) std::memcpy(bytes.data() + k * record, mine.views[k].data(), record);
    }
  }

  void views(const chain_request& request, std::span<std::span<const std::byte>> out, chain_scratch& scratch) const {
    if (mapped()) return views_of_memory(request, out);
    auto& mine = scratch[depth];
    mine.sizes.resize(request.ids.size());
    source_.sizes(request.ids, mine.sizes);
    std::size_t all = 0;
    for (const std::uint64_t size : mine.sizes) all += size;
    const auto bytes = mine.room(all);
    read(request, bytes, scratch);
    std::size_t begin = 0;
    for (std::size_t k = 0; k < out.size(); ++k) {
      out[k] = request.is_bad(request.ids[k]) ? std::span<const std::byte>()
                                              : std::span<const std::byte>(bytes.data() + begin, mine.sizes[k]);
      begin += mine.sizes[k];
    }
  }

 private:
  static constexpr bool views_by_batch =
      requires(const Source& s, std::span<const sample_id> ids, std::span<std::span<const std::byte>> out,
               std::vector<bad_record>* bad) {
    s.views(ids, out, bad);
  };

  [[nodiscard]] bool mapped() const {
    if constexpr (views_by_batch || mapped_record_source<Source>) return source_.mapped();
    return false;
  }

  void views_of_memory(const chain_request& request, std::span<std::span<const std::byte>> out) const {
    if constexpr (views_by_batch) {
      source_.views(request.ids, out, request.bad);
    } else if constexpr (mapped_record_source<Source>) {
      for (std::size_t k = 0; k < out.size(); ++k) {
        try {
          out[k] = source_.view(request.ids[k]);
        } catch (const data_error& error) {
          if (request.bad == nullptr) throw;
          request.bad->push_back({request.ids[k], error.where(), error.problem()});
          out[k] = {};
        }
      }
    }
    if (request.labels.empty()) return;
    std::vector<bad_record> known;  // they were told just now
    source_.read(request.ids, {{}, 0, request.labels}, request.bad == nullptr ? nullptr : &known);
  }

  Source source_;
};

/// What map() and augment() put on a chain. `Random` is whether F gets a stream.
template <class Inner, class F, bool Random>
class transform_step {
 public:
  static constexpr std::size_t depth = Inner::depth + 1;
  static constexpr std::size_t randoms = Inner::randoms + (Random ? 1 : 0);

  transform_step(Inner inner, F f) : inner_(std::move(inner)), f_(std::move(f)) { look(); }

  [[nodiscard]] const auto& source() const noexcept { return inner_.source(); }
  template <class Source>
  void replace(Source source) {
    inner_.replace(std::move(source));
    look();
  }
  [[nodiscard]] const record_schema& schema() const noexcept { return schema_; }
  [[nodiscard]] std::uint64_t version() const {
    if constexpr (Random) {
      return 0;
    } else {
      const std::uint64_t before = inner_.version();
      const std::uint64_t own = f_.version();
      return before == 0 || own == 0 ? 0 : digest().add(before).add(own).add(to_string(schema_)).value();
    }
  }
  [[nodiscard]] auto statistics() const requires requires(const Inner& inner) { inner.statistics(); }
  { return inner_.statistics(); }
  void sizes(std::span<const sample_id>, std::span<std::uint64_t> out) const {
    std::fill(out.begin(), out.end(), record_bytes_);
  }

  void read(const chain_request& request, std::span<std::byte> bytes, chain_scratch& scratch) const {
    auto& mine = scratch[depth];
    mine.views.resize(request.ids.size());
    inner_.views(request, mine.views, scratch);
    for (std::size_t k = 0; k < request.ids.size(); ++k) {
      if (k + 1 < request.ids.size()) fetch_ahead(mine.views[k + 1]);
      if (mine.views[k].data() == nullptr) continue;
      apply(request, k, aligned(mine.views[k], mine), bytes.subspan(k * record_bytes_, record_bytes_));
    }
  }

  void views(const chain_request& request, std::span<std::span<const std::byte>> out, chain_scratch& scratch) const {
    const auto bytes = scratch[depth].room(request.ids.size() * record_bytes_);
    const std::size_t bad_before = request.bad == nullptr ? 0 : request.bad->size();
    read(request, bytes, scratch);
    const bool any_bad = request.bad != nullptr && request.bad->size() != bad_before;
    for (std::size_t k = 0; k < out.size(); ++k) {
      out[k] = {bytes.data() + k * record_bytes_, record_bytes_};
      if (any_bad && request.is_bad(request.ids[k])) out[k] = {};
    }
  }

 private:
  static constexpr std::string_view name = Random ? "augment" : "map";

  void look() {
    schema_ = f_.output(inner_.schema());
    record_bytes_ = schema_.record_bytes();
    if (schema_.form != record_form::fixed || record_bytes_ == 0) {
      throw configuration_error("the function of " + std::string(name) + "() makes records of " + to_string(schema_) +
                                " (they must be of fixed form, and not empty); give it a shape");
    }
    alignment_ = 1;
    for (const record_field& field : inner_.schema().fields) alignment_ = std::max(alignment_, size_of(field.type));
    if (inner_.schema().form == record_form::sparse) alignment_ = alignof(sparse_entry);
  }

  /// `view`, or a copy of it where elements may lie.
  [[nodiscard]] std::span<const std::byte> aligned(std::span<const std::byte> view, chain_scratch::level& mine) const {
    if (reinterpret_cast<std::uintptr_t>(view.data()) % alignment_ == 0) return view;
    if (mine.aligned.size() < view.size()) mine.aligned = buffer<std::byte>(view.size());
    std::memcpy(mine.aligned.data(), view.data(), view.size());
    return mine.aligned.span().first(view.size());
  }

  void apply(const chain_request& request, std::size_t k, std::span<const std::byte> from,
             std::span<std::byte> to) const {
    const sample_id id = request.ids[k];
    try {
      if constexpr (Random) {
        // No other use of the seed meets these numbers, and a step that is not random changes nothing of them.
        constexpr std::uint64_t purpose = 0x6175676d656e7400ULL + randoms;
        random_stream random(mix(request.seed ^ purpose) + request.epoch, id);
        f_(from, to, random);
      } else {
        f_(from, to);
      }
    } catch (const data_error& error) {
      if (request.bad == nullptr) throw;
      request.bad->push_back({id, error.where(), error.problem()});
    } catch (const std::exception& error) {
      std::throw_with_nested(data_error({std::string(inner_.source().name())},
                                        "record " + std::to_string(id) + " made " + std::string(name) + "() fail (" +
                                            error.what() + "); mend the function or the record"));
    }
  }

  Inner inner_;
  F f_;
  record_schema schema_;
  std::size_t record_bytes_ = 0;
  std::size_t alignment_ = 1;
};

}  // namespace muster::inline v0::detail
