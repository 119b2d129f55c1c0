// Files of named tensors in the format safetensors (https://github.com/huggingface/safetensors): the length of a header
// of JSON, the header, the values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/data/record_schema.hpp>
#include <muster/data/sources/fixed_records.hpp>

namespace muster { inline namespace v0 { namespace data {

/// A tensor of a file: its name, its type and its shape (row-major; a tensor without extents is a single number).
struct safetensor : record_field {
  std::uint64_t offset = 0;  ///< byte of the file at which the values begin
  std::uint64_t size = 0;    ///< size of the values in bytes
  std::string written = {};  ///< the type as written, "F32"; `type` is dtype::none for types without a dtype, "F8_E4M3"
};

/// A tensor to write. The values have this machine's byte order.
struct tensor_view : record_field {
  std::span<const std::byte> values = {};
};

namespace detail {

/// The content of a file's header.
struct safetensors_header {
  std::vector<safetensor> tensors;  ///< in the order of their values
  std::map<std::string, std::string> metadata;
};

/// Reads the header from the bytes of a file. Throws data_error, which names `path`, the byte and the tensor, unless
/// the tensors have different names, and their values fill the rest of the file without a gap and without an overlap.
[[nodiscard]] safetensors_header read_safetensors_header(std::span<const std::byte> bytes, const std::string& path);

}  // namespace detail

/// A file of tensors, which is mapped into memory.
class safetensors_file {
 public:
  /// Opens the file, or the file at an address. Reads its header alone. Throws data_error.
  explicit safetensors_file(const std::string& path, const http_options& http = {});

  /// Returns the tensors in the order of their values in the file.
  [[nodiscard]] const std::vector<safetensor>& tensors() const noexcept { return header_.tensors; }
  /// Returns the texts of the key `__metadata__`.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept { return header_.metadata; }
  /// Returns the file.
  [[nodiscard]] const std::shared_ptr<const mapped_file>& file() const noexcept { return file_; }

  /// Returns the tensor with that name. Throws data_error for a name that the file does not have.
  [[nodiscard]] const safetensor& tensor(std::string_view name) const;
  /// Returns the values in place. They may begin at any byte.
  [[nodiscard]] std::span<const std::byte> values(const safetensor& tensor) const noexcept {
    return file_->bytes().subspan(tensor.offset, tensor.size);
  }
  /// Copies the tensor with that name, whose shape must be `shape`, to `output`. Values of float16 and bfloat16 are
  /// converted. Throws data_error for a name that the file does not have, for another shape, and for a type whose
  /// values a float32 would round.
  void read(std::string_view name, std::span<const std::uint64_t> shape, std::span<float> output) const;

 private:
  std::shared_ptr<const mapped_file> file_;
  detail::safetensors_header header_;
};

/// Writes tensors and texts. The file is written completely or not at all. Tensors with larger elements are first in
/// the file, and otherwise tensors keep their order, so that every tensor is aligned. Throws configuration_error for
/// two tensors with the same name, for values that do not fit the shape, and for a file that cannot be written.
void write_safetensors(const std::string& path, std::span<const tensor_view> tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// Opens a tensor as records: record i is the slice i along the first extent, and its field has the tensor's name.
/// `tensor` may be empty if the file has a single tensor beside the labels. `labels` names a tensor of shape (n), or of
/// shape (n, k) for k labels of each record; empty: the records have no labels. The file is mapped. Throws data_error.
[[nodiscard]] fixed_records open_safetensors(const std::string& path, const std::string& tensor = "",
                                             const std::string& labels = "", const http_options& http = {});

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
