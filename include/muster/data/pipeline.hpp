// The pipeline of a loader: source | shuffle(seed) | batch(global) | map(f) | cache(...) | augment(g) | prefetch(k).
#pragma once

#include <memory>
#include <utility>

#include <muster/data/loader.hpp>
#include <muster/data/record_step.hpp>
#include <muster/data/record_transform.hpp>

namespace muster { inline namespace v0 { namespace data {

/// A step of a pipeline: replaces every record by f(record), the same in every epoch. See record_transform and each().
template <record_transform F>
struct map {
  F function;
  explicit map(F f) : function(std::move(f)) {}
};

/// A step of a pipeline: replaces every record by g(record, random), a different result in every epoch. See
/// record_augmentation.
template <record_augmentation G>
struct augment {
  G function;
  explicit augment(G g) : function(std::move(g)) {}
};

/// Returns the loader with one more step. See `loader::with` for the errors.
template <record_transform F>
[[nodiscard]] loader operator|(loader pipeline, map<F> pipeline_step) {
  return std::move(pipeline).with(std::make_unique<detail::function_step<F, false>>(std::move(pipeline_step.function)));
}

/// Returns the loader with one more step. See `loader::with` for the errors.
template <record_augmentation G>
[[nodiscard]] loader operator|(loader pipeline, augment<G> pipeline_step) {
  return std::move(pipeline).with(std::make_unique<detail::function_step<G, true>>(std::move(pipeline_step.function)));
}

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::augment;
using data::map;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
