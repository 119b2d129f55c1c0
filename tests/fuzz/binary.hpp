// Properties of every reader of binary files for any input bytes.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/data/records/manifest_file.hpp>
#include <muster/data/records/reader.hpp>
#include <muster/data/source_statistics.hpp>
#include <muster/data/sources/array_file.hpp>
#include <muster/data/sources/npz.hpp>
#include <muster/data/sources/safetensors.hpp>
#include <muster/data/sources/tar.hpp>
#include <muster/data/sources/tfrecord_examples.hpp>
#include "text.hpp"

namespace fuzz {

inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

/// Calls read() and returns true if it accepted the file; a rejection must name the file and a byte, or a line in the
/// file.
template <class Read>
bool check_binary(std::string_view text, const Read& read) {
  try {
    read();
    return true;
  } catch (const muster::data_error& rejected) {
    const std::string_view reason = rejected.what();
    require(reason.starts_with(rejected.file() + ":"), "the text of the rejection does not begin with the file");
    require(reason.find_first_of("\r\n") == std::string_view::npos, "the text of the rejection has several lines");
    require(rejected.where().offset || rejected.where().line != 0, "the rejection names no place");
    require(rejected.where().offset.value_or(0) <= text.size(), "the rejection names a byte outside the file");
    return false;
  }
}

inline bool check_idx(std::string_view text) {
  return check_binary(text, [&] {
    const auto header = muster::data::detail::read_idx_header(bytes_of(text), "input");
    std::uint64_t size = size_of(header.type);
    for (const auto extent : header.shape) size *= extent;
    require(header.bytes + size == text.size(), "the header does not describe the file");
  });
}

inline bool check_npy(std::string_view text) {
  return check_binary(text, [&] {
    const auto header = muster::data::detail::read_npy_header(bytes_of(text), "input");
    std::uint64_t size = size_of(header.type);
    for (const auto extent : header.shape) size *= extent;
    require(header.bytes + size == text.size(), "the header does not describe the file");
  });
}

inline bool check_safetensors(std::string_view text) {
  return check_binary(text, [&] {
    const auto header = muster::data::detail::read_safetensors_header(bytes_of(text), "input");
    std::uint64_t next = text.size();
    for (const auto& tensor : header.tensors) next = std::min(next, tensor.offset);
    for (const auto& tensor : header.tensors) {
      require(tensor.offset == next, "a tensor does not follow the tensor before it");
      next += tensor.size;
      if (tensor.type != muster::dtype::none) require(tensor.bytes() == tensor.size, "a shape does not fit its bytes");
    }
    require(next == text.size(), "the tensors do not fill the file");
  });
}

inline bool check_zip(std::string_view text) {
  return check_binary(text, [&] {
    for (const auto& member : muster::data::detail::read_zip(bytes_of(text), "input")) {
      require(member.offset <= text.size() && member.packed <= text.size() - member.offset,
              "a member is not in the archive");
      require(member.is_deflated || member.size == member.packed, "a stored member has two sizes");
    }
  });
}

/// Reads a tar archive, as it is and with checksums that are right.
inline bool check_tar(std::string_view text) {
  const auto check = [](std::string_view archive) {
    return check_binary(archive, [&] {
      std::uint64_t end = 0;
      for (const auto& member : muster::data::detail::read_tar(bytes_of(archive), "input")) {
        require(member.header >= end && member.offset >= member.header + 512,
                "a member is within the member before it");
        end = member.offset + member.size;
        require(member.offset <= archive.size() && member.size <= archive.size() - member.offset,
                "a member is not in the archive");
      }
    });
  };
  const bool accepted = check(text);
  std::string right(text);
  for (std::size_t at = 0; at + 512 <= right.size(); at += 512) {
    if (right.compare(at + 257, 5, "ustar") != 0) continue;
    right.replace(at + 148, 8, 8, ' ');
    unsigned sum = 0;
    for (std::size_t k = at; k < at + 512; ++k) sum += static_cast<unsigned char>(right[k]);
    for (std::size_t digit = 6; digit-- > 0; sum /= 8) right[at + 148 + digit] = static_cast<char>('0' + sum % 8);
  }
  return check(right) || accepted;
}

inline bool check_tfrecord(std::string_view text) {
  return check_binary(text, [&] {
    std::uint64_t next = 0;
    for (const auto offset : muster::data::detail::tfrecord_offsets(bytes_of(text), "input")) {
      require(offset == next, "a record does not follow the record before it");
      next = offset + 16;
      for (std::size_t k = 0; k < 8; ++k)
        next += std::uint64_t{static_cast<unsigned char>(text[offset + k])} << (8 * k);
    }
    require(next == text.size(), "the records do not fill the file");
  });
}

/// Reads a TensorFlow message, as columns of every kind.
inline bool check_example(std::string_view text) {
  static const muster::data::example_columns columns{
      muster::data::parse_example_features("a:float32[2],b:int64[..3],c:uint8[..2x2],d:int16,e:float64"), {"l"}};
  static const muster::data::example_columns whole{muster::data::parse_example_features("a:bytes"), {"b"}};
  std::vector<std::byte> bytes(8 + 24 + 4 + 2 + 8);
  float label = 0;
  muster::data::detail::example_row row{bytes, {&label, 1}};
  const std::string problem = muster::data::detail::read_example(bytes_of(text), columns, row);
  require(problem.empty() || problem.find("; check ") != std::string::npos, "a rejection suggests nothing");
  muster::data::detail::example_row payload{{}, {&label, 1}};
  if (muster::data::detail::read_example(bytes_of(text), whole, payload).empty() && !payload.bytes_value.empty()) {
    const auto* const begin = bytes_of(text).data();
    require(payload.bytes_value.data() >= begin &&
                payload.bytes_value.data() + payload.bytes_value.size() <= begin + text.size(),
            "bytes are not in the message");
  }
  return problem.empty();
}

inline bool check_manifest(std::string_view text) {
  return check_binary(text, [&] {
    for (const auto& entry : muster::data::detail::contents_of(text, "input").entries) {
      require(!entry.file.empty() && entry.file.find('/') == std::string::npos, "an entry leaves its folder");
    }
  });
}

/// Reads the statistics in a manifest.
inline bool check_statistics(std::string_view text) {
  try {
    const auto found = muster::data::detail::statistics_from_text(text, "input");
    const std::string again = muster::data::detail::to_text(found);
    require(muster::data::detail::to_text(muster::data::detail::statistics_from_text(again, "input")) == again,
            "statistics change when they are written and read");
    return true;
  } catch (const muster::data_error& rejected) {
    require(rejected.file() == "input", "the rejection names another file");
    return false;
  }
}

/// Reads the file at `path`, which has these bytes.
inline bool check_records(std::string_view text, const std::string& path) {
  return check_binary(text, [&] {
    try {
      const muster::data::record_files source(path);
      require(source.size() >= 1 && source.size() <= text.size(), "there are more records than bytes, or none");
      std::vector<std::byte> bytes;
      std::vector<float> labels(source.schema().labels.size());
      for (muster::sample_id id = 0; id < source.size(); ++id) {
        std::uint64_t size = 0;
        source.sizes({&id, 1}, {&size, 1});
        bytes.resize(size);
        std::vector<muster::bad_record> bad;
        source.read({&id, 1}, {bytes, labels}, &bad);
        if (source.mapped() && bad.empty()) require(source.view(id).size() == size, "a view has another size");
      }
    } catch (const muster::configuration_error&) {  // compressed blocks in a build without libzstd
    }
  });
}

}  // namespace fuzz
