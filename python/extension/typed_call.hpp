// Collectives whose element type and operation are values, for callers that know them at run time alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <muster/comm/group.hpp>
#include <muster/comm/work.hpp>
#include <muster/core/dtype.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Operations on whole numbers that callers of other languages have besides `operation`.
enum class bit_operation : std::uint8_t { none, bit_and, bit_or, bit_xor };

/// Contiguous elements with a type that is known at run time. A view.
struct typed_elements {
  std::byte* data = nullptr;
  std::size_t count = 0;
  dtype type = dtype::none;
};

/// A call of a collective. `in` and `out` have the sizes that the collective's header describes; for a call in place
/// both are the same. A barrier has neither.
struct typed_call {
  collective kind = collective::none;
  typed_elements in;
  typed_elements out;
  operation op = operation::none;
  bit_operation bits = bit_operation::none;  ///< replaces `op` unless none
  int root = 0;
  collective_options options{};
};

/// Run a call and wait, or start a call. Throw the errors of the collective, and configuration_error for buffers of
/// wrong sizes or types, for a wrong root, and for an operation that the type does not have.
void run(group& ranks, const typed_call& call);
work start(group& ranks, const typed_call& call);

/// Returns the operation with this name ("sum", "mean", ...). Throws configuration_error that names the mistake.
[[nodiscard]] operation operation_named(std::string_view name);

}}}  // namespace muster::v0::detail
