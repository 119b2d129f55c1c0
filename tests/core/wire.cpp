#include <muster/core/wire.hpp>

#include <vector>

#include "catch.hpp"

using muster::detail::wire_reader;
using muster::detail::wire_writer;

namespace {

struct pair_of_numbers {
  std::uint32_t first, second;
};

std::string example() {
  wire_writer writer(std::string("~"));
  writer.add(std::uint8_t{7});
  writer.add(std::uint64_t{0x0102030405060708});
  writer.add(1.5f);
  writer.add_text("text");
  writer.add(pair_of_numbers{1, 2});
  writer.add_all<std::uint32_t>(std::vector<std::uint32_t>{3, 4});
  writer.add_bytes(std::as_bytes(std::span("ab", 2)));
  return writer.take();
}

bool read_example(wire_reader& in) {
  const bool first = in.chars(1) == "~" && in.number<std::uint8_t>() == 7;
  const bool second = in.number() == 0x0102030405060708 && in.number<float>() == 1.5f && in.text() == "text";
  const auto pair = in.number<pair_of_numbers>();
  const bool all = in.all<std::uint32_t>() == std::vector<std::uint32_t>{3, 4};
  return first && second && pair.first == 1 && pair.second == 2 && all && in.chars(2) == "ab";
}

}  // namespace

TEST_CASE("what is written is little-endian, and read as it was written") {
  const auto text = example();
  CHECK(text.substr(2, 8) == std::string("\x08\x07\x06\x05\x04\x03\x02\x01"));
  wire_reader in(text);
  CHECK(read_example(in));
  CHECK(in.is_complete());
}

TEST_CASE("of a text that was cut anywhere, or has something behind it, nothing is whole") {
  const auto text = example();
  for (std::size_t size = 0; size < text.size(); ++size) {
    const std::vector<char> cut(
        text.begin(),
        text.begin() + static_cast<std::ptrdiff_t>(size));  // so that sanitizers detect reads beyond its end
    wire_reader in(std::string_view(cut.data(), cut.size()));
    CHECK_FALSE(read_example(in));
    CHECK_FALSE(in.good());
    CHECK(in.number() == 0);
    CHECK(in.bytes(1).empty());
  }
  const auto longer = text + "x";
  wire_reader in(longer);
  CHECK(read_example(in));
  CHECK(in.good());
  CHECK_FALSE(in.is_complete());
}

TEST_CASE("lengths and counts that cannot be are refused before anything is reserved for them") {
  for (const std::uint64_t wrong : {std::uint64_t{17}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    wire_writer writer;
    writer.add(wrong);
    writer.add_bytes(std::vector<std::byte>(16));
    const auto text = writer.take();
    wire_reader as_text(text), as_bytes(text), as_count(text);
    CHECK(as_text.text().empty());
    CHECK_FALSE(as_text.good());
    CHECK(as_bytes.bytes(wrong + 8).size() == (wrong + 8 <= text.size() ? wrong + 8 : 0));
    CHECK(as_count.count(1) == 0);
    CHECK_FALSE(as_count.good());
  }
  wire_writer writer;
  writer.add(std::uint64_t{2});
  writer.add_bytes(std::vector<std::byte>(16));
  const auto text = writer.take();
  CHECK(wire_reader(text).count(8) == 2);
  CHECK(wire_reader(text).count(9) == 0);
  CHECK(wire_reader(text).count(8, 1) == 0);
  CHECK(wire_reader(text).all<std::uint64_t>() == std::vector<std::uint64_t>{0, 0});
  CHECK(wire_reader(text).all<std::uint64_t>(1).empty());
  wire_reader failed(text);
  failed.fail();
  CHECK_FALSE(failed.good());
  CHECK(failed.rest().empty());
}
