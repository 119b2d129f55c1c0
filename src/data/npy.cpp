#include <muster/data/npy.hpp>

#include <bit>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include <muster/core/error.hpp>
#include "array_file.hpp"

namespace muster::inline v0 {
namespace {

// The header is the text of a Python dictionary with three keys, such as
//   {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 28, 28), }
// which is taken apart word by word.
class header_parser {
 public:
  header_parser(std::string_view text, std::uint64_t offset, const std::string& path)
      : text_(text), offset_(offset), path_(path) {}

  detail::array_header parse() {
    detail::array_header header;
    bool type = false, order = false, shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string_view key = quoted();
      expect(':');
      if (key == "descr" && !std::exchange(type, true)) {
        header.type = element_type();
      } else if (key == "fortran_order" && !std::exchange(order, true)) {
        fortran_order();
      } else if (key == "shape" && !std::exchange(shape, true)) {
        header.shape = extents();
      } else {
        fail("has a header with an unknown or repeated key");
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    if (!type || !order || !shape) fail("has a header that lacks one of descr, fortran_order and shape");
    if (fortran_ && header.shape.size() > 1) {
      fail("is in Fortran order (records would not lie together)", "save numpy.ascontiguousarray(array)");
    }
    if (header.shape.empty()) fail("is a single number (an array of records has at least one extent)", "reshape it");
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& problem, const std::string& suggestion = "save the array again") const {
    throw data_error({path_, 0, 0, offset_ + at_}, problem + "; " + suggestion);
  }
  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }
  bool accept(char c) {
    skip_blanks();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(std::string("has a header without the '") + c + "' that belongs here");
  }
  std::string_view quoted() {
    skip_blanks();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    const auto end = quote == '\'' || quote == '"' ? text_.find(quote, at_ + 1) : std::string_view::npos;
    if (end == std::string_view::npos) fail("has a header without the quoted word that belongs here");
    const std::string_view word = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return word;
  }

  dtype element_type() {
    skip_blanks();
    if (at_ < text_.size() && text_[at_] == '[') {
      fail("is a structured array (its elements are records of their own)", "save each of its fields as an array");
    }
    const std::size_t before = at_;
    const std::string_view word = quoted();
    constexpr std::pair<std::string_view, dtype> known[] = {
        {"b1", dtype::boolean}, {"i1", dtype::int8},    {"u1", dtype::uint8},   {"i2", dtype::int16},
        {"u2", dtype::uint16},  {"i4", dtype::int32},   {"u4", dtype::uint32},  {"i8", dtype::int64},
        {"u8", dtype::uint64},  {"f2", dtype::float16}, {"f4", dtype::float32}, {"f8", dtype::float64}};
    if (word.size() == 3) {
      for (const auto& [name, type] : known) {
        if (word.substr(1) != name) continue;
        const char order = word[0];
        constexpr char native = std::endian::native == std::endian::little ? '<' : '>';
        if (order == native || order == '=' || size_of(type) == 1) return type;
        at_ = before;
        fail("has numbers of the other byte order", "save array.astype(array.dtype.newbyteorder('='))");
      }
    }
    at_ = before;
    fail("has elements that are no plain numbers (Python objects, strings, dates, complex numbers)",
         "save an array of integers or floats");
  }

  void fortran_order() {
    skip_blanks();
    const std::string_view rest = text_.substr(at_);
    fortran_ = rest.starts_with("True");
    if (!fortran_ && !rest.starts_with("False")) fail("has a header whose fortran_order is neither True nor False");
    at_ += fortran_ ? 4 : 5;
  }

  std::vector<std::uint64_t> extents() {
    std::vector<std::uint64_t> found;
    expect('(');
    while (!accept(')')) {
      skip_blanks();
      std::uint64_t extent = 0;
      const auto [end, code] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), extent);
      if (code != std::errc() || found.size() == 64) fail("has a header whose shape is no list of whole numbers");
      at_ = static_cast<std::size_t>(end - text_.data());
      found.push_back(extent);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return found;
  }

  std::string_view text_;
  std::uint64_t offset_;
  const std::string& path_;
  std::size_t at_ = 0;
  bool fortran_ = false;
};

detail::array_file open_file(const std::string& path) {
  auto file = std::make_shared<const text_file>(path, compressed_files::as_they_are);
  detail::array_header header = detail::read_npy_header(file->bytes(), path);
  return {std::move(file), std::move(header)};
}

}  // namespace

detail::array_header detail::read_npy_header(std::span<const std::byte> bytes, const std::string& path) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto fail = [&](std::uint64_t offset, const std::string& problem) {
    throw data_error({path, 0, 0, offset}, problem);
  };
  constexpr std::string_view magic = "\x93NUMPY";
  if (!text.starts_with(magic)) fail(0, "is not an NPY file (it does not begin as one); check the path");
  const unsigned version = text.size() > magic.size() ? static_cast<unsigned char>(text[magic.size()]) : 0;
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  const std::size_t begin = magic.size() + 2 + length_bytes;
  if (version < 1 || version > 3) fail(6, "has an unknown version of NPY (1 to 3 are known); save the array again");
  if (text.size() < begin) fail(text.size(), "ends within its header; copy or download it again");
  std::uint64_t length = 0;
  for (std::size_t k = length_bytes; k > 0; --k) {
    length = length << 8 | static_cast<unsigned char>(text[magic.size() + 1 + k]);
  }
  if (length > text.size() - begin) fail(text.size(), "ends within its header; copy or download it again");
  array_header header = header_parser(text.substr(begin, length), begin, path).parse();
  header.bytes = begin + length;
  check_array(header, bytes, path);
  return header;
}

fixed_records open_npy(const std::string& path, const std::string& labels) {
  return detail::open_array("npy", path, labels, open_file);
}

}  // namespace muster::inline v0
