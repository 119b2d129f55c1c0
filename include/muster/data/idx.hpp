// The IDX format of MNIST and its kin (http://yann.lecun.com/exdb/mnist/).
#pragma once

#include <span>
#include <string>

#include <muster/data/fixed_records.hpp>

namespace muster::inline v0 {

/// What the header of an IDX file says.
struct idx_header {
  dtype type = dtype::uint8;         ///< as the file has it; numbers of several bytes are big-endian there
  std::vector<std::uint64_t> shape;  ///< the first extent is the number of records
  std::uint64_t bytes = 0;           ///< of the header: where the numbers begin
};

/// Reads the header of an IDX file whose bytes are given and checks that all it promises is there. `path` is for
/// errors. Throws data_error with the byte at which something is wrong.
[[nodiscard]] idx_header read_idx_header(std::span<const std::byte> bytes, const std::string& path);

/// Opens an IDX file, plain or compressed: record i is slice i along the first extent, of the others' shape, named
/// "image" when they are two and "values" otherwise. `labels` names an IDX file of one extent with a label for each, or
/// is empty for none. A plain file of bytes is mapped; other numbers are turned into this machine's byte order in
/// memory. Throws data_error with the place.
[[nodiscard]] fixed_records open_idx(const std::string& path, const std::string& labels = "");

}  // namespace muster::inline v0
