// Files that are one array of numbers behind a header: what IDX and NPY have in common. Private to their reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <muster/data/sources/fixed_records.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// What the header says.
struct array_header {
  dtype type = dtype::uint8;
  std::vector<std::uint64_t> shape;  ///< row-major; the first extent is the number of records
  std::uint64_t bytes = 0;           ///< of the header: where the numbers begin
};

/// Reads the header of an IDX file from its bytes and checks that all it promises is there. `path` is for
/// errors. Throws data_error with the byte at which something is wrong. Its numbers are big-endian.
[[nodiscard]] array_header read_idx_header(std::span<const std::byte> bytes, const std::string& path);
/// The same of an NPY file (of version 1, 2 or 3); refuses also arrays that this reader does not take: of Python
/// objects, strings, complex numbers or records, of the other byte order, in Fortran order, or without extents.
[[nodiscard]] array_header read_npy_header(std::span<const std::byte> bytes, const std::string& path);

/// A file and what its header says of it; the numbers are of this machine's byte order.
struct array_file {
  std::shared_ptr<const mapped_file> file;
  array_header header;
};

}}}  // namespace muster::v0::detail
