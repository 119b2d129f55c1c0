// Functions in Python as steps of a pipeline.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <muster/core/random.hpp>
#include <muster/data/record_schema.hpp>

#include "module.hpp"

namespace muster::python {

/// A function for map() and augment() that calls a function in Python: `function(record)` or `function(record, seed)`,
/// with an array, or bytes for records of bytes. Takes the interpreter's lock for each record.
class python_transform {
 public:
  /// Takes the shape and the type of the results; without them they are the input's.
  python_transform(nb::object function, std::optional<std::vector<std::uint64_t>> shape,
                   std::optional<std::string> type, std::uint64_t version);

  /// The functions of record_transform and record_augmentation.
  [[nodiscard]] data::record_schema output(const data::record_schema& in);
  [[nodiscard]] std::uint64_t version() const noexcept { return version_; }
  void operator()(std::span<const std::byte> input, std::span<std::byte> result) const;
  void operator()(std::span<const std::byte> input, std::span<std::byte> result, random_stream& random) const;

 private:
  void apply(std::span<const std::byte> input, std::span<std::byte> result, const std::uint64_t* seed) const;

  std::shared_ptr<nb::object> function_;
  std::optional<std::vector<std::uint64_t>> shape_;
  std::optional<std::string> type_;
  std::uint64_t version_;
  data::record_schema input_;
  data::record_field result_;
};

}  // namespace muster::python
