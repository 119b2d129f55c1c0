#include <muster/core/checked_file.hpp>

#include <unistd.h>

#include <filesystem>
#include <numeric>
#include <vector>

#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>

#include <muster/core/wire.hpp>
#include "catch.hpp"

TEST_CASE("a checked file has its checksum behind it, and is written and read in pieces after which others are heard") {
  using muster::detail::file_piece;
  const auto path =
      (std::filesystem::temp_directory_path() / ("muster-checked-" + std::to_string(::getpid()))).string();
  const std::size_t size = GENERATE(std::size_t{0}, std::size_t{100}, file_piece - 1, file_piece, 2 * file_piece + 7);
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 131 >> 3);
  std::size_t pieces = 0;
  {
    muster::detail::checked_file file(path, [&] { ++pieces; });
    const std::size_t first = size / 3;
    file.write(std::span(bytes).first(first));
    file.write(std::span(bytes).subspan(first));
    CHECK_FALSE(std::filesystem::exists(path));
    file.commit();
  }
  CHECK(pieces == size / file_piece);
  pieces = 0;
  const auto read = muster::detail::read_whole_file(path, [&] { ++pieces; });
  REQUIRE(read.size() == size + sizeof(std::uint32_t));
  CHECK(pieces == (read.size() + file_piece - 1) / file_piece);
  CHECK(std::equal(bytes.begin(), bytes.end(), read.begin()));
  muster::detail::wire_reader sum(std::span<const std::byte>(read).subspan(size));
  CHECK(sum.number<std::uint32_t>() == muster::crc32c(bytes));
  std::filesystem::remove(path);
  CHECK_THROWS_AS(muster::detail::read_whole_file(path, [] {}), muster::data_error);
}
