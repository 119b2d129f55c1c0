// What makes one record of another: the functions of map() and augment().
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

namespace muster { inline namespace v0 {

/// A function from records to records that have the same bytes each, the same for the same record.
///
/// - output(in): what it makes of records of `in`, of fixed form; throws configuration_error for what it cannot use. A
///   pipeline calls it on its own copy before any record comes, so that the function can remember what it will get.
/// - version(): changes when what it makes does, for caches on disk; 0 is refused there.
/// - operator()(from, to): writes all of `to`. Both are aligned for their elements. Called by several threads at once.
/// A data_error says that the record is bad, and is treated as if the source had said so;
///   any other exception ends the step, with the record named.
template <class F>
concept record_transform = std::copy_constructible<F> &&
    requires(F& own, const F& f, const record_schema& in, std::span<const std::byte> from, std::span<std::byte> to) {
  { own.output(in) } -> std::same_as<record_schema>;
  { f.version() } -> std::convertible_to<std::uint64_t>;
  f(from, to);
};

/// The same with chance: `random` is a stream of its own for each (seed, epoch, sample), so that what comes out does
/// not depend on threads or ranks.
template <class G>
concept record_augmentation = std::copy_constructible<G> &&
    requires(G& own, const G& g, const record_schema& in, std::span<const std::byte> from, std::span<std::byte> to,
             random_stream& random) {
  { own.output(in) } -> std::same_as<record_schema>;
  g(from, to, random);
};

/// A callable as record_transform: `f(std::span<const From>, std::span<To>)`, from records of one field of From to
/// records of `shape` of To; or as record_augmentation when it takes a random_stream& too. Made by each().
template <element From, element To, class F>
class typed_transform {
 public:
  /// `shape` is of a record of the output; `version` as record_transform has it.
  typed_transform(std::vector<std::uint64_t> shape, F f, std::uint64_t version)
      : shape_(std::move(shape)), f_(std::move(f)), version_(version) {}

  /// As record_transform has them.
  [[nodiscard]] record_schema output(const record_schema& in) const {
    if (in.form != record_form::fixed || in.fields.size() != 1 || in.fields[0].type != dtype_of<From>()) {
      throw configuration_error("cannot map records of " + to_string(in) + " (the function takes one field of " +
                                std::string(to_string(dtype_of<From>())) + "); choose another source or function");
    }
    return {record_form::fixed, {{in.fields[0].name, dtype_of<To>(), shape_}}, 0, in.labels, in.classes};
  }
  [[nodiscard]] std::uint64_t version() const noexcept { return version_; }

  /// Calls `f` with both spans typed; `random` is a random_stream or nothing.
  template <class... Random>
  requires std::invocable<const F&, std::span<const From>, std::span<To>, Random&...> void operator()(
      std::span<const std::byte> from, std::span<std::byte> to, Random&... random) const {
    f_(std::span(reinterpret_cast<const From*>(from.data()), from.size() / sizeof(From)),
       std::span(reinterpret_cast<To*>(to.data()), to.size() / sizeof(To)), random...);
  }

 private:
  std::vector<std::uint64_t> shape_;
  F f_;
  std::uint64_t version_;
};

/// `each<std::uint8_t, float>({784}, [](std::span<const std::uint8_t> in, std::span<float> out) { ... })`: a function
/// for map(), or with a random_stream& behind the two for augment(). What it makes is of `shape`, row-major.
template <element From, element To, class F>
[[nodiscard]] typed_transform<From, To, F> each(std::vector<std::uint64_t> shape, F f, std::uint64_t version = 0) {
  return {std::move(shape), std::move(f), version};
}

}}  // namespace muster::v0
