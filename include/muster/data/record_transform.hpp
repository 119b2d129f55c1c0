// The functions of map() and augment(), which compute one record from another.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <muster/core/dtype.hpp>
#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include <muster/data/record_schema.hpp>

namespace muster { inline namespace v0 { namespace data {

/// The requirements on a function for map(). It computes output records, all of the same size, from input records.
/// Equal input records yield equal output records.
///
/// - output(in): returns the schema of the results, of fixed form, for records of schema `in`. Throws
///   configuration_error if the function cannot use such records. A pipeline calls output() on its own copy before the
///   first record, so the function can store the input schema.
/// - version(): changes whenever the function's results change, for caches on disk. Caches on disk refuse version 0.
/// - operator()(input, result): writes all bytes of `result`. Both spans are aligned for their elements. Several
///   threads call it at once. A data_error means that the record is bad, and is treated as if the source had reported
///   the record as bad. Any other exception ends the step, with the record named.
template <class F>
concept record_transform = std::copy_constructible<F> &&
    requires(F& own, const F& f, const record_schema& in, std::span<const std::byte> input,
             std::span<std::byte> result) {
  { own.output(in) } -> std::same_as<record_schema>;
  { f.version() } -> std::convertible_to<std::uint64_t>;
  f(input, result);
};

/// The requirements on a function for augment(): a record_transform with randomness. `random` is a separate stream for
/// each (seed, epoch, sample), so the result does not depend on threads or ranks.
template <class G>
concept record_augmentation = std::copy_constructible<G> &&
    requires(G& own, const G& g, const record_schema& in, std::span<const std::byte> input, std::span<std::byte> result,
             random_stream& random) {
  { own.output(in) } -> std::same_as<record_schema>;
  g(input, result, random);
};

/// A callable as a record_transform: `f(std::span<const From>, std::span<To>)`, from records with one field of From to
/// records of `shape` of To. It is a record_augmentation if `f` also takes a random_stream&. Created by each().
template <element From, element To, class F>
class typed_transform {
 public:
  /// Takes the shape of an output record, and the version for record_transform.
  typed_transform(std::vector<std::uint64_t> shape, F f, std::uint64_t version)
      : shape_(std::move(shape)), f_(std::move(f)), version_(version) {}

  /// The functions of record_transform.
  [[nodiscard]] record_schema output(const record_schema& input_schema) const {
    if (input_schema.form != record_form::fixed || input_schema.fields.size() != 1 ||
        input_schema.fields[0].type != dtype_of<From>()) {
      throw configuration_error("cannot map records of " + to_string(input_schema) +
                                " (the function takes one field of " + std::string(to_string(dtype_of<From>())) +
                                "); choose another source or function");
    }
    return {record_form::fixed,
            {{input_schema.fields[0].name, dtype_of<To>(), shape_}},
            0,
            input_schema.labels,
            input_schema.classes};
  }
  [[nodiscard]] std::uint64_t version() const noexcept { return version_; }

  /// Calls `f` with both spans typed. `random` is a random_stream or is absent.
  template <class... Random>
  requires std::invocable<const F&, std::span<const From>, std::span<To>, Random&...> void operator()(
      std::span<const std::byte> input, std::span<std::byte> result, Random&... random) const {
    f_(std::span(reinterpret_cast<const From*>(input.data()), input.size() / sizeof(From)),
       std::span(reinterpret_cast<To*>(result.data()), result.size() / sizeof(To)), random...);
  }

 private:
  std::vector<std::uint64_t> shape_;
  F f_;
  std::uint64_t version_;
};

/// Returns a function for map(), or, if `f` also takes a random_stream& as its third parameter, for augment(). Its
/// results have `shape`, row-major: `each<std::uint8_t, float>({784}, [](std::span<const std::uint8_t> in,
/// std::span<float> out) { ... })`.
template <element From, element To, class F>
[[nodiscard]] typed_transform<From, To, F> each(std::vector<std::uint64_t> shape, F f, std::uint64_t version = 0) {
  return {std::move(shape), std::move(f), version};
}

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::each;
using data::record_augmentation;
using data::record_transform;
using data::typed_transform;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
