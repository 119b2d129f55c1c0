// libFuzzer on files of records: build/<preset>/tests/fuzz/fuzz_records -max_total_time=3600 -max_len=16384 CORPUS An
// input is the end of a file: its tables and footer, preceded by a part of the payload. The harness adds the header and
// corrects the checksums, since no fuzzer guesses a checksum.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>

#include <muster/core/crc32c.hpp>
#include <muster/data/dataset.hpp>
#include <muster/data/records/writer.hpp>
#include "binary.hpp"

namespace {

const std::string& path() {
  static const std::string name = "/tmp/fuzz-records-" + std::to_string(::getpid());
  return name;
}

// Returns the first page of a file of such records.
std::string first_page(muster::data::record_form form) {
  const std::string name = path() + "-header";
  const bool fixed = form == muster::data::record_form::fixed;
  muster::data::record_schema schema{form, {}, 10, {"label"}};
  if (fixed) schema.fields = {{"value", muster::dtype::uint8, {3}}};
  muster::data::record_file_writer writer(name, schema);
  const std::byte record[3]{};
  const float label = 1;
  writer.append(std::span(record).first(fixed ? 3 : 0), {&label, 1});
  writer.commit();
  std::ifstream file(name, std::ios::binary);
  std::string page(4096, '\0');
  file.read(page.data(), 4096);
  ::unlink(name.c_str());
  return page;
}

void put(std::string& text, std::size_t at, std::uint64_t number, std::size_t size) {
  for (std::size_t k = 0; k < size; ++k) text[at + k] = static_cast<char>(number >> (8 * k) & 0xff);
}

std::uint32_t crc_of(const std::string& text, std::size_t first, std::size_t last) {
  return muster::crc32c(std::as_bytes(std::span(text).subspan(first, last - first)));
}

// Reads numbers from the records, as if each record's checksum were correct.
void use_records() {
  try {
    const muster::data::record_files source(path(), {.checks = muster::data::record_checks::never});
    const auto kept = muster::load(source, {.threads = 1, .keep_bad_records = true});
    const auto found = muster::statistics(source, 1);
    fuzz::require(found.records + found.left_out == kept.size(), "statistics count a wrong number of records");
    fuzz::require(found.left_out == kept.bad().size(), "statistics leave out other records");
  } catch (const muster::data_error&) {
  } catch (const muster::configuration_error&) {  // compressed blocks in a build without libzstd
  }
}

}  // namespace

// NOLINT: the name that libFuzzer requires
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string pages[] = {first_page(muster::data::record_form::fixed),
                                      first_page(muster::data::record_form::sparse)};
  if (size < 65) return 0;
  std::string text = pages[data[0] % 2] + std::string(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t footer = text.size() - 64;
  put(text, footer + 8, 4096, 8);
  put(text, footer + 40, text.size(), 8);
  std::memcpy(text.data() + footer + 56,
              "\x8d"
              "ENDMR\r\n",
              8);
  std::uint64_t payload = 0;
  std::memcpy(&payload, text.data() + footer + 16, sizeof payload);
  const std::uint64_t tables = (4096 + payload + 63) / 64 * 64;
  if (payload < text.size() && tables <= footer) put(text, footer + 48, crc_of(text, tables, footer), 4);
  put(text, footer + 52, crc_of(text, footer, footer + 52), 4);
  std::ofstream(path(), std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
  fuzz::check_records(text, path());
  use_records();
  ::unlink(path().c_str());
  return 0;
}
