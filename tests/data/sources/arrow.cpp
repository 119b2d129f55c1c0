// The export of records as Arrow tables; package_arrow.py compares it with pyarrow.
#include <muster/data/arrow.hpp>

#include <malloc.h>

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include <muster/core/error.hpp>
#include "catch.hpp"

namespace {

// A source whose last field has a type that Arrow lacks.
struct foreign_numbers {
  std::string_view name() const { return "foreign"; }
  std::uint64_t size() const { return 1; }
  std::uint64_t digest() const { return 1; }
  const muster::data::record_schema& schema() const { return described; }
  void sizes(std::span<const muster::sample_id>, std::span<std::uint64_t> out) const {
    for (auto& size : out) size = described.record_bytes();
  }
  void read(std::span<const muster::sample_id>, const muster::data::record_rows&,
            std::vector<muster::bad_record>* = nullptr) const {}

  muster::data::record_schema described{.fields = {{.name = "first", .type = muster::dtype::int32, .shape = {4, 4}},
                                                   {.name = "last", .type = muster::dtype::bfloat16, .shape = {3}}}};
};

}  // namespace

// With AddressSanitizer mallinfo2 returns zeros, and LeakSanitizer reports the memory.
TEST_CASE("a source that Arrow cannot represent is refused, and its description is freed") {
  const muster::data::any_record_source source(foreign_numbers{});
  constexpr std::size_t refusals = 2000;
  std::size_t before = 0;
  for (std::size_t k = 0; k < refusals; ++k) {
    if (k == refusals / 2) before = ::mallinfo2().uordblks;
    try {
      (void)muster::data::export_arrow(source, 10);
      FAIL("the export is accepted");
    } catch (const muster::configuration_error& refused) {
      if (k == 0) CHECK_THAT(refused.what(), contains("numbers of bfloat16 cannot be exported"));
    }
  }
  CHECK(::mallinfo2().uordblks < before + refusals / 2 * sizeof(ArrowSchema));
}
