// source | shuffle(seed) | batch(global) | map(f) | cache(...) | augment(g) | prefetch(k): what a loader is made of.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include <muster/data/any_loader.hpp>
#include <muster/data/bad_records.hpp>
#include <muster/data/cache.hpp>
#include <muster/data/loader.hpp>
#include <muster/data/record_chain.hpp>
#include <muster/data/record_source.hpp>
#include <muster/data/record_transform.hpp>

namespace muster::inline v0 {

/// A step of a pipeline: every record becomes f(record), the same in every epoch. See record_transform and each().
template <record_transform F>
struct map {
  F function;
  explicit map(F f) : function(std::move(f)) {}
};

/// A step of a pipeline: every record becomes g(record, random), another one in every epoch. See record_augmentation.
template <record_augmentation G>
struct augment {
  G function;
  explicit augment(G g) : function(std::move(g)) {}
};

/// A step of a pipeline: up to `batches` batches are made ahead, by threads; it comes last.
struct prefetch {
  prefetch_options options;
  explicit constexpr prefetch(std::size_t batches) noexcept : options{.batches = batches} {}
  explicit constexpr prefetch(const prefetch_options& asked) noexcept : options(asked) {}
};

/// A step of a pipeline: what to do about bad records. Without it the first one ends the run.
struct on_bad_records {
  bad_record_options options;
  explicit on_bad_records(bad_record_options asked) : options(std::move(asked)) {}
};

namespace detail {

template <record_chain Chain>
struct chain_producer final : record_producer {
  explicit chain_producer(Chain made) : chain(std::move(made)) {}
  [[nodiscard]] std::string_view name() const override { return chain.source().name(); }
  [[nodiscard]] const record_schema& schema() const override { return chain.schema(); }
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const override { chain.sizes(ids, out); }
  void read(const chain_request& request, std::span<std::byte> bytes, chain_scratch& scratch) const override {
    scratch.reserve(Chain::depth + 1);
    chain.read(request, bytes, scratch);
  }
  [[nodiscard]] cache_statistics cache() const override {
    if constexpr (requires { chain.statistics(); }) return chain.statistics();
    return {};
  }
  Chain chain;
};

}  // namespace detail

/// The loader that a pipeline makes; see any_loader, of which it is one that still knows its steps, so that more can
/// follow.
template <detail::record_chain Chain>
class record_loader : public any_loader {
 public:
  using chain_type = Chain;
  using source_type = std::remove_cvref_t<decltype(std::declval<const Chain&>().source())>;

  record_loader(Chain chain, const muster::cursor& start, settings chosen = {})
      : any_loader(std::make_unique<detail::chain_producer<Chain>>(std::move(chain)), start, std::move(chosen)) {}

  /// What it deals out.
  [[nodiscard]] const source_type& source() const noexcept { return model().chain.source(); }

  using any_loader::next_epoch;
  /// Goes to the start of the next epoch with a source that has grown: an epoch keeps the samples it began with, and
  /// the next one has all. What was made ahead of it is dropped.
  void next_epoch(source_type grown) {
    drop();
    const std::uint64_t size = grown.size();
    const std::uint64_t digest = grown.digest();
    model().chain.replace(std::move(grown));
    any_loader::next_epoch(size, digest);
  }

  /// The loader with one more step, at the cursor of this one, which is only good for destruction then.
  template <class Wrap>
  [[nodiscard]] auto with(Wrap wrap) && {
    drop();
    auto chain = wrap(std::move(model().chain));
    return record_loader<decltype(chain)>(std::move(chain), cursor(), chosen());
  }
  /// The same with other settings.
  template <class Change>
  [[nodiscard]] record_loader with_settings(Change change) && {
    drop();
    settings changed = chosen();
    change(changed);
    return record_loader(std::move(model().chain), cursor(), std::move(changed));
  }

 private:
  using model_type = detail::chain_producer<Chain>;
  [[nodiscard]] model_type& model() noexcept { return static_cast<model_type&>(producer()); }
  [[nodiscard]] const model_type& model() const noexcept { return const_cast<record_loader*>(this)->model(); }
};

namespace detail {

template <class T>
inline constexpr bool is_record_loader = false;
template <class Chain>
inline constexpr bool is_record_loader<record_loader<Chain>> = true;

/// What a step of records may follow: a record_loader, or a loader that deals out ids of records.
template <class T>
concept loads_records = is_record_loader<T> || requires(const T& ids) {
  requires record_source<std::remove_cvref_t<decltype(ids.source())>>;
  { ids.cursor() } -> std::same_as<const muster::cursor&>;
};

template <loads_records Loader>
[[nodiscard]] auto as_record_loader(Loader loader) {
  if constexpr (is_record_loader<Loader>) {
    return loader;
  } else {
    using source = std::remove_cvref_t<decltype(loader.source())>;
    return record_loader<source_step<source>>(source_step<source>(loader.source()), loader.cursor());
  }
}

template <class Loader>
using chain_of = typename decltype(as_record_loader(std::declval<Loader>()))::chain_type;

/// Whether records are too many to count on them being in memory: as the source says (`bool cold() const`), else if
/// they take more than 4 GiB. The same on every machine, whatever its memory.
template <class Source>
[[nodiscard]] bool is_cold(const Source& source) {
  if constexpr (requires {
                  { source.cold() } -> std::same_as<bool>;
                })
    return source.cold();
  constexpr std::uint64_t warm = std::uint64_t{4} << 30;
  const std::uint64_t record = source.schema().record_bytes();
  return record != 0 && source.size() > warm / record;
}

}  // namespace detail

/// source | batch: records, unless it is a `dataset`, whose loader deals out ids until another step wants its records.
template <record_source Source>
requires(!std::same_as<Source, dataset>) [[nodiscard]] record_loader<detail::source_step<Source>> operator|(
    Source source, batch step) {
  const auto start = detail::start_of(source.digest(), source.size(), std::nullopt, {}, step.size, step.options);
  return {detail::source_step<Source>(std::move(source)), start};
}

template <record_source Source>
requires(!std::same_as<Source, dataset>) [[nodiscard]] record_loader<detail::source_step<Source>> operator|(
    shuffled_source<Source> from, batch step) {
  const auto start =
      detail::start_of(from.source.digest(), from.source.size(), from.step.seed, from.step.options, step.size,
                       step.options, from.source.schema().record_bytes(), detail::is_cold(from.source));
  return {detail::source_step<Source>(std::move(from.source)), start};
}

template <detail::loads_records Loader, record_transform F>
[[nodiscard]] auto operator|(Loader loader, map<F> step) {
  return detail::as_record_loader(std::move(loader)).with([&](auto chain) {
    return detail::transform_step<decltype(chain), F, false>(std::move(chain), std::move(step.function));
  });
}

template <detail::loads_records Loader, record_augmentation G>
[[nodiscard]] auto operator|(Loader loader, augment<G> step) {
  return detail::as_record_loader(std::move(loader)).with([&](auto chain) {
    return detail::transform_step<decltype(chain), G, true>(std::move(chain), std::move(step.function));
  });
}

template <detail::loads_records Loader>
[[nodiscard]] auto operator|(Loader loader, cache step) {
  static_assert(detail::chain_of<Loader>::randoms == 0,
                "a cache cannot follow augment(): it would give every epoch the chance of the first one. "
                "Write ... | cache(...) | augment(...)");
  return detail::as_record_loader(std::move(loader)).with([&](auto chain) {
    return detail::cache_step<decltype(chain)>(std::move(chain), std::move(step.options));
  });
}

template <detail::loads_records Loader>
[[nodiscard]] auto operator|(Loader loader, prefetch step) {
  return detail::as_record_loader(std::move(loader)).with_settings([&](auto& chosen) {
    chosen.prefetch = step.options;
  });
}

template <detail::loads_records Loader>
[[nodiscard]] auto operator|(Loader loader, on_bad_records step) {
  return detail::as_record_loader(std::move(loader)).with_settings([&](auto& chosen) { chosen.bad = step.options; });
}

}  // namespace muster::inline v0
