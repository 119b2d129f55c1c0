#include "matrix.hpp"

#include <bit>
#include <cstdint>
#include <cstring>

#include <muster/core/error.hpp>
#include <muster/core/number.hpp>

namespace stacked {
namespace {

constexpr std::string_view magic = "\x93NUMPY\x01";
constexpr std::size_t dictionary_at = 10, alignment = 64;

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  throw muster::data_error({name}, "it is no matrix of doubles (" + why + "); write it with numpy.save");
}

/// Parses "(300, 1025)" or "(300,)" and returns the rows and columns.
std::pair<Eigen::Index, Eigen::Index> shape_of(std::string_view dictionary, const std::string& name) {
  const auto begin = dictionary.find("'shape': (");
  const auto end = dictionary.find(')', begin == std::string_view::npos ? 0 : begin);
  if (begin == std::string_view::npos || end == std::string_view::npos) refuse(name, "its header has no shape");
  const auto text = dictionary.substr(begin + 10, end - begin - 10);
  const auto comma = text.find(',');
  auto second = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  while (second.starts_with(' ')) second.remove_prefix(1);
  const auto rows = muster::parse_number<std::uint32_t>(text.substr(0, comma));
  const auto columns = second.empty() ? 1U : muster::parse_number<std::uint32_t>(second);
  if (!rows || !columns) refuse(name, "its shape must have one or two dimensions");
  return {*rows, *columns};
}

}  // namespace

std::string to_npy(const Eigen::Ref<const matrix>& values) {
  static_assert(std::endian::native == std::endian::little);
  const matrix whole = values;
  std::string dictionary = "{'descr': '<f8', 'fortran_order': True, 'shape': (" + std::to_string(whole.rows());
  dictionary += ", " + std::to_string(whole.cols()) + "), }";
  dictionary.append(alignment - (dictionary_at + dictionary.size() + 1) % alignment, ' ');
  dictionary += '\n';
  std::string file(magic);
  file += '\0';
  file += static_cast<char>(dictionary.size() & 255U);
  file += static_cast<char>(dictionary.size() >> 8U);
  file += dictionary;
  return file.append(reinterpret_cast<const char*>(whole.data()), static_cast<std::size_t>(whole.size()) * 8);
}

matrix from_npy(std::string_view bytes, const std::string& name) {
  if (!bytes.starts_with(magic) || bytes.size() < dictionary_at) refuse(name, "it has no header of .npy, version 1");
  const auto octet = [&](std::size_t at) { return std::size_t{static_cast<unsigned char>(bytes[at])}; };
  const std::size_t data_at = dictionary_at + octet(8) + 256 * octet(9);
  if (bytes.size() < data_at) refuse(name, "its header is cut off");
  const auto dictionary = bytes.substr(dictionary_at, data_at - dictionary_at);
  if (dictionary.find("'<f8'") == std::string_view::npos) refuse(name, "its numbers are of another type");
  const auto [rows, columns] = shape_of(dictionary, name);
  if (bytes.size() - data_at != static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns) * 8)
    refuse(name, "its length does not match its shape");
  const bool by_columns = dictionary.find("'fortran_order': True") != std::string_view::npos;
  matrix read(by_columns ? rows : columns, by_columns ? columns : rows);
  std::memcpy(read.data(), bytes.data() + data_at, bytes.size() - data_at);
  if (!by_columns) read.transposeInPlace();
  if (!read.allFinite()) refuse(name, "it has a number that is not finite");
  return read;
}

dataset to_dataset(std::string_view npy, const std::string& name) {
  const matrix read = from_npy(npy, name);
  if (read.cols() < 2 || read.rows() < 10) refuse(name, "it needs at least 10 rows and a column beside the labels");
  dataset result{read.leftCols(read.cols() - 1), read.col(read.cols() - 1)};
  const double ones = result.labels.sum();
  if (((result.labels.array() != 0) && (result.labels.array() != 1)).any() || ones == 0 ||
      ones == static_cast<double>(result.labels.size()))
    refuse(name, "the last column must have labels 0 and 1, and both must occur");
  return result;
}

}  // namespace stacked
