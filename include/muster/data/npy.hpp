// Arrays in NumPy's own file format (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
#pragma once

#include <span>
#include <string>

#include <muster/data/fixed_records.hpp>

namespace muster::inline v0 {

/// What the header of an NPY file says.
struct npy_header {
  dtype type = dtype::float32;
  std::vector<std::uint64_t> shape;  ///< row-major; the first extent is the number of records
  std::uint64_t bytes = 0;           ///< of the header: where the numbers begin
};

/// Reads the header (of version 1, 2 or 3) of an NPY file whose bytes are given and checks that all it promises is
/// there. Throws data_error with the byte at which something is wrong; also for arrays that this reader does not take:
/// of Python objects, strings, complex numbers or records, of the other byte order, in Fortran order, or without
/// extents.
[[nodiscard]] npy_header read_npy_header(std::span<const std::byte> bytes, const std::string& path);

/// Opens an array: record i is array[i], named "values". `labels` names an NPY file of shape (n) with a number for each
/// record, or of shape (n, k) with k labels each, or is empty for none. The files are mapped. Throws data_error.
[[nodiscard]] fixed_records open_npy(const std::string& path, const std::string& labels = "");

}  // namespace muster::inline v0
