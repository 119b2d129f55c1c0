// Files with a header and arrays of numbers: the common part of IDX, NPY, NPZ and safetensors. Private to the readers
// of these formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <muster/data/sources/fixed_records.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// The contents of a file's header.
struct array_header {
  dtype type = dtype::uint8;
  std::vector<std::uint64_t> shape;  ///< row-major; the first extent is the number of records
  std::uint64_t bytes = 0;           ///< size of the header, which is the offset of the numbers
};

/// Reads the header of an IDX file from the file's bytes and checks that the file has all bytes that the header
/// declares. `path` is for errors. Throws data_error with the offset of the faulty byte. The numbers of IDX are
/// big-endian.
[[nodiscard]] array_header read_idx_header(std::span<const std::byte> bytes, const std::string& path);
/// Reads the header of an NPY file (version 1, 2 or 3) like read_idx_header(). Also refuses arrays that this reader
/// does not support: arrays with Python objects, strings, complex numbers or records as elements, arrays in the other
/// byte order or in Fortran order, and arrays without extents.
[[nodiscard]] array_header read_npy_header(std::span<const std::byte> bytes, const std::string& path);

/// A file and its header. The numbers are in this machine's byte order.
struct array_file {
  std::shared_ptr<const mapped_file> file;
  array_header header;
};

/// An array in a file of several arrays.
struct named_array {
  std::string name;
  std::function<array_file()> open;  ///< `header.bytes` of the result is the offset of the numbers in its file
};

/// Opens one of the arrays in the file at `path` as records: record i is slice i along the first extent. `values` may
/// be empty if there is a single array beside `labels`, the array of the labels. `labels` is empty if records have no
/// labels. Errors call an array `called`. Throws data_error.
[[nodiscard]] fixed_records open_named_arrays(const std::string& name, const std::string& path,
                                              const std::vector<named_array>& arrays, const std::string& values,
                                              const std::string& labels, const std::string& called);

}}}}  // namespace muster::v0::data::detail
